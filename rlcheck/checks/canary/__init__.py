"""Checks of a live server against a saved checkpoint."""
