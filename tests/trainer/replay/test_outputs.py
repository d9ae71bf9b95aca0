"""What modules give in one pass, and in no other."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rltrain.workers.fsdp.outputs import NOT_FINITE, Outputs, digest

IDS = torch.arange(6)[None]


@pytest.fixture
def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=16, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def heard(model: Qwen2ForCausalLM, every: bool = True) -> dict[str, str]:
    outputs = Outputs(model, every)
    model(input_ids=IDS)
    return outputs.found


def test_every_module_with_parameters_is_heard_in_order(model: Qwen2ForCausalLM) -> None:
    names = list(heard(model))
    assert names[0] == "model.embed_tokens"
    assert names[-2:] == ["model.norm", "lm_head"]
    assert names.index("model.layers.0.mlp.down_proj") < names.index("model.layers.0") < names.index("model.layers.1")
    assert {name.rpartition(".")[0] for name, _ in model.named_parameters()} <= set(names)


def test_of_a_large_model_layers_alone(model: Qwen2ForCausalLM) -> None:
    assert list(heard(model, every=False)) == ["model.layers.0", "model.layers.1"]


def test_only_one_pass_is_heard(model: Qwen2ForCausalLM) -> None:
    outputs = Outputs(model, every=True)
    model(input_ids=IDS)
    first = dict(outputs.found)
    model(input_ids=IDS + 1)
    assert outputs.found == first == heard(model)


def test_one_ulp_in_a_weight_changes_its_module_and_no_earlier_one(model: Qwen2ForCausalLM) -> None:
    before = heard(model)
    weight = model.get_parameter("model.layers.1.self_attn.v_proj.weight").data.view(-1)
    at = int(weight.abs().argmax())
    weight[at] = torch.nextafter(weight[at], torch.tensor(float("inf")))
    after = heard(model)
    assert next(name for name in before if after[name] != before[name]) == "model.layers.1.self_attn.v_proj"


def test_a_number_that_is_not_finite_is_said(model: Qwen2ForCausalLM) -> None:
    model.get_parameter("model.layers.1.mlp.up_proj.weight").data[0, 0] = float("nan")
    bad = [name for name, found in heard(model).items() if found.endswith(NOT_FINITE)]
    assert bad[0] == "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_bit_counts(dtype: torch.dtype) -> None:
    values = torch.zeros(3, 5, dtype=dtype)
    other = values.clone()
    other[2, 4] = -0.0
    assert digest(values) != digest(other)
    assert digest(values) == digest(values.t().contiguous().t())
