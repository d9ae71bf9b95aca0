"""The capsule that a run keeps of its first step, and its proof: nothing differs; what is planted is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rlcheck.facts.step import LINKS
from tests.conftest import rlcheck
from tests.trainer.end_to_end.runs import Run

Tensors = dict[str, Any]
PROOF_S = 600


def chains(*capsules: Path) -> list[dict[str, dict[str, Any]]]:
    """What `rlcheck step` says of each link, by capsule."""
    record = capsules[0].parent / "proof-facts.json"
    rlcheck("step", *capsules, "--record", record, timeout=PROOF_S)
    proofs = json.loads(record.read_text())["nodes"][0]["step"]["value"]["capsules"]
    return [{link["name"]: link for link in proof["links"]} for proof in proofs]


@pytest.fixture(scope="module")
def capsule(whole: Run) -> Path:
    return whole.directory / "capsules" / "step_1"


def test_a_healthy_step_is_proven_link_by_link(whole: Run, capsule: Path) -> None:
    done = rlcheck("step", whole.directory, timeout=PROOF_S)
    assert done.code == 0, done.out
    assert "every link that could be judged is the same" in done.out
    proof = json.loads((capsule / "proof.json").read_text())
    status = {link["name"]: link["status"] for link in proof["links"]}
    assert set(status) <= set(LINKS)
    assert not [name for name, found in status.items() if found == "unknown"], status
    assert status["start-weights"] == "same"
    assert {"old-log-probs", "values", "rewards", "advantages", "gradient", "optimizer", "engine-after"} <= set(status)
    assert "Step 1 of rltrain" in rlcheck("run", whole.directory).out


def flipped(batch: Tensors, _weights: Tensors) -> None:
    batch["advantages"] = -batch["advantages"]


def cold(batch: Tensors, _weights: Tensors) -> None:
    batch["old_log_probs"] = batch["old_log_probs"] * 1.3


def still(_batch: Tensors, weights: Tensors) -> None:
    name = next(name for name in weights if name.startswith("actor.before/") and name.endswith("lm_head.weight"))
    weights[name.replace(".before/", ".after/")] = weights[name].clone()


@pytest.mark.parametrize(("plant", "link"), [(flipped, "advantages"), (cold, "old-log-probs"), (still, "optimizer")])
def test_what_is_planted_is_the_first_link_that_differs(
    capsule: Path, tmp_path: Path, plant: Callable[[Tensors, Tensors], None], link: str
) -> None:
    place = tmp_path / "step_1"
    shutil.copytree(capsule, place)
    batch, weights = (load_file(place / f"{name}.safetensors") for name in ("batch", "weights"))
    plant(batch, weights)
    save_file(batch, place / "batch.safetensors")
    save_file(weights, place / "weights.safetensors")
    (chain,) = chains(place)
    assert next(name for name in LINKS if chain.get(name, {}).get("status") == "differs") == link, chain
