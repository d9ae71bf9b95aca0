"""What users hit in their data, asked with `rlcheck data`: every bad row, with line, column and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import rlcheck
from tests.rows.machines import says, says_of


def row(number: int, **changes: Any) -> str:
    chat = [{"role": "user", "content": f"{number} + 1"}]
    truth = {"style": "rule", "ground_truth": str(number + 1)}
    return json.dumps({"data_source": "sums", "prompt": chat, "reward_model": truth, **changes})


@pytest.mark.row("F30")
def test_rows_that_no_trainer_can_use(tmp_path: Path) -> None:
    bad = {2: row(2)[:40], 4: row(4).replace("4 + 1", "4\\u0000+ 1"), 6: row(6, prompt=None),
           8: row(8, reward_model={"style": "rule"}),
           10: row(10, reward_model={"ground_truth": None})}  # fmt: skip
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(bad.get(number, row(number)) + "\n" for number in range(1, 12)))
    config = tmp_path / "run.json"
    config.write_text(json.dumps({"reward_model": {"rules": [{"kind": "exact", "data_sources": ["sums"]}]}}))
    done = rlcheck("data", data, "--config", config)
    places = ("2:column 37: not JSON", "4:prompt[0].content: a NUL", "6:prompt: null", "8:reward_model.ground_truth: ",
              "10:reward_model.ground_truth: missing: null")  # fmt: skip
    says(done, *(f"{data}:{place}" for place in places), code=1)


@pytest.mark.row("F30")
@pytest.mark.parametrize("character", ["\x01", "\t"])
def test_a_control_character_that_no_loader_takes(character: str, tmp_path: Path) -> None:
    """`JSONDecodeError: Invalid control character`, or pyarrow's `Invalid encoding in string`, of the whole file."""
    line = row(1).replace("1 + 1", f"1{character}+ 1")
    with pytest.raises(json.JSONDecodeError, match="Invalid control character"):
        json.loads(line)
    data = tmp_path / "rows.jsonl"
    data.write_text(f"{row(0)}\n{line}\n")
    says_of(rlcheck("data", data), "DAT009", f"{data}:2:column {line.index(character) + 1}: ", "not escaped")


@pytest.mark.row("F62")
def test_gsm8ks_own_form(tmp_path: Path) -> None:
    data = tmp_path / "gsm8k.jsonl"
    rows = [{"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(9)]
    data.write_text("".join(json.dumps(one) + "\n" for one in rows))
    done = rlcheck("data", data)
    says(done, "9 rows in 1 file, prompts in question", code=0)
