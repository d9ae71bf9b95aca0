"""Micro batches of verl: each given once and in the form that its workers read; what goes with dynamic batches."""

from __future__ import annotations

from collections.abc import Iterator

from rlcheck.check import Verdict, check, unknown
from rlcheck.checks.config.say import Case, conclude, config_of, for_verl_alone
from rlcheck.facts.config import ConfigFacts, RoleSpec
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_legacy, is_verl, value, who, world_size

_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
_LOG_PROB = "log_prob_micro_batch_size"


def _names(run: ConfigFacts) -> Iterator[tuple[str, str, RoleSpec]]:
    """Each deprecated key, the key in its place, and the role whose micro batch it is; only where verl reads them."""
    spec = run.spec
    if not spec.actor.dynamic_batch:
        yield f"{_ACTOR}.ppo_micro_batch_size", f"{_ACTOR}.ppo_micro_batch_size_per_gpu", spec.actor
        yield f"{_ROLLOUT}.{_LOG_PROB}", f"{_ROLLOUT}.{_LOG_PROB}_per_gpu", spec.actor
        if spec.ref is not None:
            yield f"{_REF}.{_LOG_PROB}", f"{_REF}.{_LOG_PROB}_per_gpu", spec.ref
    if spec.critic is not None and not spec.critic.dynamic_batch:
        yield "critic.ppo_micro_batch_size", "critic.ppo_micro_batch_size_per_gpu", spec.critic


def once_cases(run: ConfigFacts) -> Iterator[Case]:
    """Each micro batch is given, once."""
    if not is_verl(run):
        return
    for old, new, role in _names(run):
        in_all, per_gpu = run.values.get(old), run.values.get(new)
        if in_all is None and per_gpu is None:
            words = f"a micro batch, or use_dynamic_bsz=True ({who(run)} refuses its own defaults here)"
            yield Case("fail", new, words, "none", role.micro_batch_size or 1)
        elif in_all is not None and per_gpu is not None:
            words = f"one of {old.rpartition('.')[2]} and …_per_gpu ({who(run)} refuses both)"
            yield Case("fail", old, words, f"{in_all} and {per_gpu}{_copied(run, old, new)}", "null")
        elif per_gpu is None:
            yield from _deprecated(run, old, new, in_all)


def _copied(run: ConfigFacts, old: str, new: str) -> str:
    """verl's critic copies the deprecated key into the new one, and refuses to find it in both."""
    return f"; {new} is copied from it, set that one alone" if old in run.given and new not in run.given else ""


def _deprecated(run: ConfigFacts, old: str, new: str, samples: object) -> Iterator[Case]:
    """The deprecated key alone: counted over all GPUs; the workers since 0.8 do not read it."""
    words = f"{new.rpartition('.')[2]}, samples per GPU"
    count = samples if isinstance(samples, int) else 0
    found = f"the deprecated key, {samples} over {world_size(run)} GPUs"
    fits = max(1, count // world_size(run))
    yield Case("warn" if is_legacy(run) or old.startswith(_REF) else "fail", old, words, found, fits, new)


@check("CFG012", "Each micro batch size is given once", needs=("config",), playbook="micro-batch-keys",
       problem="A micro batch size is missing or given twice")  # fmt: skip
def micro_batch_keys(facts: Facts) -> Verdict:
    """Looks at the two keys of verl for each micro batch: the deprecated one for all GPUs, and the one per GPU.

    What it does:
        Where batches are not dynamic, each of actor, rollout log-probs, reference log-probs and critic needs one of the
        two keys, and takes no more than one. rltrain has defaults of its own.

    Why it matters:
        verl refuses the config: "Please set at least one of …" or "You have set both …", one key at each launch. Its
        default config has none of these keys and is refused for it.
    """
    run = config_of(facts)
    if any(one.kind == "unresolved" and one.key.endswith("use_dynamic_bsz") for one in run.problems):
        return unknown("whether batches are dynamic is known to the shell alone")
    for_verl_alone(run)
    return conclude(run, list(once_cases(run)), "every micro batch is given, once")


def dynamic_cases(run: ConfigFacts) -> Iterator[Case]:
    """Dynamic batches are on for both kinds of passes, and padding is removed."""
    actor, rollout = run.spec.actor, f"{_ROLLOUT}.log_prob_use_dynamic_bsz"
    if is_verl(run) and value(run, rollout, actor.dynamic_batch) != actor.dynamic_batch:
        words = f"the same as actor.use_dynamic_bsz={actor.dynamic_batch}"
        severity = "warn" if is_legacy(run) else "fail"
        yield Case(severity, rollout, words, str(run.values[rollout]), actor.dynamic_batch)
    for role in (actor, run.spec.critic):
        if role is not None and role.dynamic_batch and not role.model.remove_padding:
            words = "use_remove_padding=True with dynamic batches, whose limit counts tokens without padding"
            severity = "fail" if run.framework == "rltrain" else "warn"
            yield Case(severity, f"{role.name}.model.remove_padding", words, "false", True)


@check("CFG013", "Dynamic batches are consistent", needs=("config",), playbook="fsdp-roles",
       problem="Settings of dynamic batches contradict each other")  # fmt: skip
def dynamic_batches(facts: Facts) -> Verdict:
    """Looks at what goes with use_dynamic_bsz.

    What it does:
        The actor's passes with gradient and those for log-probabilities must both be dynamic or both not (verl's engine
        workers assert it). With padding kept, the number of tokens in a pass says nothing about its memory.

    Why it matters:
        The assertion has no message, so a run stops at the start of its workers with a bare AssertionError. With
        padding kept the run goes out of memory at a limit that looked safe.
    """
    return conclude(run := config_of(facts), list(dynamic_cases(run)), "dynamic batches are used alike")
