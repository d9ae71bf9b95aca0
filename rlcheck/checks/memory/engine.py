"""Whether the rollout engine has enough memory, and leaves enough to the training."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.facts.base import need
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MemoryProfile
from rlcheck.measure.config import fields
from rlcheck.measure.memory.summary import AWAKE, FEW_SEQUENCES, UPDATES, gib, held_by, wanted_sequences

_KEPT, _TIGHT = 0.1, 0.9
"""Share of the GPU from which on an engine that stays awake is worth a word, and share in use from which it hurts."""


def _sequence(run: ConfigFacts) -> int:
    """Tokens of the longest sequence that the engine may see."""
    data = run.spec.data
    return data.max_prompt_length + data.max_response_length


def _share_line(run: ConfigFacts) -> str:
    share = run.spec.rollout.memory_utilization
    key, place = fields.key_of(run, "rollout.memory_utilization"), fields.place_of(run, "rollout.memory_utilization")
    return f"{place}: {key}: the engine's share of the GPU is {share:g}"


def _overrides(memory: MemoryProfile) -> dict[str, str]:
    """What to type for a larger cache, worked out for this run."""
    change = memory.more_cache
    return {"overrides": " ".join(change.overrides)} if change is not None and change.overrides else {}


def _too_little(memory: MemoryProfile) -> tuple[str, ...]:
    change = memory.more_cache
    short = change is not None and not change.fits
    return ("no change of the engine alone is enough; the fix gives the most that fits",) if short else ()


@check("MEM004", "The KV cache holds at least one sequence", needs=("memory", "config"), playbook="kv-cache-too-small",
       problem="The KV cache does not hold one sequence")  # fmt: skip
def cache_holds_a_sequence(facts: Facts) -> Verdict:
    """
    What it does:
        Takes the engine's weights and its working memory off its share of the GPU and looks whether the rest holds
        the keys and values of one sequence of full length.

    Why it matters:
        The engine refuses to start: it must be able to serve at least one request of the greatest length.
    """
    memory, run = need(facts.memory), need(facts.config)
    if memory.limits.kv_tokens < 0 or memory.limits.concurrent_sequences < 0:
        return skip("this engine keeps no cache of its own")
    if memory.limits.concurrent_sequences >= 1:
        return passed(f"{memory.limits.kv_tokens:,} tokens")
    verdict = fail if memory.exact and not memory.not_measured else warn
    longest = run.spec.rollout.max_model_len or _sequence(run)
    return verdict(
        f"room for one sequence of the engine's greatest length, {longest:,} tokens",
        f"room for {memory.limits.kv_tokens:,} tokens",
        details=(_share_line(run), *_too_little(memory)),
        evidence=(evidence("memory.limits.kv_tokens", memory.limits.kv_tokens, "prediction"),),
        params=_overrides(memory),
    )


@check(
    "MEM005",
    "The KV cache holds enough sequences at a time",
    needs=("memory", "config"),
    playbook="kv-cache-too-small",
    caused_by=("MEM004",),
    problem="The KV cache holds few sequences at a time",
)
def cache_holds_enough(facts: Facts) -> Verdict:
    """
    What it does:
        Counts how many sequences of full length the KV cache holds, and compares it with what one engine gets in a
        step.

    Why it matters:
        With a few sequences at a time the GPU waits for memory, and the engine preempts and computes again.
        Rollout takes most of a step, so this is felt.
    """
    memory, run = need(facts.memory), need(facts.config)
    many, wanted = memory.limits.concurrent_sequences, wanted_sequences(run)
    if many < 1:
        return skip("this engine keeps no cache of its own" if many < 0 else "not even one sequence fits (MEM004)")
    if many >= min(FEW_SEQUENCES, wanted):
        return passed(f"{many} sequences of full length at a time; one engine gets {wanted} in a step")
    return warn(
        f"room for at least {min(FEW_SEQUENCES, wanted)} sequences of {_sequence(run):,} tokens",
        f"room for {many}, and one engine gets {wanted} in a step",
        details=(_share_line(run), *_too_little(memory)),
        evidence=(evidence("memory.limits.concurrent_sequences", many, "prediction"),),
        params=_overrides(memory),
    )


@check("MEM006", "Engine and training fit beside each other", needs=("memory", "config"),
       playbook="engine-share-of-gpu",
       problem="Engine and training do not fit beside each other")  # fmt: skip
def engine_leaves_room(facts: Facts) -> Verdict:
    """
    What it does:
        Looks whether the engine's share of the GPU, together with what training leaves there while the engine is
        awake, is more than the GPU has.

    Why it matters:
        The share counts the whole GPU, other processes included: the engine finds less free memory than it was
        promised, and ends when it starts or wakes.
    """
    memory, run = need(facts.memory), need(facts.config)
    awake = [phase for phase in memory.phases if phase.name in AWAKE]
    if not awake:
        return skip("this run has no rollout engine")
    fullest = max(awake, key=lambda phase: phase.num_bytes)
    share, most = run.spec.rollout.memory_utilization, memory.limits.memory_utilization
    if fullest.needed_bytes <= memory.usable_bytes:
        return passed(f"{gib(fullest.num_bytes)} of {gib(memory.usable_bytes)} in {fullest.name}")
    verdict = fail if memory.exact and not memory.not_measured else warn
    lower = fields.override(run, "rollout.memory_utilization", most) if 0 < most < share else ""
    residue = fullest.num_bytes - held_by(fullest, "rollout")
    return verdict(
        f"at most {gib(memory.usable_bytes)} while the engine is awake",
        f"{gib(fullest.num_bytes)} in {fullest.name}: {gib(residue)} of it are not the engine's",
        details=(_share_line(run), *((f"the largest share that fits: {lower}",) if lower else ())),
        evidence=(evidence("memory.phases", fullest.num_bytes, "prediction"),),
        params={"overrides": lower} if lower else {},
    )


@check("MEM007", "The engine gives its memory back to training", needs=("memory", "config"),
       playbook="engine-share-of-gpu",
       problem="The engine keeps memory that training needs")  # fmt: skip
def engine_sleeps(facts: Facts) -> Verdict:
    """
    What it does:
        Looks whether a rollout engine on the training GPUs keeps its weights and cache during the updates.

    Why it matters:
        The cache is empty of use then, and its memory is lacking for larger micro batches.
    """
    memory, run = need(facts.memory), need(facts.config)
    updates = [phase for phase in memory.phases if phase.name in UPDATES and phase.pool == "train"]
    if not run.spec.colocated or not updates:
        return skip("the engine has GPUs of its own" if updates else "nothing is trained on a GPU")
    kept, where = max(((held_by(phase, "rollout"), phase) for phase in updates), key=lambda pair: pair[0])
    if run.spec.rollout.sleeps or kept < _KEPT * memory.gpu_bytes:
        return passed(f"it keeps {gib(kept)} during {where.name}")
    change = fields.override(run, "rollout.sleeps", True)
    proof = (evidence("memory.phases", kept, "prediction"),)
    if where.num_bytes <= _TIGHT * memory.usable_bytes:
        said = f"the engine keeps {gib(kept)} of {gib(memory.gpu_bytes)} during {where.name}; {change} gives it back"
        return info(said, evidence=proof)
    return warn(
        "an engine that sleeps while the actor trains",
        f"{gib(kept)} kept during {where.name}, which needs {gib(where.num_bytes)} of {gib(memory.usable_bytes)}",
        evidence=proof,
        params={"overrides": change},
    )
