"""`rlcheck ray` on a node, its report as data, and what a test asks of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.multinode.netns import Node

# However broken the network is.
LIMIT_S = 30.0


@dataclass(frozen=True)
class Examined:
    """What one call of the command found."""

    code: int
    seconds: float
    findings: dict[str, dict[str, Any]]
    exhibits: list[dict[str, Any]]

    def problems(self) -> dict[str, str]:
        """What warns or fails: the ID and what it says."""
        return {id: words(f) for id, f in self.findings.items() if f["status"] in ("fail", "warn", "error")}

    def failed(self) -> set[str]:
        """IDs of what fails, and of checks that broke."""
        return {id for id, finding in self.findings.items() if finding["status"] in ("fail", "error")}

    def names(self, id: str, *expected: str, status: str = "fail") -> None:
        """Assert that the finding `id` has this status and says all of the words."""
        finding = self.findings[id]
        assert finding["status"] == status, (id, finding["status"], words(finding), self.problems())
        missing = [word for word in expected if word not in words(finding)]
        assert not missing, (id, missing, words(finding))


def words(finding: Mapping[str, Any]) -> str:
    """Everything that a finding says."""
    parts = [finding.get(key) or "" for key in ("message", "expected", "found")]
    return " | ".join([*parts, *finding.get("details", ())])


def examine(
    node: Node, command: str, *arguments: str | Path, env: Mapping[str, str | None] | None = None, timeout: float = 90
) -> Examined:
    """Run `rlcheck COMMAND …` on the node; it must end in time and write a report."""
    done = node.rlcheck(command, *arguments, "--format", "json", env=env, timeout=timeout)
    assert done.out, done.err
    report = json.loads(done.out)
    findings = {finding["id"]: finding for finding in report["checks"]}
    return Examined(done.code, done.seconds, findings, report.get("exhibits", []))


def examine_ray(node: Node, *arguments: str | Path, env: Mapping[str, str | None] | None = None) -> Examined:
    """`rlcheck ray …`, which must not outlast its limit."""
    examined = examine(node, "ray", *arguments, env=env)
    assert examined.seconds < LIMIT_S, examined.problems()
    return examined
