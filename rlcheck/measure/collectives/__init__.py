"""Real collectives on many machines: who runs which step when, deadlines, and what it means. Imports no torch."""
