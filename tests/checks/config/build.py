"""Facts of a run config, built by hand: what the cases of family CFG are made of."""

from __future__ import annotations

from typing import Any

import msgspec

from rlcheck.facts.base import Fact, known
from rlcheck.facts.config import ConfigFacts, KeyProblem, ModelFacts, PathFacts, Place, RoleSpec, RolloutSpec, RunSpec
from rlcheck.facts.document import Facts

CRITIC = RoleSpec(name="critic", mini_batch_size=256, micro_batch_size=4)
REF = RoleSpec(name="ref", trained=False, infer_micro_batch_size=4)
HEALTHY = RunSpec(
    gpus_per_node=8,
    actor=RoleSpec(name="actor", mini_batch_size=256, micro_batch_size=4, infer_micro_batch_size=4),
    critic=CRITIC,
    rollout=RolloutSpec(tensor_parallel=2),
    total_steps=100,
)
QWEN = ModelFacts(
    path="Qwen/Qwen2.5-7B-Instruct",
    source="/models/qwen/config.json",
    sizes={
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "num_hidden_layers": 28,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    },
)


def spec(changes: dict[str, Any] | None = None, base: RunSpec = HEALTHY) -> RunSpec:
    """`base` with fields replaced by their dotted paths: `{"actor.micro_batch_size": 3, "critic": None}`.

    A change below a role that is None starts from that role's usual values.
    """
    result: Any = base
    for path, value in (changes or {}).items():
        result = _with(result, path.split("."), value)
    return result


def _with(struct: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if rest:
        below = getattr(struct, name)
        value = _with(RoleSpec(name=name) if below is None else below, rest, value)
    return msgspec.structs.replace(struct, **{name: value})


def place(line: int = 0, column: int = 1, *, file: str = "run.yaml", text: str = "") -> Place:
    """A line of a file, or an override if `text` is given."""
    return Place(text=text) if text else Place(file=file, line=line, column=column)


def run_facts(
    spec_changes: dict[str, Any] | None = None,
    *,
    framework: str = "verl",
    version: str = "0.9.1",
    values: dict[str, Any] | None = None,
    given: dict[str, Place] | None = None,
    problems: tuple[KeyProblem, ...] = (),
    models: dict[str, ModelFacts | Fact[ModelFacts]] | None = None,
    paths: tuple[PathFacts, ...] = (),
    num_gpus: int | None = None,
    **more: Any,
) -> ConfigFacts:
    """A healthy PPO run on eight GPUs of one node, changed by `spec_changes` (see `spec`).

    `models` by role, plain or as facts; `num_gpus` that this machine shows (None: it was not looked).
    """
    facts: dict[str, Fact[ModelFacts]] = {
        role: model if isinstance(model, Fact) else known(model) for role, model in (models or {}).items()
    }
    return ConfigFacts(
        framework=framework,
        version=version,
        source="run.yaml",
        spec=spec(spec_changes),
        values=values or {},
        given=given or {},
        problems=problems,
        models=facts,
        paths=paths,
        num_gpus=Fact() if num_gpus is None else known(num_gpus),
        **more,
    )


def facts(spec_changes: dict[str, Any] | None = None, **more: Any) -> Facts:
    """A facts document with nothing but a run config in it; arguments as `run_facts`."""
    return Facts(config=known(run_facts(spec_changes, **more)))
