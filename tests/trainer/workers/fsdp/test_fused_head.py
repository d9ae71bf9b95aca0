"""A head that is read by blocks gives what whole logits give, values and gradients, and holds a fraction of them."""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rlcheck.measure.memory.roles import RLTRAIN_BLOCK_ELEMENTS
from rltrain.workers.fsdp import fused_head, head_proof, packing
from rltrain.workers.fsdp.forward import Policy, token_stats
from rltrain.workers.fsdp.fused_head import BLOCK_ELEMENTS, Blocks, FusedHead, fused_stats
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.families import VOCAB, tiny_model
from tests.trainer.workers.fsdp.models import random_batch
from tests.trainer.workers.fsdp.test_equivalence import Metrics, agree

TOKENS, WIDTH, WORDS, TEMPERATURE = 50, 16, 301, 0.7
SIZES = [7, 400, 2000, 1 << 30]
"""Elements of a block: less than a token's, some tokens', some words' of all tokens, everything."""


def case(dtype: torch.dtype, seed: int = 0, biased: bool = True) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Hidden states, weight and bias; targets; gradients that come from the loss."""
    rng = torch.Generator().manual_seed(seed)
    shapes = [(TOKENS, WIDTH), (WORDS, WIDTH), (WORDS,)][: 3 if biased else 2]
    leaves = [torch.randn(shape, generator=rng).to(dtype).requires_grad_() for shape in shapes]
    grads = [torch.randn(TOKENS, generator=rng) for _ in range(2)]
    return leaves, torch.randint(0, WORDS, (TOKENS,), generator=rng), grads


def exact(leaves: list[Tensor], targets: Tensor, grads: list[Tensor], scale: float = 1.0) -> list[Tensor]:
    """Log-probabilities, entropies and gradients of LEAVES by the definition, in float64."""
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    logits = wide[0] @ wide[1].T + (wide[2] if len(wide) > 2 else 0.0)
    log_p = torch.log_softmax(logits * scale / TEMPERATURE, dim=-1)
    chosen, entropy = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    (chosen @ grads[0].double() + entropy @ grads[1].double()).backward()
    return [chosen.detach(), entropy.detach(), *(leaf.grad for leaf in wide if leaf.grad is not None)]


def fused(leaves: list[Tensor], targets: Tensor, grads: list[Tensor], blocks: Blocks) -> list[Tensor]:
    own = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    chosen, entropy = fused_stats(own[0], own[1], own[2] if len(own) > 2 else None, targets, blocks)
    assert entropy is not None
    (chosen @ grads[0] + entropy @ grads[1]).backward()
    return [chosen.detach(), entropy.detach(), *(leaf.grad for leaf in own if leaf.grad is not None)]


def plain(leaves: list[Tensor], targets: Tensor, grads: list[Tensor]) -> list[Tensor]:
    """As the logits are read where they exist whole."""
    own = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    chosen, entropy = token_stats(F.linear(own[0], own[1], own[2]), targets, TEMPERATURE, "learnt")
    assert entropy is not None
    (chosen @ grads[0] + entropy @ grads[1]).backward()
    return [chosen.detach(), entropy.detach(), *(leaf.grad for leaf in own if leaf.grad is not None)]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.0625])
@pytest.mark.parametrize("elements", SIZES)
def test_values_and_gradients_are_those_of_the_definition(elements: int, scale: float, biased: bool) -> None:
    leaves, targets, grads = case(torch.float32, biased=biased)
    found = fused(leaves, targets, grads, Blocks(scale, TEMPERATURE, True, elements))
    wanted = exact(leaves, targets, grads, scale)
    assert len(found) == len(wanted) == 4 + biased
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("elements", SIZES)
def test_in_bfloat16_it_is_as_near_to_the_definition_as_whole_logits_are(elements: int) -> None:
    leaves, targets, grads = case(torch.bfloat16)
    wanted = exact(leaves, targets, grads)
    blocks = Blocks(1.0, TEMPERATURE, True, elements)
    for one, whole, other in zip(
        fused(leaves, targets, grads, blocks), plain(leaves, targets, grads), wanted, strict=True
    ):
        gap, usual = ((each.double() - other).square().mean().sqrt() for each in (one, whole))
        assert gap < 1.3 * usual + 1e-3


def test_blocks_of_tokens_are_summed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_head, "BLOCK_TOKENS", 8)
    leaves, targets, grads = case(torch.float32)
    blocks = Blocks(1.0, TEMPERATURE, True, 800)
    assert [len(pieces) for _, pieces in blocks.of(TOKENS, WORDS)] == [7] * 4
    for one, other in zip(fused(leaves, targets, grads, blocks), exact(leaves, targets, grads), strict=True):
        torch.testing.assert_close(one.double(), other, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("wanted", ["log p", "entropy"])
def test_a_loss_of_one_of_the_two_is_right_as_well(wanted: str) -> None:
    leaves, targets, grads = case(torch.float32)
    grads[wanted == "log p"].zero_()
    own = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    chosen, entropy = fused_stats(own[0], own[1], own[2], targets, Blocks(1.0, TEMPERATURE, True, 400))
    assert entropy is not None
    (chosen @ grads[0] if wanted == "log p" else entropy @ grads[1]).backward()
    for leaf, other in zip(own, exact(leaves, targets, grads)[2:], strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad.double(), other, atol=3e-5, rtol=1e-5)


def test_what_is_frozen_gets_no_gradient() -> None:
    leaves, targets, grads = case(torch.float32)
    hidden, weight, bias = leaves[0], leaves[1].detach(), leaves[2].detach()
    chosen, entropy = fused_stats(hidden, weight, bias, targets, Blocks(1.0, TEMPERATURE, False, 400))
    assert entropy is None
    (chosen @ grads[0]).backward()
    grads[1].zero_()
    torch.testing.assert_close(hidden.grad.double(), exact(leaves, targets, grads)[2], atol=3e-5, rtol=1e-5)  # pyright: ignore[reportOptionalMemberAccess]


def test_a_distribution_on_one_token_keeps_its_small_entropy() -> None:
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[40.0], [28.0], [20.0], [-60.0]])
    _, entropy = fused_stats(hidden, weight, None, torch.tensor([0]), Blocks(1.0, 1.0, True, 2))
    log_p = torch.log_softmax(weight.double()[:, 0], dim=0)
    assert entropy is not None
    assert float(entropy) == pytest.approx(float(-(log_p.exp() * log_p).sum()), abs=2e-7)


def test_large_logits_do_not_overflow() -> None:
    hidden = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.tensor([[-3e4], [3e4], [2.9e4]])
    chosen, entropy = fused_stats(hidden, weight, None, torch.tensor([2]), Blocks(1.0, 1.0, True, 2))
    assert entropy is not None
    (chosen + entropy).sum().backward()
    assert float(chosen.detach()) == -1000.0
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())


# Models


def policies(family: str, scale: float | None = None) -> tuple[Policy, FusedHead | str]:
    """The policy of a tiny model of FAMILY, and what the trial makes of its head."""
    torch.manual_seed(0)
    model = tiny_model(family).eval()
    if scale is not None:
        model.config.logits_scaling = scale
    policy = Policy(model, TEMPERATURE, False, False)
    rows, _ = packing.trial_rows(VOCAB, (9, 10), "cpu")
    return policy, head_proof.proven(policy, rows, 1e-4)


@pytest.mark.parametrize(
    ("family", "scale"), [("qwen2", 1.0), ("gemma3_text", 1.0), ("opt", 1.0), ("cohere2", 0.0625), ("granite", 0.125)]
)
def test_a_models_gradients_are_those_of_whole_logits(family: str, scale: float) -> None:
    policy, head = policies(family, 8.0 if family == "granite" else None)
    assert isinstance(head, FusedHead), head
    assert head.scale == pytest.approx(scale)
    batch = random_batch(4, seed=9)
    weights = torch.randn(batch["response_mask"].shape, generator=torch.Generator().manual_seed(1))
    found: list[list[Tensor]] = []
    for one in (policy, replace(policy, head=replace(head, block=500)), replace(policy, head=head)):
        policy.model.zero_grad()
        stats = one(batch, "learnt")
        assert stats.entropys is not None
        ((stats.log_probs + 0.1 * stats.entropys) * weights * batch["response_mask"]).sum().backward()
        grads = [weight.grad.clone() for weight in policy.model.parameters() if weight.grad is not None]
        found.append([stats.log_probs.detach(), stats.entropys.detach(), *grads])
    for blocks, small, whole in zip(found[1], found[2], found[0], strict=True):
        torch.testing.assert_close(blocks, whole, atol=2e-4, rtol=1e-4)
        if scale == 1.0:
            assert torch.equal(small, whole), "few logits are read whole, to the bit"


@pytest.mark.parametrize(
    ("family", "why"), [("gemma2", "otherwise than by a factor"), ("recurrent_gemma", "otherwise than by a factor")]
)
def test_a_head_that_bends_its_logits_is_read_whole(family: str, why: str) -> None:
    _, found = policies(family)
    assert isinstance(found, str)
    assert why in found


def test_a_head_that_gives_other_numbers_by_blocks_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fused_head.fused_stats

    def off(hidden: Tensor, *rest: object) -> tuple[Tensor, Tensor | None]:
        log_p, entropy = real(hidden, *rest)  # pyright: ignore[reportArgumentType]
        return log_p + 1e-3, entropy

    monkeypatch.setattr(fused_head, "fused_stats", off)
    _, found = policies("qwen2")
    assert isinstance(found, str)
    assert "read by blocks its log-probabilities are others (by 0.000" in found


def test_no_gradient_reaches_an_entropy_that_is_only_read() -> None:
    policy, head = policies("qwen2")
    assert isinstance(head, FusedHead)
    stats = replace(policy, head=replace(head, block=500))(random_batch(3, seed=2), "read")
    assert stats.entropys is not None
    stats.entropys.sum().backward()
    assert all(weight.grad is None or not weight.grad.any() for weight in policy.model.parameters())


# Runs


@pytest.fixture
def by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few tokens and words, which tiny models need as large ones need theirs."""
    made = head_proof.proven

    def small(*args: object) -> FusedHead | str:
        found = made(*args)  # pyright: ignore[reportArgumentType]
        return found if isinstance(found, str) else replace(found, block=200)

    monkeypatch.setattr(head_proof, "proven", small)


