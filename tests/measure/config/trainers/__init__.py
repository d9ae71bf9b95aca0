"""Configs of other trainers, of our own writing, and mistakes planted in them: a module for each trainer."""
