"""The dry run's arithmetic and its text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer.config import SMALL
from trainer.config import Machine, load, resolve
from trainer.config.schema import RunConfig
from trainer.dry_run import config_yaml, memory_lines, model_shape, report, roles_memory, shape_of, size, table
from trainer.errors import UserError

SHAPE: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 101}
LLAMA: dict[str, Any] = {**SHAPE, "intermediate_size": 96, "num_key_value_heads": 2}
SHAPES: list[dict[str, Any]] = [
    {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
    {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": False},
    {**LLAMA, "model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False},
    {**LLAMA, "model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    {**LLAMA, "model_type": "mistral", "tie_word_embeddings": False},
    {**SHAPE, "model_type": "opt", "ffn_dim": 96, "max_position_embeddings": 50, "word_embed_proj_dim": 64},
    {**SHAPE, "model_type": "opt", "ffn_dim": 96, "max_position_embeddings": 50, "word_embed_proj_dim": 32},
]


@pytest.mark.parametrize("sizes", SHAPES, ids=lambda sizes: f"{sizes['model_type']}-{len(sizes)}")
def test_parameters_are_counted_as_transformers_builds_them(sizes: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes))
    shape = model_shape(sizes, "here")
    assert shape.exact
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.output_head == (0 if model.config.tie_word_embeddings else model.lm_head.weight.numel())


def test_a_missing_size_is_named() -> None:
    with pytest.raises(UserError, match=r"m/config.json: no 'intermediate_size'"):
        model_shape({**SHAPE, "model_type": "qwen2"}, "m/config.json")


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("num_attention_heads", 0, "0"),
        ("num_hidden_layers", "two", "'two'"),
        ("hidden_size", None, "null"),
        ("hidden_size", [1, 2], "[1, 2]"),
        ("vocab_size", -3, "-3"),
        ("num_key_value_heads", 0, "0"),
        ("intermediate_size", 1.5, "1.5"),
    ],
)
def test_a_size_is_an_integer_above_zero(name: str, value: object, got: str) -> None:
    with pytest.raises(UserError) as caught:
        model_shape({**LLAMA, "model_type": "qwen2", name: value}, "m/config.json")
    assert str(caught.value) == f"m/config.json: {name}: expected an integer > 0, got {got}"


def test_other_architectures_are_about() -> None:
    shape = model_shape({**LLAMA, "model_type": "olmo2"}, "here")
    assert memory_lines(resolved(), shape)[0].startswith("about ")


def resolved(*overrides: str, machine: Machine | None = None) -> RunConfig:
    return resolve(load(SMALL, overrides), machine or Machine("cpu", 0, 2))


def test_memory_is_sharded_over_the_ranks_and_typed() -> None:
    shape = model_shape({**LLAMA, "model_type": "qwen2", "tie_word_embeddings": False}, "here")
    one, two = (roles_memory(resolved(f"trainer.num_cpu_ranks={ranks}"), shape) for ranks in (1, 2))
    assert [role.role for role in one] == ["actor", "critic"]
    assert one[0].weights_bytes == one[0].gradients_bytes == 4 * shape.parameters
    assert one[0].optimizer_bytes == 8 * shape.parameters
    assert [role.total_bytes for role in two] == [role.total_bytes / 2 for role in one]
    assert one[1].weights_bytes == 4 * (shape.parameters - 101 * 64 + 64 + 1)
    halved = roles_memory(resolved("actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16"), shape)
    assert halved[0].total_bytes == one[0].total_bytes / 2


def test_roles_and_where_they_are() -> None:
    shape = model_shape({**LLAMA, "model_type": "qwen2"}, "here")
    found = roles_memory(
        resolved(
            "algorithm.adv_estimator=grpo",
            "actor_rollout_ref.actor.use_kl_loss=true",
            "actor_rollout_ref.ref.fsdp_config.param_offload=true",
            "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
        ),
        shape,
    )
    assert [(role.role, role.where) for role in found] == [
        ("actor", "device; optimizer on the host while idle"),
        ("reference", "host while idle"),
    ]


def test_the_engine_is_split_by_tensor_parallelism() -> None:
    shape = model_shape({**LLAMA, "model_type": "qwen2"}, "here")
    gpu = Machine("cuda", 2, 8)
    for tp in (1, 2):
        lines = memory_lines(resolved(f"actor_rollout_ref.rollout.tensor_model_parallel_size={tp}", machine=gpu), shape)
        (engine,) = [line.split() for line in lines if line.startswith("engine")]
        assert engine[1:3] == size(2 * shape.parameters / tp).split()
        assert any("30% of a GPU's memory" in line for line in lines)


def test_the_config_in_force_loads_again(tmp_path: Path) -> None:
    config = resolved()
    file = tmp_path / "resolved.yaml"
    file.write_text(config_yaml(config))
    assert load(file) == config


def test_the_report_has_all_four_parts() -> None:
    config = resolved("critic.ppo_mini_batch_size=16")
    lines = report(config, table(["role", "node"], [["actor", "here"]]), shape_of(config))
    assert [line for line in lines if line.startswith("==")] == [
        "== Config ==",
        "== Placement ==",
        "== Batches ==",
        "== Memory ==",
    ]
    first, last = lines.index("== Config =="), lines.index("== Placement ==")
    assert yaml.safe_load("\n".join(lines[first + 1 : last]))["data"]["train_batch_size"] == 64
    assert lines[last + 1 : last + 3] == ["role   node", "actor  here"]
    assert sum(line.startswith("mini batch") for line in lines) == 2


def test_the_shape_comes_from_the_models_own_file(tmp_path: Path) -> None:
    model = f"actor_rollout_ref.model.path={tmp_path}"
    assert shape_of(resolved(model)) is None
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "model_type": "qwen2"}))
    found = shape_of(resolved(model, "actor_rollout_ref.model.override_config={vocab_size: 7}"))
    assert found is not None
    assert found.vocab_size == 7
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        shape_of(resolved(model))


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5120.0 GiB")]
)
def test_sizes_in_words(number: int, text: str) -> None:
    assert size(number) == text
