"""The command `rltrain`."""
