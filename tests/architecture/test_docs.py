"""Generated files are those of this tree, and links lead somewhere: in the tree, and in the site built from it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.every import every
from tests.tools import build

ROOT = Path(__file__).resolve().parents[2]
MADE = ("rlcheck/data/signatures.json",)
"""Built where it is missing."""
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("playbooks/*.md")])


pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is generated, in a directory of its own."""
    out = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "tests.tools.build", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    return out


def test_generated_files_are_up_to_date(built: Path) -> None:
    """`python -m tests.tools.build` writes them anew."""
    files = [path.relative_to(built) for path in built.rglob("*") if path.is_file()]
    tracked = [file for file in files if file.parts[0] != "build"]
    assert len(tracked) > 5
    assert [str(file) for file in tracked if (built / file).read_bytes() != (ROOT / file).read_bytes()] == []
    orphans = [file for folder in build.WHOLE[:1] for file in (ROOT / folder).iterdir()]
    assert [file.name for file in orphans if file.relative_to(ROOT) not in tracked] == []


def test_what_is_built_is_not_tracked() -> None:
    names = ("build/docs/playbooks/shm-too-small.md", "rlcheck/data/signatures.json")
    ignored = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ignored.stdout.split() == [*names]


def test_stale_and_left_over_files_are_found(tmp_path: Path) -> None:
    generated = {"build/docs/checks/SYS.md": "new\n", "docs/schema/x.json": "{}\n"}
    build.write(generated, tmp_path)
    assert build.stale(generated, tmp_path) == []
    (tmp_path / "build/docs/checks/SYS.md").write_text("old\n")
    (tmp_path / "build/docs/checks/GONE.md").write_text("")
    assert build.stale(generated, tmp_path) == ["build/docs/checks/SYS.md", "build/docs/checks/GONE.md (left over)"]
    build.write(generated, tmp_path)
    assert build.stale(generated, tmp_path) == []


def lost_links(page: Path) -> list[str]:
    text = re.sub(r"\A---\n.*?^---\n", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)  # patterns are no links
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    return [link for link in links if "://" not in link and not (page.parent / link).exists()]


@every(PAGES, name=lambda page: str(page.relative_to(ROOT)))
def test_links_in_the_tree_lead_somewhere(page: Path) -> None:
    assert lost_links(page) == []


@every(PAGES, name=lambda page: str(page.relative_to(ROOT)))
def test_paths_of_the_tree_exist(page: Path) -> None:
    """`rlcheck/text.py`, as pages write it; a name with a hole or a pattern in it is none."""
    named = re.findall(r"`((?:rlcheck|trainer|tests|docs|playbooks)/[\w./-]+)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists() and path not in MADE] == []


def test_links_of_the_site_lead_somewhere(built: Path) -> None:
    pages = sorted((built / build.SITE).rglob("*.md"))
    assert len(pages) > 600
    assert {page.name: lost for page in pages if (lost := lost_links(page))} == {}
