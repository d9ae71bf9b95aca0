"""Configs of supervised training: verl's names, what is refused, and what training ranks make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rltrain.cluster.placement import nodes_as_asked, plan_ranks
from rltrain.config import Machine, load
from rltrain.config.load import load_sft
from rltrain.config.names import RUN, SFT
from rltrain.config.schema.sft import SftConfig
from rltrain.config.sft import as_run, batch_lines, check_sft, resolve_sft, sft_notes
from rltrain.core.errors import UserError
from rltrain.recipes import SFT_RECIPES, recipe_names
from tests.tools.pages import ROOT

CPU = Machine("cpu", 0, 2)
TOY = "toy-sft"
PAGE = ROOT / "docs" / "trainer" / "sft.md"


def resolved(*overrides: str, machine: Machine = CPU) -> SftConfig:
    return resolve_sft(load_sft(TOY, overrides).config, machine)


def refused(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        check_sft(resolved(*overrides))
    return str(caught.value)


def test_the_recipes_pass() -> None:
    for name in recipe_names(SFT_RECIPES):
        config = resolve_sft(load_sft(name).config, CPU)
        check_sft(config)
        assert sft_notes(config) == []
        assert resolve_sft(config, CPU) == config


def test_most_keys_are_verls_and_all_are_on_the_page() -> None:
    own = {key for key in SFT.leaves() if key not in SFT.verl_keys() and not key.startswith(("toy.", "ray_kwargs."))}
    shared = set(SFT.leaves()) & set(SFT.verl_keys())
    assert len(own) < len(shared)
    assert {
        "data.messages_key",
        "data.max_length",
        "data.truncation",
        "optim.clip_grad",
        "trainer.max_ckpt_to_keep",
    } <= shared
    text = PAGE.read_text(encoding="utf-8")
    told = [
        key for key in SFT.leaves() if key.startswith(("data.", "optim.clip", "checkpoint.")) and f"`{key}`" not in text
    ]
    assert told == []


def test_aliases_lead_from_keys_that_are_not_there_to_keys_that_are() -> None:
    aliases = SFT.aliases()
    for old, new in aliases.moved.items():
        assert SFT.leaf_above(new) is not None or new in SFT.sections(), new
        assert SFT.leaf_above(old) is None, old
    for key in (*aliases.instead, *aliases.accepted):
        assert SFT.leaf_above(key) is None, key
    assert set(aliases.accepted) <= set(SFT.verl_keys())


def test_verls_own_defaults_pass(tmp_path: Path) -> None:
    """A config that verl has flattened: what rltrain does not have is at its default, and is noted."""
    tree: dict[str, Any] = {}
    for key, value in SFT.verl_keys().items():
        *above, last = key.split(".")
        section = tree
        for part in above:
            section = section.setdefault(part, {})
        section[last] = value
    tree["trainer"] |= {"logger": ["console"], "device": "cpu"}
    path = tmp_path / "verl.yaml"
    path.write_text(yaml.safe_dump(tree))
    loaded = load_sft(path)
    assert loaded.config.optim.lr == 1e-3
    assert loaded.config.engine.dtype == "bfloat16"
    assert any("verl keys without effect here" in note for note in loaded.notes)


def test_other_names_of_verl_are_moved_and_what_is_missing_is_refused_with_advice() -> None:
    moved = load_sft(TOY, ["model.partial_pretrain=/m", "use_remove_padding=false", "data.multiturn.messages_key=chat"])
    assert (moved.config.model.path, moved.config.data.messages_key) == ("/m", "chat")
    assert not moved.config.model.use_remove_padding
    assert "model.partial_pretrain is read as model.path" in moved.notes
    with pytest.raises(UserError) as caught:
        load_sft(TOY, ["model.lora_rank=8", "data.pad_mode=right", "data.max_lenght=3", "data.max_length=many"])
    text = str(caught.value)
    assert "model.lora_rank: rltrain sft does not have this key (verl's default 0 would pass)" in text
    assert "data.pad_mode: rltrain sft does not have this key; model.use_remove_padding says" in text
    assert "data.max_lenght: unknown key; did you mean data.max_length?" in text
    assert "data.max_length: expected an integer, got 'many'" in text
    assert len(text.splitlines()) == 4


def test_a_recipe_of_the_other_command_is_named() -> None:
    names = ", ".join(recipe_names(SFT_RECIPES))
    with pytest.raises(UserError, match=rf"no recipe 'toy-ppo' \({names}\) .*; it is one of `rltrain run`"):
        load_sft("toy-ppo")
    with pytest.raises(UserError, match=r"no recipe 'toy-sft' .*; it is one of `rltrain sft`"):
        load("toy-sft")
    assert not set(recipe_names(RUN.recipes)) & set(recipe_names(SFT.recipes))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("toy=null",), "data.train_files: give a file"),
        (
            ("toy=null", "data.train_files=/nowhere.jsonl"),
            "data.train_files: no such file or directory: /nowhere.jsonl",
        ),
        (("model.path=/nowhere",), "model.path: no such file or directory: /nowhere"),
        (
            ("data.max_length=128", "data.max_token_len_per_gpu=4096"),
            "data.max_length = 128 is more than the model has",
        ),
        (
            ("data.max_length=64", "data.max_token_len_per_gpu=48"),
            "48 tokens do not hold one row of data.max_length=64",
        ),
        (("model.use_remove_padding=false",), "data.use_dynamic_bsz: counts tokens without padding"),
        (("data.train_batch_size=1",), "data.train_batch_size: 1 rows leave some of the 2 ranks without any"),
        (("checkpoint.save_contents=[model,hf_model]",), "extra, optimizer must be among it"),
        (("trainer.save_freq=0",), "trainer.save_freq: 0 must be -1"),
        (("trainer.resume_mode=sometimes",), "trainer.resume_mode: expected auto, disable"),
    ],
)
def test_what_a_training_would_trip_over_is_said_before(overrides: tuple[str, ...], said: str) -> None:
    text = refused(*overrides)
    assert said in text
    assert "actor_rollout_ref" not in text
    assert "max_response_length" not in text


def test_without_held_out_rows_nothing_can_be_validated(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    given = ("toy=null", f"data.train_files={rows}", f"model.path={tmp_path}")
    (tmp_path / "config.json").write_text("{}")
    assert refused(*given) == "trainer.test_freq: there is nothing to validate on; give data.val_files, or set it to -1"
    check_sft(resolved(*given, "trainer.test_freq=-1"))


def test_training_ranks_know_it_as_a_run_without_rollout() -> None:
    run = as_run(resolved("optim.clip_grad=0.5", "engine.param_offload=true", "trainer.max_ckpt_to_keep=2"))
    actor = run.actor_rollout_ref.actor
    assert (actor.grad_clip, actor.optim.lr, actor.optim.lr_scheduler_type) == (0.5, 0.005, "cosine")
    assert actor.fsdp_config.param_offload
    assert (actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu) == (True, 1024)
    assert run.data.max_prompt_length + run.data.max_response_length == 32
    assert run.trainer.max_actor_ckpt_to_keep == 2
    assert not run.needs_reference
    placement = plan_ranks(run, nodes_as_asked(run, 2))
    assert [slot.hosts for slot in placement.train] == [("actor",), ("actor",)]
    assert placement.rollout == ()


def test_the_arithmetic_is_told() -> None:
    lines = batch_lines(resolved("data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=8"))
    assert "128 rows / 2 ranks = 64 rows" in lines[1]
    assert "8 rows" in lines[2]
