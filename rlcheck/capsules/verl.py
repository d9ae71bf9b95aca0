"""Makes capsules of verl's steps, for `rlcheck step`.

From what `trainer.rollout_data_dir` writes, without a line in verl: prompts, answers and scores as text.

    python -m rlcheck.capsules.verl ROLLOUT_DATA_DIR/5.jsonl CAPSULE --config outputs/DATE/TIME/.hydra/config.yaml

From the batch, with one line behind `compute_advantage` in a trainer of your own: tokens and advantages, too.

    from rlcheck.capsules.verl import keep
    keep(batch, "capsules/step_5", config=self.config, step=self.global_steps, tokenizer=self.tokenizer)

Read in verl 0.5.0, 0.6.1, 0.7.1, 0.8.0 and 0.9.1 (`_dump_generations`, `_log_rollout_data`, `DataProto`). Files of
`DataProto.save_to_disk` are pickles: reading one runs code, so none is read.
"""

# What trainers have is typed by nothing that is imported here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from rlcheck.capsules.trl_record import array_of
from rlcheck.capsules.write import Array, padded, write
from rlcheck.errors import UserError
from rlcheck.facts.capsule import SCHEMA, Capsule, CapsuleRow

_FIELDS = {"input_ids": "input_ids", "attention_mask": "attention_mask", "position_ids": "position_ids",
           "responses": "responses", "response_mask": "response_mask", "rollout_log_probs": "rollout_log_probs",
           "old_log_probs": "old_log_probs", "ref_log_prob": "ref_log_probs", "values": "values",
           "token_level_scores": "token_level_scores", "token_level_rewards": "token_level_rewards",
           "advantages": "advantages", "returns": "returns", "rollout_is_weights": "rollout_is_weights",
           "reward_baselines": "reward_baselines"}  # fmt: skip
"""Names of a `DataProto` and of a capsule."""
_DUMPED = ("input", "output", "gts", "score", "step", "uid", "request_id")


def from_dump(file: Path, directory: Path, config: Mapping[str, Any], data_source: str = "") -> Path:
    """A capsule at DIRECTORY of the rollout dump FILE, whose name is its step; returns it.

    Args:
        file: `STEP.jsonl` of `trainer.rollout_data_dir`.
        directory: of the capsule; one that is there is replaced.
        config: verl's, resolved.
        data_source: of all rows; a dump does not say it.

    Raises:
        UserError: FILE is no such dump.
    """
    rows, seen = list[CapsuleRow](), Counter[str]()
    for number, line in enumerate(_text(file).splitlines(), 1):
        given = _line(file, number, line)
        prompt = str(given["input"])
        extra = {key: value for key, value in given.items() if key not in _DUMPED}
        parts = {f"custom/{key}": float(value) for key, value in extra.items() if isinstance(value, (int, float))}
        index = list(seen).index(prompt) if prompt in seen else len(seen)
        rows.append(
            CapsuleRow(uid=f"{index}", index=index, sample=seen[prompt], data_source=data_source, messages=(),
                       prompt_text=prompt, prompt_ids=(), text=str(given["output"]), ground_truth=given.get("gts"),
                       extra_info={}, reward_parts={"custom": float(given["score"]), **parts},
                       score=float(given["score"]))
        )  # fmt: skip
        seen[prompt] += 1
    empty = padded([[] for _ in rows], "I32", 0)
    batch = {"input_ids": empty, "attention_mask": empty, "response_mask": empty}
    missing = ("tokens, log-probabilities, advantages and the update: a rollout dump has texts and scores alone",)
    step = int(file.stem) if file.stem.isdigit() else 0
    return write(directory, _head(config, step, len(rows), missing), rows, batch, {})


