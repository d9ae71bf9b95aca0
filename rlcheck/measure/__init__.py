"""Everything that finds out: one package a topic, each filling its sections of the facts."""
