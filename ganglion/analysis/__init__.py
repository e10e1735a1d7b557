"""What runs have reached: their curves, statistics over seeds, comparisons, and what is wrong with them."""
