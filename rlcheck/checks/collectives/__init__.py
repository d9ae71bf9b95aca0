"""Checks of family NCL."""
