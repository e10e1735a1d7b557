"""Distributed runs: explorers, learners and evaluators in threads, in other processes, on other machines."""
