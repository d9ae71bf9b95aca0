"""Packages planted into a site-packages of their own, and tracebacks out of them."""

from __future__ import annotations

import os
from pathlib import Path

from rlcheck.diagnose.answer import diagnose
from rlcheck.diagnose.model import Answer, Site
from rlcheck.diagnose.signatures import Index
from rlcheck.diagnose.source.installed import Environment
from tests.conftest import write_tree
from tests.diagnose.reading import LIBRARY, log_of

HERE = "# here"
"""Marks the line of a planted file that raises."""
THERE = "/opt/conda/envs/rl/lib/python3.12/site-packages"
"""Where the log's machine has its packages."""
OWN = '  File "/home/kim/rl/train.py", line 9, in main\n    build()\n'


def plant(root: Path, code: str, file: str = "acme/engine.py", version: str = "1.2.4") -> Environment:
    """An environment whose package acme holds CODE."""
    site = root / "lib" / "python3.12" / "site-packages"
    info = f"acme-{version}.dist-info"
    write_tree(site, {file: code, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: acme\nVersion: {version}\n",
                      f"{info}/RECORD": f"{file},sha256=x,1\n"})  # fmt: skip
    return Environment(sites=(str(site),), stdlib=os.path.dirname(os.__file__))


def frame(code: str, function: str, file: str = "acme/engine.py", shift: int = 0) -> str:
    """The frame of the line of CODE that is marked, as Python prints it."""
    number, line = next((at, line) for at, line in enumerate(code.split("\n"), 1) if HERE in line)
    return f'  File "{THERE}/{file}", line {number + shift}, in {function}\n    {line.strip()}\n'


def traceback(frames: str, raised: str, before: str = "") -> str:
    """A log that ends in a traceback."""
    return f"{before}Traceback (most recent call last):\n{OWN}{frames}{raised}\n"


def asked(where: Environment, log: str) -> Answer:
    """What the sources of WHERE alone say of LOG."""
    return diagnose([log_of(log)], Index(()), LIBRARY, where)


def site_of(answer: Answer) -> Site:
    """The place in a source that its first diagnosis names."""
    assert answer.unknown is None
    assert answer.diagnoses[0].basis == "source"
    assert answer.diagnoses[0].confidence != "high"
    site = answer.diagnoses[0].site
    assert site is not None
    return site
