"""Explorers, learners and evaluators elsewhere: in threads, in other processes, on other machines."""
