"""What one generation of TRL's GRPOTrainer and its optimizer steps are made of, noted while they run."""

# What trainers have is typed by nothing that is imported here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rlcheck.capsules.write import Array, padded
from rlcheck.facts.capsule import CapsuleRow

WHOLE_NUMBERS = 10_000_000
"""Weights, moments, gradient and reference are kept whole up to so many numbers together; of more, the first
`ELEMENTS` of each tensor."""
ELEMENTS = 4096
_COPIES = 8
_DTYPES = {"float32": "F32", "float64": "F64", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "int32": "I32",
           "uint8": "U8", "bool": "BOOL"}  # fmt: skip
_TRUTHS = ("ground_truth", "answer", "solution", "label")
"""Columns of a data set that hold the right answer, where one of them is there."""


@dataclass
class Pass:
    """One forward and backward pass: rows of the capsule, and what was read of them."""

    rows: list[int]
    fields: dict[str, list[list[float]]]
    loss: float | None = None


@dataclass
class Mini:
    """One optimizer step."""

    passes: list[Pass] = field(default_factory=list[Pass])
    grad_norm: float | None = None
    lr: float = 0.0
    adam_steps: int | None = None
    applied: bool = True


class Record:
    """One capsule in the making. `step`: the first optimizer step that learns from the generation."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.step = trainer, int(trainer.state.global_step) + 1
        self.minis: list[Mini] = []
        self.rows: list[CapsuleRow] = []
        self.weights: dict[str, Any] = {}
        self.metrics: dict[str, float | None] = {}
        self.missing: list[str] = []
        self.grad_norm: float | None = None
        self._fields: dict[str, list[list[float]]] = {}
        self._trained: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._open = Mini()
        self._scored: tuple[Any, ...] = ()
        self._rate, self._count = 0.0, None
        self._named = self._parameters()
        whole = sum(p.numel() for p in self._named.values()) * _COPIES <= WHOLE_NUMBERS
        self._elements = None if whole else ELEMENTS
        self.tensors = "all" if whole else f"the first {ELEMENTS} numbers of each"
        if trainer.accelerator.num_processes > 1:
            self.missing.append(f"rows of {trainer.accelerator.num_processes - 1} other processes")
        self._keep_all("before", trainer.optimizer)
        reference = getattr(trainer, "ref_model", None)
        if reference is not None and self._named:
            self._keep("reference", dict(trainer.accelerator.unwrap_model(reference).named_parameters()))

    def _parameters(self) -> dict[str, Any]:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        sharded = str(self.trainer.accelerator.distributed_type).rpartition(".")[2] in ("DEEPSPEED", "FSDP")
        if sharded or getattr(model, "peft_config", None) is not None:
            self.missing.append("weights: they are sharded" if sharded else "weights: PEFT adapters")
            return {}
        return {name: p for name, p in model.named_parameters() if p.requires_grad}

    def _keep(self, moment: str, tensors: Mapping[str, Any]) -> None:
        for name, tensor in tensors.items():
            kept = tensor.detach() if self._elements is None else tensor.detach().flatten()[: self._elements]
            self.weights[f"{moment}/{name}"] = kept.to("cpu", copy=True)

    def _keep_all(self, when: str, optimizer: Any) -> None:
        self._keep(f"actor.{when}", self._named)
        state = {} if optimizer is None else optimizer.state
        for moment in ("exp_avg", "exp_avg_sq"):
            found = {name: state[p][moment] for name, p in self._named.items() if moment in state.get(p, {})}
            self._keep(f"actor.{moment}.{when}", found)

    # A generation

    def scored(self, inputs: Any, prompts: Any, completions: Any, ids: Any, found: Any) -> None:
        """Note what reward functions took and gave; FOUND `[all rows, functions]`."""
        self._scored = (list(prompts), list(completions), [list(map(int, one)) for one in ids], _listed(found), inputs)

    def generated(self, output: Mapping[str, Any]) -> int:
        """Add the rows of OUTPUT; returns the number of the first."""
        trainer, first = self.trainer, len(self.rows)
        prompts, completions, ids, parts, inputs = self._scored
        count, names = len(prompts), list(trainer.reward_func_names)
        start = int(trainer.accelerator.process_index) * count
        weights, per = _listed(trainer.reward_weights), int(trainer.num_generations)
        prompt_ids = _rows(output["prompt_ids"], output["prompt_mask"])
        for at in range(count):
            of_row = {name: value for name, value in zip(names, parts[start + at], strict=True) if value == value}
            score = sum(w * value for w, value in zip(weights, parts[start + at], strict=True) if value == value)
            self.rows.append(_row(first + at, per, prompts[at], completions[at], prompt_ids[at], ids[at],
                                  inputs[at], of_row, score, self.step))  # fmt: skip
        mask = output["completion_mask"]
        self._trained += zip(prompt_ids, _rows(output["completion_ids"], mask), strict=True)
        self._note("response_mask", mask, output.get("tool_mask"))
        for name, own in (("old_per_token_logps", "old_log_probs"), ("ref_per_token_logps", "ref_log_probs"),
                          ("sampling_per_token_logps", "rollout_log_probs")):  # fmt: skip
            if name in output:
                self._note(own, output[name])
        advantages = output["advantages"]
        self._fields.setdefault("advantages", []).extend(
            [value] * len(answer) if not isinstance(value, list) else value
            for value, answer in zip(_listed(advantages), ids, strict=True)
        )
        noted = getattr(trainer, "_metrics", {}).get("train", {}).get("reward")
        self.metrics["reward"] = float(noted[-1]) if noted else None
        return first

    def _note(self, name: str, tensor: Any, times: Any = None) -> None:
        found = tensor if times is None else tensor * times
        self._fields.setdefault(name, []).extend(_listed(found))

    # An optimizer step

    def pass_begins(self, inputs: Mapping[str, Any]) -> None:
        """Note what a pass was given."""
        rows = [int(row) for row in _listed(inputs["rlcheck_rows"])]
        mask = inputs["completion_mask"]
        fields = {"mask": _listed(mask if "tool_mask" not in inputs else mask * inputs["tool_mask"]),
                  "responses": _listed(inputs["completion_ids"])}  # fmt: skip
        advantages, wide = _listed(inputs["advantages"]), len(fields["mask"][0])
        fields["advantages"] = [one if isinstance(one, list) else [one] * wide for one in advantages]
        self._open.passes.append(Pass(rows, fields))

    def read(self, log_probs: Any, entropies: Any) -> None:
        """Note what the open pass's forward pass gave."""
        self._open.passes[-1].fields["log_probs"] = _listed(log_probs)
        if entropies is not None:
            self._open.passes[-1].fields["entropys"] = _listed(entropies)

    def pass_ends(self, loss: Any) -> None:
        """Note the loss that is sent backward."""
        self._open.passes[-1].loss = float(loss.detach())

    def gradient_ready(self) -> None:
        """Keep the first optimizer step's gradient, before the clip."""
        if self.minis or any(name.startswith("actor.gradient/") for name in self.weights):
            return
        if getattr(self.trainer.accelerator, "scaler", None) is not None:
            self.missing.append("the gradient: it is scaled, as float16 needs it")
            return
        self._keep("actor.gradient", {name: p.grad for name, p in self._named.items() if p.grad is not None})

    def before_optimizer(self, optimizer: Any) -> None:
        """Note the learning rate and Adam's count."""
        self._rate = float(optimizer.param_groups[0]["lr"])
        counts = [optimizer.state[p]["step"] for p in self._named.values() if "step" in optimizer.state.get(p, {})]
        self._count = int(counts[0]) if counts else None

    def mini_ends(self, skipped: bool) -> None:
        """Close the open optimizer step."""
        mini, self._open = self._open, Mini()
        mini.grad_norm, mini.lr, mini.adam_steps, mini.applied = self.grad_norm, self._rate, self._count, not skipped
        self.grad_norm = None
        self.minis.append(mini)

    def ends(self, optimizer: Any) -> None:
        """Keep weights and moments after the last optimizer step."""
        self._keep_all("after", optimizer)

    def rows_and_batch(self) -> tuple[list[CapsuleRow], dict[str, Array]]:
        """The rows, and the batch `[B, …]`, padded to the widest of all generations."""
        wide = max((len(mask) for mask in self._fields["response_mask"]), default=0)
        most = max(len(prompt) for prompt, _ in self._trained)
        every = [(most - len(prompt), prompt, answer) for prompt, answer in self._trained]
        batch = {
            "input_ids": padded([[0] * pad + [*p, *a] for pad, p, a in every], "I32", most + wide),
            "attention_mask": padded([[0] * pad + [1] * (len(p) + len(a)) for pad, p, a in every], "U8", most + wide),
            "response_mask": padded(self._fields.pop("response_mask"), "U8", wide),
        }
        batch |= {name: padded(values, "F32", wide) for name, values in self._fields.items()}
        for number, mini in enumerate(self.minis):
            for name in dict.fromkeys(name for one in mini.passes for name in one.fields):
                cells: list[Sequence[float]] = [()] * len(self.rows)
                for one in mini.passes:
                    for row, values in zip(one.rows, one.fields.get(name, ()), strict=False):
                        cells[row] = values[:wide]
                kind = {"mask": "U8", "responses": "I32"}.get(name, "F32")
                batch[f"actor.{number}/{name}"] = padded(cells, kind, wide)
        return self.rows, batch


