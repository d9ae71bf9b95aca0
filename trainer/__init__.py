"""rltrain: the trainer that rlcheck guards. This release holds its command and nothing that trains."""

from rlcheck import __version__

__all__ = ["__version__"]
