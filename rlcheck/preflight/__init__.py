"""The chain of trust before a run: its links, in the order in which they break, and who looks at each."""