def array_of(tensor: Any) -> Array:
    """A torch tensor on the host, without torch's own functions: its memory as it is."""
    flat = tensor.contiguous()
    data = ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())
    return Array(_DTYPES[str(flat.dtype).rpartition(".")[2]], tuple(flat.shape), data)


def _listed(tensor: Any) -> list[Any]:
    return tensor.detach().float().cpu().tolist() if tensor.is_floating_point() else tensor.detach().cpu().tolist()


def _rows(ids: Any, mask: Any) -> list[tuple[int, ...]]:
    pairs = zip(_listed(ids), _listed(mask), strict=True)
    return [tuple(one for one, real in zip(row, marks, strict=True) if real) for row, marks in pairs]


def _row(number: int, per: int, prompt: Any, completion: Any, prompt_ids: tuple[int, ...], ids: Sequence[int],
         given: Mapping[str, Any], parts: dict[str, float], score: float, step: int) -> CapsuleRow:  # fmt: skip
    chat = isinstance(prompt, list)
    messages: list[Any] = prompt if isinstance(prompt, list) else []
    said: list[Any] = completion if isinstance(completion, list) else []
    text = "".join(str(one.get("content") or "") for one in said) if chat else str(completion)
    columns = {key: value for key, value in given.items() if key not in ("prompt", "completion", "completion_ids")}
    return CapsuleRow(
        uid=f"{step}-{number // per}",
        index=number // per,
        sample=number % per,
        data_source="",
        messages=tuple({str(key): str(value) for key, value in one.items()} for one in messages),
        prompt_text="" if chat else str(prompt),
        prompt_ids=prompt_ids,
        text=text,
        ground_truth=next((_jsonable(columns[name]) for name in _TRUTHS if name in columns), None),
        extra_info={key: _jsonable(value) for key, value in columns.items()},
        reward_parts=parts,
        score=score,
        response_ids=tuple(ids),
    )


def _jsonable(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError):
        return str(value)[:1000]
