"""Healthy steps made by plain torch have no difference; each fault planted in one is named at its link, first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlcheck.facts.capsule import CapsuleRow, Origin
from rlcheck.facts.step import LINKS, CapsuleProof, StepFacts
from rltrain.proof.plugin import run
from tests.trainer.proof.make import make
from tests.trainer.proof.plan import Plan

HEALTHY = {
    "grpo": Plan(),
    "grpo, no std, 2 ranks": Plan(by_std=False, ranks=2, step=2, temperature=0.6),
    "gae": Plan(estimator="gae", ranks=2, minis=2, step=3, kl_reward="k3", entropy=0.01, temperature=0.7),
    "rloo, gspo": Plan(estimator="rloo", ranks=2, step=3, kl_loss="k3", mode="gspo", agg="seq-mean-token-mean"),
    "reinforce++, epochs": Plan(
        estimator="reinforce_plus_plus", step=12, minis=2, epochs=2, shuffle=True, rollout_is="token", mode="cispo",
        agg="seq-mean-token-sum-norm",
    ),
    "baseline": Plan(
        estimator="reinforce_plus_plus_baseline", rollout_is="sequence", agg="seq-mean-token-sum", kl_loss="k2"
    ),
    "remax": Plan(estimator="remax", n=1, prompts=8),
    "moments that cancel": Plan(
        estimator="reinforce_plus_plus_baseline", ranks=3, step=5, seed=966984, entropy=0.01, kl_loss="k1",
        kl_reward="k3", mode="cispo", agg="seq-mean-token-sum", shuffle=True, rollout_is="sequence", lr=1e-6,
    ),
    "bypass": Plan(bypass="ppo_clip", rollout_rs="seq_mean_k1", rollout_rs_threshold="0.99_1.01", entropy=0.01),
    "critic's warm-up": Plan(estimator="gae", n=1, prompts=8, critic_warmup=2),
}  # fmt: skip


def proven(place: Path, plan: Plan) -> CapsuleProof:
    make(place, plan)
    found = msgspec.convert(run({"capsules": [str(place)], "checkpoint": None}, lambda _: None), StepFacts)
    assert found.failure is None, found.failure
    return found.capsules[0]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_step_has_no_difference(tmp_path: Path, name: str) -> None:
    proof = proven(tmp_path / "step_1", HEALTHY[name])
    assert [link.name for link in proof.links] == list(LINKS)
    assert not [link for link in proof.links if link.status == "differs"]
    unknown = [link for link in proof.links if link.status == "unknown"]
    assert not unknown, unknown
    assert proof.proven_rows == proof.rows


def rows_with(**changed: Any) -> Callable[[list[CapsuleRow]], list[CapsuleRow]]:
    return lambda rows: [msgspec.structs.replace(row, **{k: v(row) for k, v in changed.items()}) for row in rows]


def fields_with(
    name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda fields: {**fields, name: change(fields[name])}


def without_first(held: dict[str, str]) -> dict[str, str]:
    name = next(iter(held))
    return {**held, name: held[name][:-1] + ("0" if held[name][-1] != "0" else "1")}


def other_file(origin: Origin) -> Origin:
    """A file that holds one tensor otherwise than the model that was loaded from it."""
    name = next(name for name in origin.tensors if "mlp" in name)
    return msgspec.structs.replace(origin, tensors={**origin.tensors, name: "float32[1]:0"})


PLAIN, CRITIC = Plan(step=3), Plan(estimator="gae", step=3)
KL = Plan(step=3, kl_loss="k3", entropy=0.05, ranks=2)
# name: the link, the plan, hooks, words of a cause
FAULTS: dict[str, tuple[str, Plan, dict[str, Any], str]] = {
    "prompts of the first step": ("prompts", PLAIN, {"order": lambda order: order[::-1]}, "another order"),
    "a token short": (
        "prompt-ids", PLAIN, {"rows": rows_with(prompt_ids=lambda row: row.prompt_ids[:-1])}, "last token",
    ),
    "the engine makes another temperature of it": (
        "sampling", PLAIN, {"made_of": lambda made: {**made, "temperature": 0.9}}, "",
    ),
    "the engine has a setting of its own": ("sampling", PLAIN, {"made_of": lambda made: {**made, "min_p": 0.1}}, ""),
    "the policy was loaded wrongly": ("start-weights", Plan(), {"origin_actor": other_file}, ""),
    "the critic was loaded wrongly": (
        "start-weights", Plan(estimator="gae"), {"origin_critic": other_file}, "",
    ),
    "the reference is another model": ("reference-log-probs", KL, {"origin_reference": other_file}, ""),
    "a pass gives less": (
        "gradient", KL, {"rank_norm": lambda _: lambda rank, norm: norm * (0.5 if rank else 1)}, "",
    ),
    "one seed for a group": ("sampling", PLAIN, {"rows": rows_with(seed=lambda _: 7)}, "one seed for all"),
    "asked at temperature 0.9": ("sampling", PLAIN, {"temperature": lambda _: 0.9}, ""),
    "old weights in the engine": ("engine-weights", PLAIN, {"held_before": without_first}, ""),
    "ended without an end": ("answers", PLAIN, {"rows": rows_with(finish_reason=lambda _: "stop")}, ""),
    "text cut": ("answers", PLAIN, {"rows": rows_with(text=lambda row: row.text[:-1])}, "last character was cut"),
    "engine's log-probs of T": (
        "engine-log-probs", Plan(step=3, temperature=0.7),
        {"rows": rows_with(log_probs=lambda row: tuple(0.7 * x for x in row.log_probs)),
         "fields": fields_with("rollout_log_probs", lambda x: 0.7 * x)}, "",
    ),
    "old log-probs at 1": (
        "old-log-probs", Plan(step=3, temperature=0.7), {"actor_temperature": lambda _: 1.0}, "temperature 1",
    ),
    "old log-probs a token late": ("old-log-probs", PLAIN, {"old_log_probs": lambda x: x.roll(1, 1)}, "one token"),
    "old log-probs of neighbours": ("old-log-probs", PLAIN, {"old_log_probs": lambda x: x.roll(1, 0)}, "row before"),
    "reference in bfloat16": (
        "reference-log-probs", KL, {"ref_log_probs": lambda x: x.bfloat16().float()}, "rounded to bfloat16",
    ),
    "values shifted": ("values", CRITIC, {"values": lambda x: x.roll(-1, 1)}, "one token later"),
    "one minus the reward": (
        "rewards", PLAIN, {"parts": lambda parts: {"digits": 1 - parts["digits"], "short": parts["short"]}}, "",
    ),
    "score without a part": ("rewards", PLAIN, {"score": lambda score: score * 0.5}, "times 0.5"),
    "lam": ("advantages", CRITIC, {"lam": lambda _: 1.0}, "lam 1"),
    "advantages negated": ("advantages", PLAIN, {"advantages": lambda x: -x}, "opposite sign"),
    "advantages by a thousandth": ("advantages", PLAIN, {"advantages": lambda x: x * 1.001}, "1.001"),
    "KL coefficient": (
        "advantages", Plan(estimator="gae", kl_reward="k1"), {"kl_coef": lambda _: 0.2}, "coefficient of 0.2",
    ),
    "rows twice": ("update-rows", PLAIN, {"minis": lambda minis: [[0, *mini[1:-1], 0] for mini in minis]}, ""),
    "ranks exchanged": ("update-rows", KL, {"dealt": lambda ranks: ranks[::-1]}, ""),
    "update at another temperature": (
        "update-log-probs", PLAIN, {"update_log_probs": lambda x: x * 1.01}, "",
    ),
    "loss negated": ("loss", PLAIN, {"loss_advantages": lambda x: -x}, "opposite sign"),
    "entropy counts twice": ("loss", KL, {"entropy_coeff": lambda _: 0.1}, "entropy_coeff 0.1"),
    "a rank is lost": (
        "gradient", KL, {"rank_factor": lambda _: lambda rank: 0.0 if rank == 1 else 1.0}, "rank 1",
    ),
    "twice the gradient": ("gradient", KL, {"gradient": lambda _: lambda _, g: 2 * g}, "times 2, the number of ranks"),
    "not clipped": ("clip", PLAIN, {"clip": lambda _: lambda norm: 1.0}, "not clipped"),
    "norm of a rank": ("clip", KL, {"norm": lambda norm: norm / 2**0.5}, "one rank"),
    "moments lost": ("optimizer", PLAIN, {"moments": lambda _: False}, "state was not restored"),
    "learning rate": ("optimizer", PLAIN, {"used_lr": lambda lr: 0.5 * lr}, "learning rate of 0.0004"),
    "a schedule of another length": ("optimizer", PLAIN, {"total_steps": lambda _: 40}, ""),
    "no decay": ("optimizer", PLAIN, {"decay": lambda _: 0.0}, "no weight decay"),
    "learning rate of several steps": (
        "optimizer", Plan(step=3, minis=2), {"used_lr": lambda lr: 0.5 * lr}, "",
    ),
    "the state is emptied after several steps": (
        "optimizer", Plan(step=3, minis=2), {"ended": lambda _: lambda optimizer: optimizer.state.clear()}, "",
    ),
    "engine keeps a tensor": ("engine-after", PLAIN, {"held_after": without_first}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_at_its_link(tmp_path: Path, name: str) -> None:
    link, plan, hooks, cause = FAULTS[name]
    proof = proven(tmp_path / "step_3", replace(plan, hooks=hooks))
    first = next((each for each in proof.links if each.status == "differs"), None)
    assert first is not None
    assert first.name == link, first
    assert first.said
    assert any(cause in each for each in first.causes) or not cause, first


def test_every_link_has_a_fault() -> None:
    assert {link for link, *_ in FAULTS.values()} == set(LINKS)


def test_a_large_model_is_proven_with_its_checkpoint(tmp_path: Path) -> None:
    """Of each tensor 40 numbers are kept: without the weights forward passes are unknown, with them nothing differs."""
    place = make(tmp_path / "step_3", PLAIN)
    weights = load_file(place / "weights.safetensors")
    saved = {name.partition("/")[2]: tensor for name, tensor in weights.items() if name.startswith("actor.before/")}
    (tmp_path / "checkpoint").mkdir()
    save_file(saved, tmp_path / "checkpoint" / "model.safetensors")
    save_file({name: tensor.flatten()[:40].clone() for name, tensor in weights.items()}, place / "weights.safetensors")
    head = msgspec.json.decode((place / "capsule.json").read_bytes())
    (place / "capsule.json").write_bytes(msgspec.json.encode({**head, "tensors": "the first 40 numbers of each"}))
    for checkpoint, known in ((None, False), (str(tmp_path / "checkpoint"), True)):
        found = run({"capsules": [str(place)], "checkpoint": checkpoint}, lambda _: None)
        links = {link["name"]: link for link in found["capsules"][0]["links"]}
        assert not [link for link in links.values() if link["status"] == "differs"]
        for name in ("engine-log-probs", "old-log-probs", "update-log-probs", "gradient"):
            assert (links[name]["status"] == "same") is known, links[name]
        assert links["optimizer"]["status"] == "same"


@pytest.mark.parametrize(("off", "status"), [(1 - 1.287e-5, "same"), (1 + 2e-4, "differs")])
def test_betas_in_float32_are_no_fault(tmp_path: Path, off: float, status: str) -> None:
    """torch's fused AdamW on a GPU has 1 - 0.999 off by 1.3e-5 of itself."""
    place = tmp_path / "step_1"
    make(place, Plan(minis=1, epochs=1))
    for file in place.glob("*.safetensors"):
        held = load_file(file)
        changed = {n: t * off if n.startswith("actor.exp_avg_sq.after/") else t for n, t in held.items()}
        save_file(changed, file)
    found = msgspec.convert(run({"capsules": [str(place)], "checkpoint": None}, lambda _: None), StepFacts)
    assert found.failure is None, found.failure
    assert {link.name: link.status for link in found.capsules[0].links}["optimizer"] == status


