"""Mistakes in code: small functions that replace one function of the trainer, in the processes that import it.

The trainer is not touched: as soon as a process has imported the module that a mistake concerns, the mistake is put in.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bench_mistakes.registry import Patch


def install(words: str) -> None:
    """Wait for the modules of the mistake that WORDS names: `NAME` or `NAME {"argument": value}`."""
    name, _, arguments = words.partition(" ")
    sys.meta_path.insert(0, _Finder(name, json.loads(arguments or "{}")))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as the others do, and patches those that the mistake is in."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        # Which modules: read from the files' own tables, which import nothing of the trainer.
        from bench_mistakes import learning, lengths, measures, optimising, prompts, rewarding, subtle, weights  # noqa: F401
        from bench_mistakes.registry import MISTAKES

        self._patches = dict(MISTAKES[name])
        self._arguments = arguments

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with a loader that puts the mistake in."""
        patch = self._patches.get(fullname)
        if patch is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, patch, self._arguments)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, real: importlib.abc.Loader, patch: Patch, arguments: dict[str, Any]) -> None:
        self._real, self._patch, self._arguments = real, patch, arguments

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._patch(module, **self._arguments)
        # What fails here is only printed, and the run goes on without its mistake: the bench looks for this.
        Path(os.environ["RLTRAIN_MISTAKE_MARK"]).touch()
