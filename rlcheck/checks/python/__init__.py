"""Checks of family ENV: the Python environment and the packages in it."""
