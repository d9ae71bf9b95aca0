"""`rlcheck step --again`: what cannot be run again is said in one line; what was run elsewhere is judged here."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rlcheck.facts.document import FactsFile
from tests.checks.step.cases import CHANGED, replayed
from tests.conftest import rlcheck
from tests.trainer.proof.make import make
from tests.trainer.proof.plan import Plan


def test_one_of_both_ways(tmp_path: Path) -> None:
    done = rlcheck("step", tmp_path, "--again", "--each-device")
    assert done.code == 2
    assert "give one of them" in done.err


def test_a_capsule_without_weights_says_so(tmp_path: Path) -> None:
    capsule = make(tmp_path / "step_1", Plan(prompts=1, n=2))
    (capsule / "weights.safetensors").unlink()
    done = rlcheck("step", capsule, "--again", timeout=300)
    assert done.code == 1
    assert "is missing: a step is run again from a capsule with weights" in " ".join(done.out.split())
    assert "Traceback" not in done.out + done.err


def test_a_record_of_a_replay_is_judged_elsewhere(tmp_path: Path) -> None:
    record = tmp_path / "facts.json"
    for facts, words, code in (
        (replayed(), (), 0),
        (replayed("gradient"), (), 1),
        (replayed("gradient", changed=CHANGED), (), 0),
        (replayed("gradient", changed=CHANGED), ("--strict",), 1),
    ):
        record.write_bytes(msgspec.json.encode(FactsFile(nodes=(facts,))))
        done = rlcheck("step", "--facts", record, *words)
        assert done.code == code, done.out
        assert ("gradient differs first" in " ".join(done.out.split())) is (facts != replayed())
