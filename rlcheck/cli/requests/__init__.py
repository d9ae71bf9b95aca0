"""What each command can be asked: a dataclass, whose fields are its options and whose docstring is its help."""
