"""Plug-ins: a real package, installed by pip, adds a family; a broken one costs a note."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import ROOT, rlcheck, write_tree

Acme = dict[str, str | None]


def test_it_is_listed(acme: Acme) -> None:
    rows = {row["id"]: row for row in json.loads(rlcheck("list", "--format", "json", env=acme).out)}
    assert rows["ACM001"] == {
        "id": "ACM001",
        "title": "Acme storage is in fast mode",
        "family": "ACM",
        "needs": ["plugins.acme"],
        "playbook": "acme-storage",
    }
    assert "ACM002" in rows
    assert "ACM002  Acme's directory is there" in rlcheck("list", "--select", "ACM", env=acme).out
    assert "ACM001" not in rlcheck("list").out


def test_it_is_judged_in_its_own_family(acme: Acme) -> None:
    done = rlcheck("env", "--select", "ACM", "--format", "json", env=acme)
    report = json.loads(done.out)
    assert done.code == report["exit_code"] == 1
    assert [finding["id"] for finding in report["checks"]] == ["ACM001", "ACM002"]
    assert [finding["status"] for finding in report["checks"]] == ["fail", "warn"]
    assert report["families"][0]["title"] == "Acme storage"
    assert report["checks"][0]["fixes"][0]["command"] == "export ACME_MODE=fast"
    assert report["checks"][0]["why"] == "Checkpoints take an hour in slow mode."
    assert report["notes"] == []


def test_it_is_part_of_every_examination(acme: Acme) -> None:
    report = json.loads(rlcheck("env", "--format", "json", env={**acme, "ACME_MODE": "fast"}).out)
    by_id = {finding["id"]: finding for finding in report["checks"]}
    assert by_id["ACM001"]["status"] == "pass"
    assert len(by_id) > 2


def test_it_is_explained(acme: Acme) -> None:
    page = rlcheck("explain", "acm001", env=acme).out
    assert "Checkpoints take an hour in slow mode" in page
    assert "export ACME_MODE=fast" in page
    assert "unsafe: everything" in page
    assert "Acme's directory is missing" in rlcheck("explain", "acme-directory", env=acme).out


def test_its_facts_travel(acme: Acme, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    assert rlcheck("collect", "-o", facts, env=acme).code == 0
    report = json.loads(rlcheck("env", "--facts", facts, "--select", "ACM001", "--format", "json", env=acme).out)
    assert report["checks"][0]["status"] == "fail"


def test_without_the_plugin_its_facts_do_no_harm(acme: Acme, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    rlcheck("collect", "-o", facts, env=acme)
    done = rlcheck("env", "--facts", facts, "--format", "json")
    assert done.code in (0, 1)
    assert "ACM001" not in done.out


BROKEN = {
    "import error": ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"),
    "syntax error": ("PLUGIN = (", "cannot be loaded: SyntaxError"),
    "leaves": ("raise SystemExit(5)", "cannot be loaded: SystemExit"),
    "no such name": ("OTHER = 1", "cannot be loaded: AttributeError"),
    "wrong object": ("PLUGIN = {'checks': []}", "is not a rlcheck.doctor.plugins.Plugin"),
    "checks in a list": (
        "from rlcheck.doctor.plugins import Plugin\nPLUGIN = Plugin('b', checks=['SYS001'])",
        "has checks that are not a tuple",
    ),
    "no checks": (
        "from rlcheck.doctor.plugins import Plugin\nPLUGIN = Plugin('b', checks=None)",
        "has checks that are not",
    ),
    "probes": (
        "from rlcheck.doctor.plugins import Plugin\nPLUGIN = Plugin('b', probes=(1,))",
        "has probes that are not",
    ),
    "families": (
        "from rlcheck.doctor.plugins import Plugin\nPLUGIN = Plugin('b', families=('X',))",
        "has families that",
    ),
    "playbooks": ("from rlcheck.doctor.plugins import Plugin\nPLUGIN = Plugin('b', playbooks=7)", "has playbooks that"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_one_costs_one_note(case: str, acme: Acme, tmp_path: Path) -> None:
    code, note = BROKEN[case]
    write_tree(tmp_path, {
        "broken_plugin.py": code,
        "broken_plugin-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1\n",
        "broken_plugin-1.dist-info/entry_points.txt": "[rlcheck.plugins]\nbroken = broken_plugin:PLUGIN\n",
    })  # fmt: skip
    env = {**acme, "PYTHONPATH": f"{acme['PYTHONPATH']}{os.pathsep}{tmp_path}", "ACME_MODE": "fast"}
    done = rlcheck("env", "--select", "ACM001", "--format", "json", env=env)
    report = json.loads(done.out)
    assert done.code == 0
    assert report["checks"][0]["status"] == "pass"
    assert len(report["notes"]) == 1
    assert report["notes"][0].startswith("plug-in broken ")
    assert note in report["notes"][0]


def test_what_clashes_is_left_out(acme: Acme, tmp_path: Path) -> None:
    """A plug-in can neither replace a built-in check, nor a section of the facts, nor a family's title."""
    code = """
from rlcheck.check import check, passed
from rlcheck.doctor.plugins import Plugin
from rlcheck.measure.machine.registry import Probe

@check("SYS001", "Everything is fine", needs=(), playbook="none")
def fine(facts):
    return passed("trust me")

PLUGIN = Plugin("rogue", checks=(fine,), probes=(Probe("system", "nowhere"),), families={"SYS": "Mine"})
"""
    write_tree(tmp_path, {
        "rogue.py": code,
        "rogue-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: rogue\nVersion: 1\n",
        "rogue-1.dist-info/entry_points.txt": "[rlcheck.plugins]\nrogue = rogue:PLUGIN\n",
    })  # fmt: skip
    done = rlcheck("env", "--select", "SYS", "--format", "json", env={"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"})
    report = json.loads(done.out)
    assert "trust me" not in done.out
    assert all(line["title"] == "System" for line in report["families"] if line["family"] == "SYS")
    assert sorted(note.split(": ")[1] for note in report["notes"]) == [
        "check ID SYS001 is taken; that check is left out",
        "section system is taken; that probe is left out",
    ]
