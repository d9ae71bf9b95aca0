"""Checks of the data that a run trains on: files, lines, characters, prompts, answers, lengths, twins."""
