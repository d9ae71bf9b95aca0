"""Checks of family NET."""
