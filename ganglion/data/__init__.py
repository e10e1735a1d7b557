"""Datasets: rows that were collected before, as files, and what is done with them (docs/data.md)."""
