"""Checks of the data that a run trains on: files, lines, characters, prompts, answers, lengths, twins."""

from rlcheck.check import checks_in
from rlcheck.checks.dat import files, lengths, lines, prompts, twins

CHECKS = checks_in(files, lines, prompts, lengths, twins)
