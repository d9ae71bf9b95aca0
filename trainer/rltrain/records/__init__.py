"""What a run leaves in its directory: its record, checkpoints, and what must not be written."""
