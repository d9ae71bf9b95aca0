"""The published JSON Schemas of reports, diagnoses and facts files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.facts.capsule import Capsule, CapsuleRow
from rlcheck.facts.document import FactsFile
from rlcheck.finding import report_schema
from rlcheck.report.diagnosis.report import diagnosis_schema

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "schema"


def schemas() -> dict[str, str]:
    """Return the text of each schema file, by name."""
    return {
        "report.schema.json": json.dumps(report_schema(), indent=2) + "\n",
        "diagnosis.schema.json": json.dumps(diagnosis_schema(), indent=2) + "\n",
        "capsule.schema.json": json.dumps(capsule_schema(), indent=2) + "\n",
    }


def capsule_schema() -> dict[str, Any]:
    """Return the schema of a capsule's `capsule.json`, and of a line of its `rows.jsonl` (`$defs/CapsuleRow`)."""
    (head, _), definitions = msgspec.json.schema_components((Capsule, CapsuleRow), ref_template="#/$defs/{name}")
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "step capsule"}
    return {**draft, **head, "$defs": definitions}


def facts_schema() -> dict[str, Any]:
    """Return the schema of facts files (JSON Schema, draft 2020-12)."""
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**draft, "title": "rlcheck facts", **msgspec.json.schema(FactsFile)}
