"""What `ganglion check` looks at: one module per level, from single rows to what an environment costs."""