@pytest.mark.parametrize("honest", [True, False])
def test_what_is_rejected_is_judged_and_left_out_of_the_loss(tmp_path: Path, honest: bool) -> None:
    """Old log-probabilities are off, as of other weights: their link says so, the later ones are judged."""

    def off(old: torch.Tensor) -> torch.Tensor:
        places = torch.arange(old.shape[1])[None, :] == torch.arange(len(old))[:, None] % 7
        return old - torch.where(places, 0.4, 0.02)

    plan = Plan(
        rollout_is="token", rollout_is_threshold="0.7_1.2", rollout_rs="token_k1,seq_max_k3",
        rollout_rs_threshold="1.3,0.5", hooks={"old_log_probs": off} | ({} if honest else {"kept": torch.ones_like}),
    )  # fmt: skip
    links = {link.name: link for link in proven(tmp_path / "step_1", plan).links}
    assert links["old-log-probs"].status == "differs"
    assert (links["advantages"].status == "same") is honest
    assert honest or "kept against rollout_rs=token_k1,seq_max_k3" in links["advantages"].said
    for name in ("update-rows", "update-log-probs", "loss", "gradient", "optimizer"):
        assert links[name].status == "same", links[name]


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("level", ["token", "sequence", None])
def test_the_correction_of_a_bypass_is_in_the_loss(tmp_path: Path, honest: bool, level: str | None) -> None:
    """Engine and actor differ; the update itself weighs and rejects by what it reads."""

    def off(engine: torch.Tensor) -> torch.Tensor:
        return engine - torch.linspace(0.0, 0.3, engine.numel()).view(engine.shape)

    wrong: dict[str, Any] = {} if honest else {"bypass_weights": lambda _: torch.full((), 0.7)}
    plan = Plan(
        bypass="reinforce", rollout_is=level, rollout_is_threshold=1.2, rollout_rs="token_k1,seq_mean_k2",
        rollout_rs_threshold="1.25,0.02", minis=2, agg="seq-mean-token-mean", hooks={"engine": off} | wrong,
    )  # fmt: skip
    links = {link.name: link for link in proven(tmp_path / "step_1", plan).links}
    for name in ("old-log-probs", "advantages", "update-rows", "update-log-probs"):
        assert links[name].status == "same", links[name]
    for name in ("loss", "gradient", "optimizer"):
        assert (links[name].status == "same") is honest or name != "loss", links[name]


def test_rows_that_no_token_reaches_widen_no_bound(tmp_path: Path) -> None:
    """An embedding most of whose rows have no gradient has learnt a fiftieth less than it should."""
    place = make(tmp_path / "step_1", Plan(estimator="gae", minis=2))
    weights = load_file(place / "weights.safetensors")
    before, after = (weights[f"critic.{when}/backbone.embed_tokens.weight"] for when in ("before", "after"))
    weights["critic.after/backbone.embed_tokens.weight"] = before + 0.98 * (after - before)
    save_file(weights, place / "weights.safetensors")
    found = run({"capsules": [str(place)], "checkpoint": None}, lambda _: None)
    link = next(link for link in found["capsules"][0]["links"] if link["status"] == "differs")
    assert link["name"] == "optimizer"
    assert link["where"][0].startswith("weights of backbone.embed_tokens.weight")
