"""What a run leaves behind: checkpoints, metrics, reports."""