def keep(batch: Any, directory: str | Path, *, config: Any, step: int, tokenizer: Any = None) -> Path:
    """A capsule at DIRECTORY of BATCH, a `DataProto` after `compute_advantage`; returns it.

    Args:
        batch: what `fit` has then; its tensors are copied to the host.
        directory: of the capsule; one that is there is replaced.
        config: the trainer's, OmegaConf or plain.
        step: `global_steps`.
        tokenizer: decodes the answers, and is kept; without it no function can be run on texts.
    """
    tensors, others = batch.batch, batch.non_tensor_batch
    arrays: dict[str, Array] = {}
    names = {*tensors.keys()}  # a TensorDict knows no `in`
    for name, own in _FIELDS.items():
        if name in names:
            found = tensors[name].detach().to("cpu")
            if own != "position_ids" or found.ndim == 2:
                arrays[own] = array_of(found.clone())
    prompts, answers = _tokens(tensors)
    scores = tensors["token_level_scores"].sum(-1).tolist()
    uids = [str(uid) for uid in others.get("uid", range(len(prompts)))]
    order, seen, rows = {uid: at for at, uid in enumerate(dict.fromkeys(uids))}, Counter[str](), list[CapsuleRow]()
    for at, uid in enumerate(uids):
        truth = _of(others, "reward_model", at)
        text = "" if tokenizer is None else str(tokenizer.decode(answers[at], skip_special_tokens=True))
        rows.append(
            CapsuleRow(uid=uid, index=order[uid], sample=seen[uid], messages=(), prompt_text="",
                       data_source=str(_of(others, "data_source", at) or ""), prompt_ids=tuple(prompts[at]), text=text,
                       ground_truth=truth.get("ground_truth") if isinstance(truth, Mapping) else None,
                       extra_info=_plain(_of(others, "extra_info", at) or {}),
                       reward_parts={"custom": float(scores[at])}, score=float(scores[at]),
                       response_ids=tuple(answers[at]))
        )  # fmt: skip
        seen[uid] += 1
    missing = ("the update: the batch is of before it", *([] if tokenizer is not None else ["texts: no tokenizer"]))
    head = _head(_plain(config), step, len(rows), missing)
    return write(Path(directory), head, rows, arrays, {}, None if tokenizer is None else tokenizer.save_pretrained)


def _head(config: Mapping[str, Any], step: int, rows: int, missing: Sequence[str]) -> Capsule:
    model = _at(config, "actor_rollout_ref.model.path")
    described = Path(str(model)).expanduser() / "config.json"
    model_config: dict[str, Any] = {}
    if model and described.is_file():
        model_config = json.loads(described.read_text(encoding="utf-8"))
    return Capsule(schema=SCHEMA, trainer="verl", trainer_version="", step=step, total_steps=0, seed=0, world_size=1,
                   config=dict(config), versions={}, machine={}, rows=rows, model_config=model_config,
                   policy_version=max(step - 1, 0), missing=tuple(missing))  # fmt: skip


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def _tokens(tensors: Any) -> tuple[list[list[int]], list[list[int]]]:
    ids, real = tensors["input_ids"].tolist(), tensors["attention_mask"].bool().tolist()
    width = len(ids[0]) - tensors["responses"].shape[1]
    pairs = list(zip(ids, real, strict=True))
    return (
        [[one for one, is_real in zip(row[:width], marks[:width], strict=True) if is_real] for row, marks in pairs],
        [[one for one, is_real in zip(row[width:], marks[width:], strict=True) if is_real] for row, marks in pairs],
    )


def _of(others: Mapping[str, Any], name: str, at: int) -> Any:
    return others[name][at] if name in others else None


def _plain(value: Any) -> Any:
    """VALUE as JSON has it: OmegaConf's mappings and lists, numpy's numbers; the rest as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    item = getattr(value, "item", None)
    return _plain(item()) if callable(item) and not getattr(value, "ndim", 0) else str(value)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {error}; name a file of trainer.rollout_data_dir, such as 5.jsonl") from None


def _line(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line, type=dict[str, Any])
        found |= {"input": str(found["input"]), "output": str(found["output"]), "score": float(found["score"])}
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file}:{number}: no row of verl's rollout dump (input, output, score): {error}") from None
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Make a capsule from a dump; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rlcheck.capsules.verl", description=from_dump.__doc__)
    parser.add_argument("dump", type=Path)
    parser.add_argument("capsule", type=Path)
    parser.add_argument("--config", type=Path, help="verl's resolved config, such as .hydra/config.yaml of the run")
    parser.add_argument("--data-source", default="")
    asked = parser.parse_args(words)
    try:
        config: Any = {} if asked.config is None else yaml.safe_load(_text(asked.config))
        place = from_dump(asked.dump, asked.capsule, config if isinstance(config, dict) else {}, asked.data_source)
    except (UserError, OSError, ValueError, yaml.YAMLError) as error:
        sys.stderr.write(f"rlcheck: {' '.join(str(error).split())}\n")
        return 2
    sys.stdout.write(f"{place}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
