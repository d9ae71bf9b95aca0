"""The config that `rltrain init` writes: complete, and ready once its `???` are given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rltrain.cli.init import init_text
from rltrain.config import load, load_with_notes
from rltrain.config.names import leaves, sections, words_of
from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError

GIVEN = ["data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=m"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "my.yaml"
    path.write_text(init_text(), encoding="utf-8")
    return str(path)


def test_it_asks_for_what_must_be_given(file: str) -> None:
    with pytest.raises(UserError) as caught:
        load(file)
    assert sorted(re.findall(r"the override ([\w.]+)=", str(caught.value))) == sorted(o.split("=")[0] for o in GIVEN)


def test_with_that_given_everything_stands_at_its_default(file: str, tmp_path: Path) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text(
        "actor_rollout_ref: {rollout: {name: vllm}}\nreward_model: {rules: [{kind: math}]}\ntrainer: {save_freq: 20}\n"
    )
    loaded = load_with_notes(file, GIVEN)
    assert loaded.notes == ()
    assert loaded.config == load(bare, GIVEN)


def test_a_key_is_enabled_by_removing_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(re.sub(r"^( *)#(?=[\w]+:)", r"\1", init_text(), flags=re.MULTILINE))
    config = load(path, GIVEN)
    assert config.toy is not None
    assert config.model_copy(update={"toy": None}) == load_with_notes(path, [*GIVEN, "~toy"]).config


def test_every_key_is_there_with_its_words() -> None:
    text = init_text()
    assert text.isascii() or "…" in text
    assert max(map(len, text.splitlines())) <= 120
    said = 0
    for key in leaves():
        assert re.search(rf"^ *#?{key.rsplit('.', 1)[-1]}: ", text, re.MULTILINE), key
        above, _, name = key.rpartition(".")
        words = words_of(sections()[above] if above else RunConfig).get(name, "")
        assert not words or words.split()[0] in text, key
        said += bool(words)
    assert said > 50
