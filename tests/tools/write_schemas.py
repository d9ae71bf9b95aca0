"""Writes the published JSON Schemas of reports, diagnoses and facts files: `python -m tests.tools.write_schemas`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from rlcheck.facts.document import FactsFile
from rlcheck.report.diagnosis import diagnosis_schema
from rlcheck.report.model import report_schema

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "schema"


def schemas() -> dict[str, str]:
    """The text of each schema file, by name."""
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    facts = {**draft, "title": "rlcheck facts", **msgspec.json.schema(FactsFile)}
    return {
        "report.schema.json": json.dumps(report_schema(), indent=2) + "\n",
        "facts.schema.json": json.dumps(facts, indent=2) + "\n",
        "diagnosis.schema.json": json.dumps(diagnosis_schema(), indent=2) + "\n",
    }


def main() -> None:
    """Write them where they are published."""
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in schemas().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
