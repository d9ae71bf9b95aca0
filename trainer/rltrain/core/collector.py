"""The collector of garbage, kept from walking what stays anyway."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Generator[None]:
    """Import large libraries in the block: nothing is collected meanwhile, and what is there then is never walked.

    Torch and transformers make 600,000 objects, next to none of which becomes garbage: a fifth of their imports' time
    is the collector's.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
