"""The models of a run, role by role, with what is known of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from rlcheck.facts.base import Fact, Missing, MissingKind, why_missing
from rlcheck.facts.config import ConfigFacts, ModelFacts, RoleSpec, TokenizerFacts

# Sizes of multimodal models stand one level lower.
_NESTED = ("text_config", "llm_config", "language_config")
# What is not in the file system of this machine: other file systems, servers, modules of installed packages.
_REMOTE = ("hdfs://", "s3://", "gs://", "oss://", "abfss://", "https://", "http://", "pkg://")


class Role(NamedTuple):
    """A role of the run: its name, what the config asks for, and the facts of its model."""

    name: str
    spec: RoleSpec
    model: Fact[ModelFacts]


def roles(run: ConfigFacts) -> Iterator[Role]:
    """The roles that the run has, the actor first. The reference policy is the actor's model."""
    spec = run.spec
    for role in (spec.actor, spec.critic, spec.reward_model):
        if role is not None:
            # A critic without a path of its own is the actor's model with another head.
            shared = "actor" if role.name == "critic" and role.model.path is None else role.name
            yield Role(role.name, role, run.models.get(role.name, run.models.get(shared, Fact())))


def known_models(run: ConfigFacts) -> tuple[tuple[tuple[Role, ModelFacts], ...], Missing | None]:
    """The roles whose model's files are known, and why the first other one's are not: rather what was not looked at."""
    found = tuple((role, role.model.value) for role in roles(run) if why_unread(role) is None and role.model.value)
    lacking = [reason for role in roles(run) if (reason := why_unread(role)) is not None]
    lacking.sort(key=lambda reason: reason.kind is MissingKind.ABSENT)
    return found, lacking[0] if lacking else None


def why_unread(role: Role) -> Missing | None:
    """Why the files of ROLE's model are not known, whatever is known of its sizes."""
    return why_missing(role.model) if role.model.value is None else role.model.value.lacking


def tokenizer_of(model: ModelFacts) -> TokenizerFacts | None:
    """The tokenizer, None where it is not known."""
    return model.tokenizer.value


def size(model: ModelFacts, name: str) -> int:
    """A whole number of the model's config.json, also one level lower; 0 where there is none."""
    for sizes in (model.sizes, *(model.sizes.get(below) for below in _NESTED)):
        if isinstance(sizes, Mapping):
            value = cast("Mapping[str, Any]", sizes).get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return 0


def rough_parameters(model: ModelFacts) -> int:
    """Parameters to within a factor of two: 12 · layers · hidden² and the embeddings; 0 where sizes are missing."""
    hidden, layers, vocabulary = (size(model, name) for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
    return 12 * layers * hidden * hidden + 2 * vocabulary * hidden if hidden and layers else 0


def engine_words(run: ConfigFacts) -> Mapping[str, Any]:
    """What the config hands to the engine as it is: the arguments themselves, or below the engine's name."""
    rollout = run.spec.rollout
    below: Any = rollout.engine_kwargs.get(rollout.name)
    return cast("Mapping[str, Any]", below) if isinstance(below, Mapping) else rollout.engine_kwargs


def is_remote(path: str) -> bool:
    """Whether `path` is not in this machine's file system."""
    return path.startswith(_REMOTE)


def is_local(path: str) -> bool:
    """Whether `path` cannot be a name on the hub, which is NAME or OWNER/NAME."""
    return path.startswith(("/", "~", ".")) or path.count("/") > 1 or "\\" in path or path.endswith("/")
