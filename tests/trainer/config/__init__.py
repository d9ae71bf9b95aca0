"""`small.yaml` has round numbers and no tuning: what the recipes say may change without a word here."""

from pathlib import Path

SMALL = str(Path(__file__).with_name("small.yaml"))
