"""The hand-written pages, and the code blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/trainer/*.md")),
    *sorted(ROOT.glob("docs/adr/*.md")),
)
_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(kind: str) -> list[Block]:
    """All blocks of KIND ("bash", "console", "yaml") on all pages."""
    return [block for page in PAGES for block in _blocks(page) if block.kind == kind]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        indent, kind, body = found.groups()
        yield Block(page, text[: found.start()].count("\n") + 1, kind, re.sub(f"^{indent}", "", body, flags=re.M))


def commands(block: Block) -> list[str]:
    """The shell commands of a block, without comments; continued lines are one."""
    joined = block.text.replace("\\\n", " ")
    stripped = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in stripped if line]


def slug(heading: str) -> str:
    """The anchor that GitHub gives to HEADING."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
