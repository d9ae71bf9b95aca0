"""The proof of a training step: a reference that recomputes what a capsule recorded. It imports nothing of rltrain."""
