"""Prompts: from files to token ids, in an order that can be resumed exactly."""
