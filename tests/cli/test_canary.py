"""`rlcheck canary`: a server that cannot be asked is one line; a record is judged elsewhere, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlcheck.facts.document import FactsFile
from tests.checks.canary.cases import CASES, HEALTHY
from tests.conftest import rlcheck
from tests.measure.rollout.fake import Fake, serving

CARD = {"data": [{"id": "policy", "owned_by": "vllm", "max_model_len": 64}]}


def _checkpoint(directory: Path) -> Path:
    (directory / "config.json").write_text(json.dumps({"vocab_size": 42}))
    return directory


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "give the URL of a server"), (("http://127.0.0.1:9",), "give the URL of a server"),
     (("http://127.0.0.1:9", "--checkpoint", "/nowhere"), "there is no such directory"),
     (("http://127.0.0.1:9", "--facts", "x"), "--facts judges a record")],
)  # fmt: skip
def test_bad_words_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = rlcheck("canary", *words)
    assert done.code == 2
    assert said in done.error_line


def test_a_directory_without_a_model_is_one_line(tmp_path: Path) -> None:
    done = rlcheck("canary", "http://127.0.0.1:9", "--checkpoint", tmp_path)
    assert done.code == 2
    assert "--checkpoint names a directory with a saved model" in done.error_line


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://127.0.0.1", "http://"])
def test_a_bad_url_is_one_line(tmp_path: Path, url: str) -> None:
    done = rlcheck("canary", url, "--checkpoint", _checkpoint(tmp_path))
    assert done.code == 2
    assert done.error_line


@pytest.mark.parametrize(
    ("server", "words", "said"),
    [({"key": "secret", "routes": {("GET", "/v1/models"): (200, CARD)}}, (), "no key was sent; set RLCHECK_API_KEY"),
     ({"routes": {("GET", "/v1/models"): (200, CARD)}}, ("--model", "other"), "serves no model 'other'; it has policy"),
     ({"routes": {}}, (), "HTTP 404: no LLM server"),
     ({"routes": {("GET", "/v1/models"): (200, CARD), ("POST", "/v1/completions"): (400, {"error": "too long"})}}, (),
      "POST /v1/completions: HTTP 400: too long")],
)  # fmt: skip
def test_a_server_that_cannot_be_asked_is_one_line(
    tmp_path: Path, server: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    with serving(Fake(**server)) as url:
        done = rlcheck("canary", url, "--checkpoint", _checkpoint(tmp_path), *words)
    assert done.code == 2
    assert said in done.error_line


@pytest.mark.parametrize("style", ["text", "json", "markdown", "junit", "sarif"])
def test_every_format_names_the_fault(tmp_path: Path, style: str) -> None:
    record = tmp_path / "facts.json"
    for facts, code in ((CASES["CAN002"][0], 1), (HEALTHY, 0)):
        record.write_bytes(msgspec.json.encode(FactsFile(nodes=(facts,))))
        done = rlcheck("canary", "--facts", record, "--format", style)
        assert done.code == code
        assert code == 0 or "CAN002" in done.out