@pytest.mark.usefixtures("by_blocks")
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_training_steps_under_fsdp_are_those_of_whole_logits(single: Metrics, models: Path, packed: bool) -> None:
    config = make_config(models / "qwen2", packed=packed)
    with scenes.worker(config) as worker:
        facts = worker._facts()  # pyright: ignore[reportPrivateUsage]
        assert facts["whole_logits"] == {"actor": "", "ref": ""}
        agree(single[:4], scenes.Run(worker, config).steps(0, 4))


def test_it_can_be_turned_off(models: Path) -> None:
    config = make_config(models / "qwen2", model_keys={"use_fused_kernels": False})
    with scenes.worker(config) as worker:
        facts = worker._facts()  # pyright: ignore[reportPrivateUsage]
    assert facts["whole_logits"]["actor"] == "actor_rollout_ref.model.use_fused_kernels=false"


def test_the_doctor_counts_with_the_size_of_its_blocks() -> None:
    assert RLTRAIN_BLOCK_ELEMENTS == BLOCK_ELEMENTS


# Memory

PEAK = """
import json, sys, torch
from rltrain.workers.fsdp.forward import token_stats
from rltrain.workers.fsdp.fused_head import Blocks, fused_stats
tokens, words, width, by_blocks = (int(word) for word in sys.argv[1:])
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10
torch.set_num_threads(2)
hidden = torch.randn(tokens, width, requires_grad=True)
weight = torch.randn(words, width, requires_grad=True)
targets = torch.randint(0, words, (tokens,))
before = peak()
if by_blocks:
    log_p, _ = fused_stats(hidden, weight, None, targets, Blocks(1.0, 1.0, True, 1 << 22))
else:
    log_p, _ = token_stats(torch.nn.functional.linear(hidden, weight), targets, 1.0, "read")
log_p.sum().backward()
print(json.dumps(peak() - before))
"""


def peak_bytes(*numbers: int) -> int:
    """What a pass adds to the resident size of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, numbers)], capture_output=True, text=True, timeout=300, check=True
    )
    return json.loads(done.stdout)


def test_logits_never_exist_whole() -> None:
    tokens, words, width = 4096, 40_000, 32
    logits = 4 * tokens * words
    assert peak_bytes(tokens // 4, words, width, 0) > 3 * logits / 4
    assert peak_bytes(tokens, words, width, 1) < logits / 2, "blocks of 16 MiB, and what torch itself takes"
