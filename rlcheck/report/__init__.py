"""Reports and how they are shown."""
