"""Hatchling's hook for the wheel: the playbooks go into the package, with the index of their signatures."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface):
    """An editable install has neither: it reads `playbooks/` of the checkout, and builds the index at first use."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from rlcheck.diagnose import signatures
        from rlcheck.playbook import DIRECTORY

        index = Path(mkdtemp()) / "signatures.json"
        signatures.write(index)
        build_data["force_include"][str(DIRECTORY)] = "rlcheck/playbooks"
        build_data["force_include"][str(index)] = "rlcheck/data/signatures.json"
