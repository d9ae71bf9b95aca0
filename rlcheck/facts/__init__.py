"""Typed facts about a machine."""
