"""The algorithm of a run as one file that needs torch and gymnasium only."""
