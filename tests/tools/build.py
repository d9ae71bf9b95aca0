"""Everything that is generated from files of this repository: `python -m tests.tools.build [--out DIR] [--check]`.

Without options, tracked files are written in place: the schemas of reports, the keys of rltrain's config, the
pictures of the terminal and README's table of families. `build/docs` gets the site, which is not tracked: a page for
each family of checks and for each playbook, their index, what users hit row by row, and the schema of facts. With
`--out`, all of it goes below DIR.
`--check` writes nothing, and exits with 1 if a tracked file is out of date.

What comes from outside is recorded by commands of its own: tests.tools.verl_keys, lock_stacks, run_picture,
slim_record.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

from rlcheck.families import FAMILIES
from rlcheck.playbook import Library
from tests.tools import check_pages, learn_picture, pictures, schemas
from tests.tools.check_pages import GENERATED
from tests.tools.playbook_pages import playbook_page
from tests.tools.rows_page import rows_page

ROOT = Path(__file__).resolve().parents[2]
SITE = "build/docs"
RUN_PICTURE = "docs/pictures/toy-ppo.svg"
_FAMILY_TABLE = "| family | what it looks at |\n|---|---|\n"
WHOLE = ("docs/schema", "build/docs/checks", "build/docs/playbooks")
"""Folders in which every file is generated: another one is left over."""


def tracked() -> dict[str, str]:
    """Return the generated files that are tracked, by path."""
    found = {f"docs/schema/{name}": text for name, text in schemas.schemas().items()}
    found["README.md"] = readme()
    found |= {f"docs/pictures/{name}.svg": pictures.picture(argv) for name, argv in pictures.PICTURES.items()}
    if learn_picture.RECORD.exists():
        found["docs/pictures/arithmetic.svg"] = learn_picture.svg()
    # The trainer's part needs what an environment with the doctor alone does not have.
    if importlib.util.find_spec("pydantic"):
        from tests.tools import rltrain_keys, verl_page

        found["rlcheck/data/rltrain_keys.json"] = rltrain_keys.text()
        found[verl_page.PAGE] = verl_page.page(ROOT)
    if importlib.util.find_spec("torch"):
        from tests.tools import run_picture

        found[RUN_PICTURE] = run_picture.svg()
    return found


def readme() -> str:
    """Return README.md with the table of families as it is now."""
    head, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition(_FAMILY_TABLE)
    rows = "".join(f"| {family.id} | {family.about or family.title} |\n" for family in FAMILIES.values())
    return head + _FAMILY_TABLE + rows + rest[rest.index("\n\n") + 1 :]


def site() -> dict[str, str]:
    """Return the files of the site, by path."""
    library = Library()
    books = [library.get(id) for id in library.ids()]
    found = {f"{SITE}/checks/{family}.md": check_pages.family_page(family) for family in FAMILIES}
    found[f"{SITE}/checks-and-playbooks.md"] = check_pages.index_page(books)
    found[f"{SITE}/rows.md"] = rows_page()
    found |= {f"{SITE}/playbooks/{book.id}.md": GENERATED + playbook_page(book, library) for book in books}
    found[f"{SITE}/schema/facts.schema.json"] = json.dumps(schemas.facts_schema(), indent=2) + "\n"
    return found


def stale(generated: dict[str, str], root: Path) -> list[str]:
    """Return what below ROOT is not as GENERATED, and what nothing generates any more."""
    old = [name for name, text in generated.items() if not _holds(root / name, text)]
    orphans = (file for folder in WHOLE for file in sorted((root / folder).glob("*")) if file.is_file())
    names = (str(file.relative_to(root)) for file in orphans)
    return [*old, *(f"{name} (left over)" for name in names if name not in generated)]


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def write(generated: dict[str, str], root: Path) -> None:
    """Write GENERATED below ROOT, and remove what is left over there."""
    for name in stale(generated, root):
        path = root / name.removesuffix(" (left over)")
        if path != root / name:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(generated[name], encoding="utf-8")


def main() -> int:
    """Write, or with `--check` compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.build", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT, metavar="DIR", help="write below DIR")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a tracked file is old")
    options = parser.parse_args()
    if options.check:
        old = [name for name in stale(tracked(), ROOT) if not name.startswith("build/")]
        print("\n".join(old) or "up to date")
        return 1 if old else 0
    generated = {**tracked(), **site()}
    changed = [name for name in stale(generated, options.out) if not name.startswith("build/")]
    write(generated, options.out)
    print("\n".join(changed) or "tracked files were up to date")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
