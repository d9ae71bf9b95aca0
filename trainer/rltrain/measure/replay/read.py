"""Reads a step capsule for running it again. What is damaged is an error of one line."""

# Safetensors is typed in part.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rlcheck.capsules.write import MOST_BYTES
from rlcheck.facts.capsule import SCHEMA, Capsule, CapsuleRow
from rltrain.core.batch import FIELDS, Batch, Sample
from rltrain.core.errors import UserError, first_line

WEIGHTS = "weights.safetensors"
_FILES = ("capsule.json", "rows.jsonl", "batch.safetensors", WEIGHTS)
_MADE_LATER = ("old_log_probs", "entropys", "ref_log_probs", "values", "token_level_rewards", "rollout_is_weights",
               "rollout_rs_kept", "advantages", "returns")  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """One capsule in memory."""

    path: Path
    head: Capsule
    rows: tuple[CapsuleRow, ...]
    batch: dict[str, Tensor]
    weights: dict[str, Tensor]

    def experience(self) -> Batch:
        """What the step had when its answers were scored, and nothing that is computed from it.

        Raises:
            UserError: rows or fields are missing.
        """
        head = self.head
        if head.kept_rows is not None:
            raise UserError(
                f"{self.path} holds {len(self.rows)} of {head.rows} rows: a step is run again with all of them; "
                "keep one of a smaller batch"
            )
        samples = [
            Sample(
                uid=row.uid,
                index=row.index,
                sample=row.sample,
                data_source=row.data_source,
                prompt_text=row.prompt_text,
                messages=row.messages,
                response_text=row.text,
                ground_truth=row.ground_truth,
                extra_info=row.extra_info,
                prompt_ids=row.prompt_ids,
                reward_parts=row.reward_parts,
            )
            for row in self.rows
        ]
        try:
            fields = {
                name: tensor.to(FIELDS[name].dtype)
                for name, tensor in self.batch.items()
                if name in FIELDS and name not in _MADE_LATER
            }
            width = self.batch["input_ids"].shape[1] - self.batch["response_mask"].shape[1]
            return Batch.of(samples, fields | {"prompts": fields["input_ids"][:, :width]})
        except (KeyError, ValueError, IndexError, RuntimeError) as error:
            raise UserError(f"{self.path / 'batch.safetensors'} is no batch of a step: {first_line(error)}") from None


def read(path: Path) -> Kept:
    """The capsule in the directory PATH.

    Raises:
        UserError: it is none, damaged, or of another schema or trainer.
    """
    for name in _FILES:
        file = path / name
        if not file.is_file():
            raise UserError(f"{file} is missing: a step is run again from a capsule with weights")
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"{file} is larger than {MOST_BYTES >> 20} MB, as no capsule is")
    try:
        head = msgspec.json.decode((path / "capsule.json").read_bytes(), type=Capsule)
        lines = (path / "rows.jsonl").read_bytes().splitlines()
        rows = tuple(msgspec.json.decode(line, type=CapsuleRow) for line in lines)
        batch, weights = load_file(path / "batch.safetensors"), load_file(path / WEIGHTS)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError, SafetensorError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from None
    if head.schema != SCHEMA:
        raise UserError(f"{path}: schema {head.schema}, this rltrain reads {SCHEMA}")
    if head.trainer != "rltrain":
        raise UserError(f"{path} is a step of {head.trainer}: only rltrain's own steps can be run again")
    return Kept(path, head, rows, batch, weights)
