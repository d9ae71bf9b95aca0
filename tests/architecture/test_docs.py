"""The generated pages are those of this tree, and links inside of it lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("playbooks/*.md")])


def test_generated_pages_are_up_to_date() -> None:
    """`python docs/tools/build_docs.py` mends it."""
    command = [sys.executable, "docs/tools/build_docs.py", "--check"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_the_tree_lead_somewhere(page: Path) -> None:
    text = re.sub(r"\A---\n.*?^---\n", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)  # patterns are no links
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    lost = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not lost
