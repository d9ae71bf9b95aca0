"""Whatever family a model is of: packed rows, padded rows and rows alone are one, or the model is refused."""

# Transformers is typed in part.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rltrain.core.errors import UserError
from rltrain.workers.fsdp import attention, packing
from rltrain.workers.fsdp.build import decoder_layers
from rltrain.workers.fsdp.forward import Policy
from rltrain.workers.fsdp.weights import check_names
from tests.every import every
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.families import FAMILIES, NOT_TINY, VOCAB, tiny_config, tiny_model
from tests.trainer.workers.fsdp.models import random_batch

PACKED = """
cohere2 exaone4 gemma gemma3_text glm4 gpt2 granite helium hunyuan_v1_dense llama ministral mistral olmo2 olmo3 opt phi3
qwen2 qwen3 seed_oss smollm3 starcoder2
"""
"""Must not be refused."""
MIXING = """
bamba bloom doge falcon_h1 falcon_mamba jamba lfm2 lfm2_moe llama4 llama4_text mamba mamba2 minimax moshi nemotron
nemotron_h qwen3_5_text qwen3_next recurrent_gemma rwkv stablelm
"""
"""Must be refused when packed."""
BOUND_NATS = 1e-4


def accepted(family: str, packed: bool) -> Policy | str:
    """The policy of FAMILY as setting a run up judges it: itself, or why it is refused."""
    try:
        if packed:
            known = packing.known_architecture(AutoModelForCausalLM, config := tiny_config(family))
            assert known is not None
            packing.refuse_packing(known, config, packing.ACTOR)
        model = tiny_model(family, attention.NAME if packed else None)
        policy, alone = Policy(model, 1.0, packed, False), Policy(model, 1.0, False, False)
        trial = packing.trial_rows(VOCAB, (9, 10), "cpu")
        gaps = packing.read_gaps(lambda rows: policy(rows).log_probs, lambda rows: alone(rows).log_probs, trial)
        packing.judge(gaps, torch.float32, type(model).__name__, packing.ACTOR, packed)
    except UserError as error:
        return str(error)
    return policy


def row_by_row(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """Log-probabilities [B, R] of plain calls of MODEL, without mask and padding."""
    result = torch.zeros(batch["response_mask"].shape)
    for row, (ids, real, response) in enumerate(
        zip(batch["input_ids"], batch["attention_mask"], batch["response_mask"], strict=True)
    ):
        tokens, count = ids[real], int(response.sum())
        log_p = torch.log_softmax(model(tokens[None], use_cache=False).logits[0], dim=-1)[-count - 1 : -1]
        result[row, :count] = log_p.gather(-1, tokens[-count:, None])[:, 0]
    return result


@every(FAMILIES)
def test_packed_padded_and_alone_are_one_or_the_family_is_refused(family: str) -> None:
    attention.register()
    if family in NOT_TINY:
        return
    reads = {packed: accepted(family, packed) for packed in (True, False)}
    assert not any("\n" in refusal for refusal in reads.values() if isinstance(refusal, str))
    batch = random_batch(5, seed=4)
    with torch.no_grad():
        for packed, policy in reads.items():
            if isinstance(policy, Policy):
                truth = row_by_row(tiny_model(family), batch)
                found = policy(batch).log_probs
                gap = float((found - truth).abs()[batch["response_mask"]].max())
                assert gap < BOUND_NATS, f"{packed=}: {gap:.2g} nats"
            elif packed and isinstance(reads[False], Policy):
                assert "set actor_rollout_ref.model.use_remove_padding=false" in policy
    assert (family in PACKED.split()) <= isinstance(reads[True], Policy), reads[True]
    assert (family in MIXING.split()) <= isinstance(reads[True], str)


@every(sorted(NOT_TINY))
def test_a_family_that_is_left_out_cannot_be_made_or_read(family: str) -> None:
    with pytest.raises(Exception, match=r"."):
        row_by_row(tiny_model(family), random_batch(2, seed=4))


@pytest.mark.parametrize(
    "family", ["gpt_oss", "llama4", "llama4_text", "jetmoe", "granitemoe_swa", "minimax_m3_vl_text", "inkling_text"]
)
def test_mixtures_of_experts_are_refused_also_where_no_weight_is_renamed(family: str) -> None:
    with pytest.raises(UserError, match="mixture of experts") as error:
        check_names(tiny_model(family))
    assert "\n" not in str(error.value)


def saved(family: str, directory: Path) -> Path:
    """A model of FAMILY under DIRECTORY."""
    tiny_model(family).save_pretrained(directory / family)
    return directory / family


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("stablelm", "does not hand the borders of packed rows"),
        ("lfm2", r"carry one packed row into the next \(conv\)"),
        ("doge", "reads a packed row otherwise than alone"),
    ],
)
def test_setting_a_run_up_refuses_to_mix_rows_and_takes_them_padded(family: str, why: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path)
    fix = r".* set actor_rollout_ref\.model\.use_remove_padding=false$"
    with pytest.raises(UserError, match=why + fix), scenes.worker(make_config(model)):
        pass
    config = make_config(model, packed=False)
    batch = random_batch(4, seed=5)
    with scenes.worker(config) as worker, torch.no_grad():
        found = worker.log_probs(batch)["old_log_probs"]
        alone = torch.stack(
            [worker.log_probs({k: v[i : i + 1] for k, v in batch.items()})["old_log_probs"][0] for i in range(4)]
        )
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["stablelm", "doge"])
def test_a_critic_of_another_family_is_refused_by_its_own_key(family: str, models: Path, tmp_path: Path) -> None:
    config = make_config(models / "qwen2", critic={"model": {"path": str(saved(family, tmp_path))}})
    fix = r"set critic\.model\.use_remove_padding=false$"
    with pytest.raises(UserError, match=fix), scenes.worker(config):
        pass


def test_a_model_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    config = make_config(saved("bert", tmp_path), packed=False)
    with pytest.raises(UserError, match="lets a token see later ones"), scenes.worker(config):
        pass


def test_what_shares_weights_is_no_layer_of_its_own() -> None:
    """BERT's embeddings must not be split either, and are tied to its head: in a group of their own they would part."""
    model = tiny_model("bert")
    assert "BertEmbeddings" in set(model._no_split_modules or ())
    assert {type(layer).__name__ for layer in decoder_layers(model)} == {"BertLayer"}


def test_rows_without_borders_and_without_a_mask_are_refused() -> None:
    attention.register()
    policy = Policy(tiny_model("moshi", attention.NAME), 1.0, True, False)
    with pytest.raises(UserError, match=r"not told where packed rows begin.*use_remove_padding=false"):
        policy(random_batch(3, seed=6))
