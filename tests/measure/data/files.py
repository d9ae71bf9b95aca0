"""Rows, files and surveys for the tests of this directory."""

from __future__ import annotations

import json
from pathlib import Path

from rlcheck.facts.config import ConfigFacts, DataSpec, RewardSpec, RoleSpec, RunSpec
from rlcheck.facts.data import DataFacts
from rlcheck.measure.data.plan import Plan, Wanted, make_plan
from rlcheck.measure.data.survey import Survey, survey

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def row(number: int = 0, **changes) -> dict:
    usual = {
        "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
        "data_source": "sums",
        "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
    }
    return {name: value for name, value in {**usual, **changes}.items() if value != "LEFT OUT"}


def say(content: str) -> list[dict]:
    return [{"role": "user", "content": content}]


def truth(value: object) -> dict:
    return {"reward_model": {"style": "rule", "ground_truth": value}}


def lines(path: Path, *rows: object) -> Path:
    """A file of these; bytes and text as they are."""
    parts = [r if isinstance(r, bytes) else r.encode() if isinstance(r, str) else json.dumps(r).encode() for r in rows]
    path.write_bytes(b"\n".join(parts) + b"\n")
    return path


def config(framework: str = "rltrain", rules: tuple = ({"kind": "exact"},), **data) -> ConfigFacts:
    spec = RunSpec(
        actor=RoleSpec(name="actor"),
        data=DataSpec(**{"train_batch_size": 1, **data}),
        reward=RewardSpec(rules=rules if framework == "rltrain" else ()),
    )
    return ConfigFacts(framework=framework, source="run.yaml", spec=spec)


def planned(*paths: Path, run: ConfigFacts | None = None, val: tuple[Path, ...] = (), tokenizer: object = "") -> Plan:
    wanted = Wanted(tuple(map(str, paths)), tuple(map(str, val)), str(tokenizer))
    return make_plan(wanted, run)


def surveyed(plan: Plan) -> Survey:
    return survey(plan, (), lambda _: None)


def found(*paths: Path, **more) -> DataFacts:
    return surveyed(planned(*paths, **more)).facts


def kinds(facts: DataFacts) -> dict[str, int]:
    return {trouble.kind: trouble.count for trouble in facts.troubles}


def make_tokenizer(directory: Path, template: str | None = TEMPLATE) -> Path:
    """Byte-level, without merges: a token for each byte, and one for each special word."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={mark: number for number, mark in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>",
                                        additional_special_tokens=["<|im_start|>"])  # fmt: skip
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory
