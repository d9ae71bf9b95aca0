"""Write rlcheck/data/raises: which errors the releases of the stack raise, and where.

    python -m tests.tools.raise_sites [PACKAGE ...] [--keep DIR]

For maintainers: some releases of each package are fetched with pip, read as text and deleted; 15 GB are fetched in all.
`--keep` leaves their Python files in DIR, which makes a second run short. With names of packages, the records of the
others stay as they are. What is the least useful is left out until the record fits the budget of the package.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rlcheck.diagnose.source.recorded import FOLDER
from tests.tools.raise_sites.fetch import PLANS, archives, top_of
from tests.tools.raise_sites.merge import kept, merged, written_record


def record(package: str, folder: Path) -> str:
    """Return the record of PACKAGE; its releases are fetched into FOLDER where they are not there."""
    there = archives(package, folder)
    found = merged([path for _, path in there])
    chosen = kept(found, len(there), PLANS[package].kilobytes * 1000)
    return written_record(datetime.date.today().isoformat(), package, [version for version, _ in there], chosen)


def main() -> None:
    """Fetch, read and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=[*PLANS])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--into", type=Path, default=FOLDER)
    options = parser.parse_args()
    options.into.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch:
        for package in options.packages:
            text = record(package, options.keep or Path(scratch))
            (options.into / f"{top_of(package)}.txt").write_text(text, encoding="utf-8")
            print(f"{package}: {len(text.encode()):,} bytes", flush=True)


if __name__ == "__main__":
    main()
