"""Names of operations, and listening to a model in this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlcheck.facts.drift import OperationGap
from rltrain.core.errors import UserError
from rltrain.measure.drift.operations import MOST_TOKENS, NUM_SAMPLED, compare, operations
from rltrain.tracing.listen import listening
from rltrain.tracing.names import expected, inputs, ordered
from rltrain.tracing.recorder import Recorder
from tests.trainer.workers.rollout.tiny import config_of, make_model


def test_order_and_inputs() -> None:
    known = expected(2, ["layers.0.q_norm"])
    assert ordered(sorted(known)) == known
    assert inputs("layers.0.input_layernorm", known, 2) == ("embed_tokens",)
    assert inputs("layers.1.attention_residual", known, 2) == ("layers.0.output", "layers.1.o_proj")
    assert inputs("norm", known, 2) == ("layers.1.output",)
    assert inputs("embed_tokens", known, 2) == ()


def test_what_is_not_known_stands_for_its_inputs() -> None:
    known = ["embed_tokens", "layers.0.q_proj", "layers.0.k_proj", "layers.0.attention", "logits"]
    assert inputs("layers.0.q_proj", known, 1) == ("embed_tokens",)
    assert inputs("layers.0.attention", known, 1) == ("layers.0.q_proj", "layers.0.k_proj", "embed_tokens")
    # Through norm, output, down_proj … up to what is there.
    assert inputs("logits", known, 1) == ("embed_tokens", "layers.0.attention")


@pytest.fixture
def model(tmp_path: Path) -> torch.nn.Module:
    make_model("qwen2", tmp_path)
    return AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()


def test_given_outputs_hide_what_came_before(model: torch.nn.Module, tmp_path: Path) -> None:
    """A layer's error is passed on; with the other side's outputs given, it shows at its own operation alone."""
    ids, files = torch.arange(2, 22)[None], [tmp_path / name for name in ("a", "b", "c")]
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    with torch.no_grad():
        with listening(model) as recorder:
            model(ids)
        recorder.save(files[0], 20)
        model.get_submodule("model.layers.0.self_attn.o_proj").weight.mul_(1.01)
        for file, given in ((files[1], None), (files[2], load_file(files[0]))):
            with listening(model, given) as recorder:
                model(ids)
            recorder.save(file, 20)
    gaps, missing = compare(*files)
    assert missing == ["log_probs"]
    assert [gap.name for gap in gaps if gap.input_equal and not gap.equal] == ["o_proj"]
    assert [(gap.layer, gap.name) for gap in gaps if gap.own_max_diff > 1e-6] == [
        (0, "o_proj"),
    ]
    assert gaps[-1].name == "logits"
    assert gaps[-1].mean_diff > 1e-4
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_dtypes_are_compared_in_the_finer_one(tmp_path: Path) -> None:
    values = torch.linspace(-3, 3, 50)[:, None]
    for name, tensor in (("a", values.bfloat16()), ("b", values.bfloat16().float()), ("c", values)):
        recorder = Recorder()
        recorder.add("embed_tokens", tensor)
        recorder.save(tmp_path / name, 50)
    assert compare(tmp_path / "a", tmp_path / "b")[0][0].equal
    [gap], missing = compare(tmp_path / "a", tmp_path / "c")
    assert not gap.equal
    assert 0 < gap.max_diff < 2**-7
    assert gap.own_max_diff is None
    assert missing == ["norm", "logits", "log_probs"]


def test_what_is_not_a_number_is_the_weights_fault(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", float("nan"))):
        recorder = Recorder()
        recorder.add("norm", torch.full((2, 3), value))
        recorder.save(tmp_path / name, 2)
    with pytest.raises(UserError, match="norm gives what is not a number on the training side: look at the weights"):
        compare(tmp_path / "a", tmp_path / "b")


class FakeCrew:
    """Engine and ranks that write what they are given."""

    def __init__(self, names: list[str], refusal: UserError | None = None) -> None:
        self.rollout = self.engine_group = self.train_group = self.workers = self
        self.events: list[str] = []
        self.prompt: list[int] = []
        self._names, self._refusal = names, refusal

    @contextmanager
    def phase(self) -> Generator[None]:
        self.events.append("awake")
        yield
        self.events.append("asleep")

    def all(self, method: str, prompt: list[int], num_tokens: int, file: str, **_: Any) -> list[list[int]]:
        assert method == "trace"
        self.prompt = prompt
        if self._refusal is not None:
            raise self._refusal
        self._write(file, 1.0)
        return [[*prompt, *range(num_tokens)]]

    def call(self, method: str, ids: list[int], file: str, given: str | None = None, *, doing: str) -> None:
        assert (method, len(ids)) == ("trace", len(self.prompt) + NUM_SAMPLED)
        self.events.append("alone" if given else "reads")
        self._write(file, 1.25 if given else 1.5)

    def _write(self, file: str, value: float) -> None:
        recorder = Recorder()
        for name in self._names:
            recorder.add(name, torch.full((3, 2), value))
        recorder.save(Path(file), 3)


def of_length(tmp_path: Path, max_model_len: int) -> Any:
    make_model("qwen2", tmp_path)
    return config_of(tmp_path, "hf", max_model_len=max_model_len, max_num_batched_tokens=4096)


def test_engine_first_then_both_readings_and_nothing_is_left_behind(tmp_path: Path) -> None:
    crew, notes = FakeCrew(["layers.0.q_proj", "logits"]), list[str]()
    found = operations(cast("Any", crew), of_length(tmp_path, 192), range(500), tmp_path / "new", notes)
    assert crew.events == ["awake", "asleep", "reads", "alone"]
    assert crew.prompt == list(range(MOST_TOKENS))
    assert [(gap.name, gap.layer) for gap in found] == [("q_proj", 0), ("logits", -1)]
    assert (found[0].max_diff, found[0].own_max_diff, found[0].scale) == (0.5, 0.25, 1.5)
    assert (found[0].input_equal, found[1].input_equal) == (True, False)
    # Of 15 in a layer, and 4 outside.
    assert notes[0].startswith("17 operations were not compared, as one side or both do not show them: embed_tokens, ")
    assert len(notes) == 1
    assert list((tmp_path / "new").iterdir()) == []
    msgspec.convert(found, list[OperationGap])


def test_a_refusal_puts_the_engines_to_sleep(tmp_path: Path) -> None:
    crew = FakeCrew([], UserError("cannot be listened to"))
    with pytest.raises(UserError, match="cannot be listened to"):
        operations(cast("Any", crew), of_length(tmp_path, 64), range(500), tmp_path)
    assert crew.events == ["awake", "asleep"]
    assert len(crew.prompt) == 64 - NUM_SAMPLED


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    config = of_length(tmp_path, 64)
    with pytest.raises(UserError, match=r"3 prompt tokens are too few .* raise actor_rollout_ref"):
        operations(cast("Any", FakeCrew([])), config, range(3), tmp_path)
    with pytest.raises(UserError, match="share none that is known"):
        operations(cast("Any", FakeCrew([])), config, range(30), tmp_path)
