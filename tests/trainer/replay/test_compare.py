"""Two capsules of one step: equal ones agree in every link, and what is changed by one bit is named first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from rlcheck.facts.capsule import OutputsRecord
from rltrain.measure.replay.compare import compare, not_finite
from rltrain.measure.replay.read import Kept, read
from rltrain.workers.fsdp.outputs import NOT_FINITE
from tests.trainer.proof.make import make
from tests.trainer.proof.plan import Plan

MODULES = ("model.embed_tokens", "model.layers.0.mlp.up_proj", "model.layers.0", "model.layers.1.mlp.up_proj",
           "model.layers.1", "model.norm", "lm_head")  # fmt: skip
LINKS = ["weights", "outputs", "old-log-probs", "reference-log-probs", "critic-outputs", "values", "advantages",
         "critic-update", "critic-loss", "critic-gradient", "critic-norm", "critic-further", "critic-after",
         "update", "loss", "gradient", "norm", "further", "after", "answers"]  # fmt: skip
WEIGHT = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    plan = Plan(estimator="gae", ranks=2, minis=2, step=3, kl_loss="k3", prompts=4)
    found = read(make(tmp_path_factory.mktemp("capsule") / "step_3", plan))
    outputs = tuple(
        OutputsRecord(role=role, rank=rank, digests={name: f"{role}{rank}{name}" for name in MODULES})
        for role in ("actor", "critic")
        for rank in (0, 1)
    )
    return replace(found, head=msgspec.structs.replace(found.head, outputs=outputs))


def copied(kept: Kept) -> Kept:
    return replace(kept, batch={k: v.clone() for k, v in kept.batch.items()},
                   weights={k: v.clone() for k, v in kept.weights.items()})  # fmt: skip


def ulp(tensor: torch.Tensor) -> None:
    """Move the middle number by one unit in its last place."""
    flat = tensor.view(-1)
    at = int(flat.abs().argmax())
    flat[at] = torch.nextafter(flat[at], torch.tensor(float("inf")))


def in_weights(key: str) -> Callable[[Kept], Kept]:
    def plant(kept: Kept) -> Kept:
        ulp(kept.weights[key])
        return kept

    return plant


def in_batch(key: str) -> Callable[[Kept], Kept]:
    def plant(kept: Kept) -> Kept:
        ulp(kept.batch[key])
        return kept

    return plant


def output(role: str, rank: int, module: str) -> Callable[[Kept], Kept]:
    def plant(kept: Kept) -> Kept:
        names = MODULES[MODULES.index(module) :]  # a fault goes on into all that follows
        outputs = tuple(
            msgspec.structs.replace(one, digests={**one.digests, **dict.fromkeys(names, "other")})
            if (one.role, one.rank) == (role, rank)
            else one
            for one in kept.head.outputs
        )
        return replace(kept, head=msgspec.structs.replace(kept.head, outputs=outputs))

    return plant


def mini(role: str, number: int, change: Callable[[Any], Any]) -> Callable[[Kept], Kept]:
    def plant(kept: Kept) -> Kept:
        minis = list(getattr(kept.head, role))
        minis[number] = change(minis[number])
        return replace(kept, head=msgspec.structs.replace(kept.head, **{role: tuple(minis)}))

    return plant


def other_loss(record: Any) -> Any:
    first = record.micro_batches[-1]
    terms = {**first.terms, "loss": first.terms["loss"] + 1e-9}
    changed = msgspec.structs.replace(first, terms=terms)
    return msgspec.structs.replace(record, micro_batches=(*record.micro_batches[:-1], changed))


def other_norm(record: Any) -> Any:
    return msgspec.structs.replace(record, grad_norm=record.grad_norm * (1 + 1e-9))


def other_answer(kept: Kept) -> Kept:
    row = kept.rows[2]
    assert row.response_ids is not None
    ids = (*row.response_ids[:-1], row.response_ids[-1] + 1)
    rows = (*kept.rows[:2], msgspec.structs.replace(row, response_ids=ids), *kept.rows[3:])
    return replace(kept, rows=rows)


# What is planted, the link that must be the first, and words that must name it.
PLANTED: dict[str, tuple[Callable[[Kept], Kept], str, str]] = {
    "weight": (in_weights(f"actor.before/{WEIGHT}"), "weights", WEIGHT),
    "moment": (in_weights(f"actor.exp_avg_sq.before/{WEIGHT}"), "weights", f"actor.exp_avg_sq.before of {WEIGHT}"),
    "forward": (output("actor", 1, "model.layers.1.mlp.up_proj"), "outputs", "model.layers.1.mlp.up_proj"),
    "old": (in_batch("old_log_probs"), "old-log-probs", "old_log_probs"),
    "reference": (in_batch("ref_log_probs"), "reference-log-probs", "ref_log_probs"),
    "critic's forward": (output("critic", 0, "model.layers.0"), "critic-outputs", "model.layers.0"),
    "values": (in_batch("values"), "values", "values"),
    "advantages": (in_batch("advantages"), "advantages", "advantages"),
    "critic's update": (in_batch("critic.0/vpreds"), "critic-update", "vpreds"),
    "critic's loss": (mini("critic", 0, other_loss), "critic-loss", "rank 1"),
    "critic's gradient": (in_weights("critic.gradient/head.linear.weight"), "critic-gradient", "head.linear.weight"),
    "critic's norm": (mini("critic", 0, other_norm), "critic-norm", "grad_norm"),
    "critic's second": (mini("critic", 1, other_loss), "critic-further", "mini batch 1"),
    "critic's end": (in_weights("critic.after/head.linear.weight"), "critic-after", "head.linear.weight"),
    "update": (in_batch("actor.0/log_probs"), "update", "log_probs of the actor's mini batch 0"),
    "loss": (mini("actor", 0, other_loss), "loss", "loss of pass"),
    "gradient": (in_weights(f"actor.gradient/{WEIGHT}"), "gradient", WEIGHT),
    "norm": (mini("actor", 0, other_norm), "norm", "grad_norm"),
    "second": (in_batch("actor.1/log_probs"), "further", "mini batch 1"),
    "end": (in_weights(f"actor.exp_avg.after/{WEIGHT}"), "after", f"actor.exp_avg.after of {WEIGHT}"),
    "answers": (other_answer, "answers", "row 2"),
}


def test_a_step_is_equal_to_itself_in_every_link(kept: Kept) -> None:
    links = compare(kept, copied(kept))
    assert [link.name for link in links] == LINKS
    assert {link.status for link in links} == {"same"}
    assert all(link.compared for link in links)


@pytest.mark.parametrize("name", PLANTED)
def test_one_bit_is_named(kept: Kept, name: str) -> None:
    plant, wanted, words = PLANTED[name]
    first = next(link for link in compare(kept, plant(copied(kept))) if link.status == "differs")
    assert first.name == wanted, first
    assert words in first.said, first


def test_every_link_is_planted() -> None:
    assert {link for _, link, _ in PLANTED.values()} == set(LINKS)


def test_one_ulp_is_counted_and_placed(kept: Kept) -> None:
    found = in_weights(f"actor.before/{WEIGHT}")(copied(kept))
    first = compare(kept, found)[0]
    place = (kept.weights[f"actor.before/{WEIGHT}"] != found.weights[f"actor.before/{WEIGHT}"]).nonzero()[0].tolist()
    assert "1 of 1536 numbers differ, by 1 ulp at most" in first.said
    assert first.where == (f"actor.before of {WEIGHT}, {place}",)
    assert first.largest is not None
    assert 0 < first.largest < 1e-6


def test_the_last_tensor_in_forward_order_is_the_first_of_the_gradient(kept: Kept) -> None:
    found = copied(kept)
    for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"):
        ulp(found.weights[f"actor.gradient/{name}"])
    first = next(link for link in compare(kept, found) if link.status == "differs")
    assert first.said.startswith("actor.gradient of model.layers.1.mlp.up_proj.weight")


def test_minus_zero_and_nan_are_bits(kept: Kept) -> None:
    one, other = copied(kept), copied(kept)
    one.batch["old_log_probs"][0, 0] = other.batch["old_log_probs"][0, 0] = float("nan")
    assert all(link.status == "same" for link in compare(one, other))
    other.batch["old_log_probs"][0, 0] = 1.0
    first = next(link for link in compare(one, other) if link.status == "differs")
    assert "not finite" in first.said
    one.batch["old_log_probs"][0, 0], other.batch["old_log_probs"][0, 0] = 0.0, -0.0
    assert any(link.status == "differs" for link in compare(one, other))


def test_what_is_missing_or_of_another_shape_differs(kept: Kept) -> None:
    found = copied(kept)
    del found.weights[f"actor.after/{WEIGHT}"]
    assert any("none comes now" in link.said for link in compare(kept, found) if link.status == "differs")
    found = copied(kept)
    found.batch["values"] = found.batch["values"][:, :2].clone()
    assert any("[16, 2] comes now" in link.said for link in compare(kept, found) if link.status == "differs")


def test_the_first_number_that_is_not_finite_is_named(kept: Kept) -> None:
    assert not_finite(kept) == ""
    found = copied(kept)
    found.weights[f"actor.gradient/{WEIGHT}"][0, 0] = float("inf")
    found.weights[f"actor.after/{WEIGHT}"][0, 0] = float("nan")
    assert not_finite(found) == f"actor.gradient of {WEIGHT}"
    names = {"model.layers.0": f"0123{NOT_FINITE}", "lm_head": f"4567{NOT_FINITE}"}
    outputs = (OutputsRecord(role="actor", rank=1, digests={"model.embed_tokens": "01", **names}),)
    found = replace(found, head=msgspec.structs.replace(found.head, outputs=outputs))
    assert not_finite(found) == "the output of model.layers.0 on rank 1"


def test_a_capsule_that_is_read_twice_is_the_same(kept: Kept, tmp_path: Path) -> None:
    shutil.copytree(kept.path, tmp_path / "step_3")
    assert all(link.status == "same" for link in compare(read(kept.path), read(tmp_path / "step_3")))
