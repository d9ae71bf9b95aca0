"""Lengths: prompt and response, what the engine is set to, and what the model has positions for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rlcheck.check import Verdict, check, passed, skip
from rlcheck.checks.config.limits import run_limits
from rlcheck.checks.config.roles import engine_words, size
from rlcheck.checks.config.say import Case, conclude, config_of, given, name_of, unclear
from rlcheck.facts.base import why_missing
from rlcheck.facts.config import ConfigFacts, ModelFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.engines import traits_of

_LENGTH = "rollout.max_model_len"
_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def longest(run: ConfigFacts) -> int:
    """Tokens of the longest sample: prompt and response."""
    return run.spec.data.max_prompt_length + run.spec.data.max_response_length


def engine_length(run: ConfigFacts) -> int | None:
    """`max_model_len` as the engine gets it; its own arguments have the last word."""
    own: Any = engine_words(run).get("max_model_len")
    if isinstance(own, int):
        return own
    # A reader fills in what verl would take; the config itself left it to the model.
    key = name_of(run, _LENGTH)
    return None if key in run.values and run.values[key] is None else run.spec.rollout.max_model_len


@check("CFG040", "The engine takes the longest sample", needs=("config",), playbook="run-lengths",
       problem="The engine does not take the longest sample")  # fmt: skip
def engine_holds_sample(facts: Facts) -> Verdict:
    """Compares max_model_len with the longest prompt and response.

    What it does:
        Adds data.max_prompt_length and data.max_response_length. rltrain refuses a smaller max_model_len; verl hands
        the engine what is left beside the prompt, and stops at a prompt that leaves nothing.

    Why it matters:
        Responses end early for a reason that no metric names: response_length/clip_ratio misses most of them, since it
        counts those of max_response_length tokens (verl 0.9's default trainer: those as long as the longest of their
        batch), and truncated answers are scored as wrong ones.
    """
    run = config_of(facts)
    length, sample, prompt = engine_length(run), longest(run), run.spec.data.max_prompt_length
    if length is None or length <= 0:
        return passed("the engine takes its length from the model or the data")
    if length >= sample:
        return passed(f"{length} ≥ {sample}")
    beside = length - prompt
    if run.framework == "rltrain":
        found = f"max_model_len {length}, which rltrain refuses"
    elif beside > 0:
        found = f"max_model_len {length}: longest prompts leave {beside} of {run.spec.data.max_response_length} tokens"
    else:
        found = f"max_model_len {length}: a prompt of {prompt} leaves nothing to generate"
    status = "fail" if run.framework == "rltrain" else "warn"
    return conclude(run, [Case(status, _LENGTH, f"room for {sample} tokens", found, to=sample)], "")


@check(
    "CFG041", "The model has positions for the longest sample", needs=("config",), playbook="run-lengths",
    caused_by=("CFG030",),
    problem="The model has too few positions for the longest sample",
)  # fmt: skip
def model_context(facts: Facts) -> Verdict:
    """Compares lengths with max_position_embeddings and its scaling.

    What it does:
        Takes the model's context as vLLM does: kinds of scaling that multiply it do, llama3 and longrope have it
        multiplied already. Where YaRN is set, the larger reading counts. verl compares max_model_len with the plain
        number. Positions beyond the context are judged for the critic as well.

    Why it matters:
        vLLM does not start with a longer max_model_len; without one, verl cuts responses at the context. The training
        model has no such guard: positions that it never saw give nonsense, or an index error.
    """
    run = config_of(facts)
    cases, seen, blind = list[Case](), list[str](), None
    for name in ("actor", "critic"):
        fact = run.models.get(name)
        if fact is None or fact.value is None or not context(fact.value):
            blind = blind or (fact and why_missing(fact))
            continue
        if fact.value.source in seen:
            continue
        seen.append(fact.value.source)
        cases += _over_context(facts, run, name, fact.value)
    if not seen:
        return unclear(blind) or skip("no model with a maximum of positions")
    return conclude(run, cases, f"{longest(run)} tokens fit")


def context(model: ModelFacts) -> int:
    """Tokens that the model has positions for, scaling included; 0 where its config does not say."""
    return int(_positions(model) * _stretch(model))


def _positions(model: ModelFacts) -> int:
    return size(model, "max_position_embeddings") or size(model, "n_positions")


def _stretch(model: ModelFacts) -> float:
    below: Any = model.sizes.get("text_config") or {}
    for sizes in (model.sizes, cast("Mapping[str, Any]", below if isinstance(below, Mapping) else {})):
        scaling: Any = sizes.get("rope_parameters") or sizes.get("rope_scaling")
        if not isinstance(scaling, Mapping):
            continue
        words = cast("Mapping[str, Any]", scaling)
        kind = words.get("rope_type", words.get("type", "default"))
        if "gemma3" in str(model.sizes.get("model_type")) or kind in run_limits().unscaled_rope:
            return 1.0
        factor = words.get("factor")
        # An unknown kind, or one set for each kind of layer, may reach any length: nothing is claimed.
        return float(factor) if kind in run_limits().stretched_rope and isinstance(factor, int | float) else 1e9
    return 1.0


def _over_context(facts: Facts, run: ConfigFacts, name: str, model: ModelFacts) -> list[Case]:
    reach, plain, sample = context(model), _positions(model), longest(run)
    length, place = engine_length(run), f"the model's {plain} positions"
    engine = traits_of(run.spec.rollout.name)
    if name == "actor" and length is not None and length > 0 and engine.has_kv_cache:
        allowed = (facts.environ.value or {}).get(_ALLOWED, "0") not in ("0", "")
        if run.framework == "verl" and length > plain:
            return [Case("fail", _LENGTH, f"at most {place}", f"{length}, which verl refuses", to=min(plain, sample))]
        if length > reach and engine.limits_length and not allowed:
            return [Case("fail", _LENGTH, f"at most {reach}: {place}", f"{length}, which vLLM refuses", to=reach)]
    if name == "actor" and run.framework == "verl" and length is None:
        reach = plain  # verl sets the engine to the plain number, whatever the scaling
    if sample <= reach:
        return []
    found = f"prompt and response of {sample} tokens"
    if run.framework == "rltrain":
        return [Case("fail", "data.max_response_length", f"at most {reach}: {place}", f"{found}: rltrain refuses")]
    return [Case("warn", "data.max_response_length", f"at most {reach}: {place} ({name})", found)]


@check("CFG042", "Prompts fit into one prefill", needs=("config",),
       playbook="run-batched-tokens",
       problem="A prompt does not fit into one prefill")  # fmt: skip
def prefill_budget(facts: Facts) -> Verdict:
    """Compares max_num_batched_tokens with max_model_len where chunked prefill is off.

    What it does:
        Without chunked prefill a prompt must fit into one batch of the scheduler, and vLLM demands room for the longest
        sequence. rltrain refuses; verl 0.9.1 raises the number by itself, and earlier releases differ in whether the
        engine gets to know that chunked prefill is off.

    Why it matters:
        The engine stops at start: "max_num_batched_tokens is smaller than max_model_len".
    """
    run = config_of(facts)
    rollout = run.spec.rollout
    if rollout.chunked_prefill or not traits_of(rollout.name).wants_whole_prefill:
        return passed("chunked prefill is on" if rollout.chunked_prefill else f"{rollout.name} has no such rule")
    length = engine_length(run) or (longest(run) if run.framework == "rltrain" else _engine_default(run))
    if length is None:
        actor = run.models.get("actor")
        return unclear(actor and why_missing(actor)) or skip("the model's length is not known")
    if rollout.max_batched_tokens >= length:
        return passed(f"{rollout.max_batched_tokens} ≥ {length}")
    status = "info" if run.framework == "verl" else "fail"
    found = f"max_num_batched_tokens {rollout.max_batched_tokens} without chunked prefill"
    return conclude(run, [Case(status, "rollout.max_batched_tokens", f"at least {length}", found, to=length)], "")


def _engine_default(run: ConfigFacts) -> int | None:
    actor = run.models.get("actor")
    return context(actor.value) or None if actor is not None and actor.value is not None else None


@check("CFG043", "A step of the engine holds a token of each sequence", needs=("config",),
       playbook="run-batched-tokens",
       problem="A step of the engine does not hold a token of each sequence")  # fmt: skip
def sequences_per_step(facts: Facts) -> Verdict:
    """Compares max_num_batched_tokens with max_num_seqs.

    What it does:
        vLLM demands that max_num_batched_tokens is not below max_num_seqs.

    Why it matters:
        Each running sequence decodes one token in a step; the engine stops at start when the budget is smaller.
    """
    run = config_of(facts)
    rollout = run.spec.rollout
    if not traits_of(rollout.name).wants_token_each or rollout.max_batched_tokens >= rollout.max_seqs:
        return passed(f"{rollout.max_batched_tokens} tokens for {rollout.max_seqs} sequences")
    field = "rollout.max_seqs" if given(run, "rollout.max_seqs") else "rollout.max_batched_tokens"
    to = rollout.max_batched_tokens if field == "rollout.max_seqs" else rollout.max_seqs
    case = Case("fail", field, f"max_num_seqs of at most {rollout.max_batched_tokens}",
                f"{rollout.max_seqs}, which vLLM refuses", to=to)  # fmt: skip
    return conclude(run, [case], "")
