"""Decoders."""

from rlcheck.diagnose.decode import Decoder

DECODERS: dict[str, Decoder] = {}
