"""Batches: a step's samples over the GPUs, mini batches over the ranks, micro batches over a mini batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlcheck.check import Verdict, check
from rlcheck.checks.config.say import Case, conclude, config_of, name_of
from rlcheck.facts.config import ConfigFacts, RoleSpec
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import (
    data_parallel,
    is_legacy,
    is_v1,
    is_verl,
    nearest_divisor,
    next_multiple,
    samples_per_step,
    stops,
    trained,
    value,
    who,
    whole,
    world_size,
)

_PROMPTS = "data.train_batch_size"


def step_cases(run: ConfigFacts) -> Iterator[Case]:
    """A step's samples fall evenly on the ranks."""
    samples, actor, world = samples_per_step(run), run.spec.actor, world_size(run)
    if not samples or run.framework == "rltrain":  # rltrain deals out what is uneven
        return
    sharding, n = actor.sharding, max(1, run.spec.rollout.n)
    if sharding.strategy == "megatron":
        model = sharding.tensor_parallel * sharding.pipeline_parallel * sharding.context_parallel
        if world % max(1, model):
            words = f"tensor × pipeline × context parallel = {model} to divide the {world} GPUs"
            yield Case("fail", "actor.sharding.tensor_parallel", words, f"a rest of {world % model}")
            return
        parts = data_parallel(run, actor) * (1 if actor.dynamic_batch else actor.micro_batch_size or 1)
    else:
        # verl counts all GPUs here, also those that share a sequence.
        parts = world if is_verl(run) and not actor.dynamic_batch else data_parallel(run, actor)
    if samples % parts and not (is_v1(run) and actor.dynamic_batch):
        fits = next_multiple(run.spec.data.train_batch_size, parts // math.gcd(parts, n))
        words = f"a number of samples that {parts} divides ({who(run)} refuses others)"
        found = f"{run.spec.data.train_batch_size} prompts × n={n} = {samples}"
        yield Case(stops(run, "CFG010"), _PROMPTS, words, found, fits)


@check("CFG010", "A step's samples fall evenly on the GPUs", needs=("config",), playbook="batch-arithmetic",
       problem="A step's samples do not fall evenly on the GPUs")  # fmt: skip
def step_samples(facts: Facts) -> Verdict:
    """Divides the samples of a step by the ranks that they go to.

    What it does:
        train_batch_size × rollout.n must be a multiple of the number of GPUs (of verl's Megatron actor: of its
        data-parallel groups × micro batch). verl's newer trainer pads where batches are dynamic: nothing is
        said there.

    Why it matters:
        The run stops with "real_train_batch_size … must be divisible by minimal possible batch size …", or in the first
        step with "only support equal chunk".
    """
    return conclude(run := config_of(facts), list(step_cases(run)), "every GPU gets the same number of samples")


def mini_cases(run: ConfigFacts) -> Iterator[Case]:
    """A mini batch is not more than a step's prompts, and falls evenly on the ranks."""
    prompts, n = run.spec.data.train_batch_size, max(1, run.spec.rollout.n)
    for role in trained(run):
        mini, field = role.mini_batch_size, f"{role.name}.mini_batch_size"
        if not mini or prompts <= 0:
            continue
        if mini > prompts:
            # With dynamic batches verl's own rule is silent: its first workers train one smaller mini batch, V1 pads.
            severity = "warn" if role.dynamic_batch and (is_v1(run) or is_legacy(run)) else stops(run, "CFG011")
            words = f"at most train_batch_size={prompts} prompts ({who(run)} counts prompts, not samples)"
            yield Case(severity, field, words, str(mini), prompts)
        elif prompts % mini:
            severity = "warn" if is_v1(run) or is_legacy(run) else stops(run, "CFG011")
            words = f"a divisor of train_batch_size={prompts}"
            yield Case(
                severity, field, words, f"{mini}, with a rest of {prompts % mini}", nearest_divisor(prompts, mini)
            )
        yield from _ranks(run, role, mini * n)


def _ranks(run: ConfigFacts, role: RoleSpec, samples: int) -> Iterator[Case]:
    ranks, field = data_parallel(run, role), f"{role.name}.mini_batch_size"
    if samples < ranks:
        words = f"at least one sample for each of {ranks} ranks"
        yield Case(stops(run, "CFG011"), field, words, f"{samples} in a mini batch")
    elif samples % ranks and run.framework != "rltrain":
        words = f"a number of samples that the {ranks} data-parallel ranks divide"
        found = f"{role.mini_batch_size} prompts × n={run.spec.rollout.n} = {samples}"
        # The first workers of verl round down: some samples of each mini batch end up in the next.
        yield Case("warn" if is_legacy(run) else stops(run, "CFG011"), field, words, found)


@check("CFG011", "Mini batches fit into a step", needs=("config",), playbook="batch-arithmetic", caused_by=("CFG010",),
       problem="A mini batch does not fit into a step")  # fmt: skip
def mini_batches(facts: Facts) -> Verdict:
    """Holds the mini batch of actor and critic against the step and the ranks.

    What it does:
        In prompts: not more than train_batch_size, and a divisor of it. In samples (× rollout.n): a multiple of the
        data-parallel ranks, which are the GPUs divided by the sequence-parallel size.

    Why it matters:
        The run stops with "train_batch_size … must be >= actor.ppo_mini_batch_size", or in the first update with an
        assertion that shows two numbers. Its older workers round down instead, so that updates are uneven.
    """
    return conclude(run := config_of(facts), list(mini_cases(run)), "every mini batch is whole")


def micro_cases(run: ConfigFacts) -> Iterator[Case]:
    """Micro batches divide a rank's part of a mini batch, and those without gradient its part of a step."""
    if run.framework == "rltrain" or samples_per_step(run) == 0:  # rltrain makes the last micro batch smaller
        return
    n = max(1, run.spec.rollout.n)
    for role in trained(run):
        if not role.mini_batch_size or not role.micro_batch_size or role.dynamic_batch:
            continue
        part = role.mini_batch_size * n // data_parallel(run, role)
        if part and part % role.micro_batch_size:
            words = f"a divisor of the {part} samples that a rank has of a mini batch"
            fits = nearest_divisor(part, role.micro_batch_size)
            yield Case(stops(run, "CFG014"), f"{role.name}.micro_batch_size", words, str(role.micro_batch_size), fits)
    yield from _infer(run)


def _infer(run: ConfigFacts) -> Iterator[Case]:
    """verl's engine workers refuse a rest here, too; its first workers do not."""
    if not is_verl(run) or is_legacy(run):
        return
    # The critic's engine takes limits of its own, which are no keys of the config.
    roles = (None if run.spec.algorithm.bypass_mode else run.spec.actor, run.spec.ref)
    samples = samples_per_step(run) // _updates(run)
    for role in filter(None, roles):
        field, part = f"{role.name}.infer_micro_batch_size", samples // data_parallel(run, role)
        micro = whole(run, name_of(run, field))
        if (
            not micro
            or role.infer_dynamic_batch
            or role.shares_actor
            or not part
            or not _is_whole(run)
            or part % micro == 0
        ):
            continue
        words = f"a divisor of the {part} samples that a rank has of a step"
        yield Case("fail", field, words, str(micro), nearest_divisor(part, micro))


def _updates(run: ConfigFacts) -> int:
    """Batches that a step is taken in: several where rollout has GPUs of its own and runs ahead."""
    mode = value(run, "trainer.v1.trainer_mode", "")
    parts = whole(run, "trainer.v1.separate_async.parameter_sync_step", 1)
    return max(1, parts) if is_v1(run) and mode == "separate_async" else 1


def _is_whole(run: ConfigFacts) -> bool:
    """Whether nothing is padded before the passes without gradient, so that their number of samples is known."""
    sizes = [role.mini_batch_size for role in trained(run) if role.mini_batch_size]
    return all(run.spec.data.train_batch_size % size == 0 for size in sizes)


@check("CFG014", "Micro batches divide a rank's samples", needs=("config",), playbook="batch-arithmetic",
       caused_by=("CFG010", "CFG011"),
       problem="Micro batches do not divide a rank's samples")  # fmt: skip
def micro_batches(facts: Facts) -> Verdict:
    """Divides what a rank has of a mini batch by the micro batch, and what it has of a step by that of log-probs.

    What it does:
        mini_batch × n ÷ ranks must be a multiple of the micro batch per GPU. From verl 0.8 on the same holds for the
        passes that compute log-probabilities and values, over the samples of a whole step.

    Why it matters:
        The run stops in its first step, after the rollout: "data size must be divisible by …
        micro_batch_size_per_gpu" or "normalized ppo_mini_batch_size … should be divisible by …".
    """
    return conclude(run := config_of(facts), list(micro_cases(run)), "every micro batch is whole")


def token_cases(run: ConfigFacts) -> Iterator[Case]:
    """Where passes are filled up to a number of tokens, one sample fits into a pass."""
    data = run.spec.data
    critic = run.spec.critic if not is_verl(run) or is_legacy(run) else None  # since 0.8 no key limits the critic
    for role in (run.spec.actor, run.spec.ref, critic):
        if role is None or role.shares_actor:
            continue
        limits = [("max_tokens", role.trained and role.dynamic_batch), ("infer_max_tokens", role.infer_dynamic_batch)]
        for name in (name for name, is_on in limits if is_on):
            tokens, longest = getattr(role, name), data.max_prompt_length + data.max_response_length
            room = tokens * role.sharding.sequence_parallel
            if room < longest:
                words = f"at least max_prompt_length + max_response_length = {longest} tokens"
                found = f"{tokens}" + (f" × {role.sharding.sequence_parallel} ranks of a sequence" * (room > tokens))
                severity = "warn" if is_verl(run) and not is_legacy(run) else stops(run, "CFG015")
                fits = -(-longest // max(role.sharding.sequence_parallel, 1))
                yield Case(severity, f"{role.name}.{name}", words, found, fits)


@check("CFG015", "The token limit per GPU holds the longest sample", needs=("config",), playbook="batch-arithmetic",
       problem="The longest sample does not fit into a pass")  # fmt: skip
def tokens_per_pass(facts: Facts) -> Verdict:
    """Compares the tokens per GPU of dynamic batches with the longest sample that the config allows.

    What it does:
        max_token_len_per_gpu × sequence-parallel size against max_prompt_length + max_response_length.

    Why it matters:
        The first sample that is longer stops the run: "max_token_len must be greater than the sequence length". That
        can be hours after the start, when responses have grown.
    """
    return conclude(run := config_of(facts), list(token_cases(run)), "the longest sample fits into a pass")
