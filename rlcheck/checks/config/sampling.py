"""How the engine samples, beside what the actor's log-probabilities mean; sleep of an engine on the actor's GPUs."""

from __future__ import annotations

from packaging.version import Version

from rlcheck.check import Verdict, check, passed, skip
from rlcheck.checks.config.limits import limit
from rlcheck.checks.config.roles import engine_words
from rlcheck.checks.config.say import Case, conclude, config_of
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.facts.installed import version_of
from rlcheck.measure.config.arithmetic import who
from rlcheck.measure.config.engines import traits, traits_of

_REPETITION = "actor_rollout_ref.rollout.repetition_penalty"
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# From here on vLLM switches expandable segments off around its pool: https://github.com/vllm-project/vllm/pull/40812
_SAFE_VLLM = Version("0.20.1")


@check("CFG059", "Training samples at a temperature above 0", needs=("config",), playbook="run-sampling",
       problem="Training samples at a temperature of 0 or below")  # fmt: skip
def temperature(facts: Facts) -> Verdict:
    """Looks at the temperature of training rollouts.

    What it does:
        Fails at 0 and below; mentions what is far from 1.

    Why it matters:
        At 0 all samples of a prompt are the same, so that groups have no advantage, and the log-probabilities are
        divided by 0. A low temperature hides most of what the policy could explore; a high one makes noise.
    """
    run = config_of(facts)
    value, field = run.spec.rollout.temperature, "rollout.temperature"
    if value <= 0:
        who = "which rltrain refuses" if run.framework == "rltrain" else "by which the actor's logits are divided"
        return conclude(run, [Case("fail", field, "a temperature above 0", f"{value:g}, {who}", to=1.0)], "")
    if limit("min_temperature") <= value <= limit("max_temperature"):
        return passed(f"{value:g}")
    return conclude(run, [Case("info", field, "about 1.0", f"temperature {value:g}", to=1.0)], "")


@check("CFG060", "The engine samples from the whole distribution", needs=("config",), playbook="run-sampling",
       problem="The engine samples from a part of the distribution")  # fmt: skip
def whole_distribution(facts: Facts) -> Verdict:
    """Looks for top_p, top_k and penalties in training rollouts.

    What it does:
        Warns when the engine cuts or bends the distribution that it samples from.

    Why it matters:
        The actor's log-probabilities are of the whole distribution: the ratio of the loss starts off 1, and importance
        sampling is violated for every token, also with a correction.
    """
    run = config_of(facts)
    rollout, cases = run.spec.rollout, list[Case]()
    if 0 < rollout.top_p < 1:
        cases += [Case("warn", "rollout.top_p", "top_p 1", f"{rollout.top_p:g}", to=1.0)]
    if rollout.top_k > 0:
        cases += [Case("warn", "rollout.top_k", "all tokens (top_k -1)", f"the first {rollout.top_k}", to=-1)]
    penalty = run.values.get(_REPETITION)
    if isinstance(penalty, int | float) and penalty != 1:
        cases += [Case("warn", _REPETITION, "no repetition penalty (1.0)", f"{penalty:g}", to=1.0)]
    return conclude(run, cases, "nothing is cut off")


@check("CFG061", "A quantised engine is corrected for", needs=("config",), playbook="run-rollout-correction",
       problem="Nothing corrects for a quantised engine")  # fmt: skip
def quantised(facts: Facts) -> Verdict:
    """Looks for quantised rollout weights or KV cache without a correction of the policy's ratio.

    What it does:
        Reads quantization and kv_cache_dtype of the engine, and whether algorithm.rollout_correction is on.

    Why it matters:
        A quantised engine samples from another policy than the one that is trained. Without truncated importance
        sampling the accuracy drops, slowly enough to be blamed on something else.
    """
    run = config_of(facts)
    rollout, algorithm = run.spec.rollout, run.spec.algorithm
    words = engine_words(run)
    weights = rollout.quantization or words.get("quantization")
    cache = str(words.get("kv_cache_dtype") or rollout.kv_cache_dtype)
    kinds = [f"{weights} weights"] * bool(weights) + [f"a KV cache in {cache}"] * cache.startswith(("fp8", "int8"))
    if not kinds:
        return passed("the engine is not quantised")
    if algorithm.rollout_is or algorithm.bypass_mode or run.values.get("algorithm.rollout_correction.rollout_rs"):
        return passed(f"{' and '.join(kinds)}, corrected for")
    case = Case("warn", "algorithm.rollout_is", "rollout_correction beside a quantised engine",
                f"{' and '.join(kinds)} without it", to="token")  # fmt: skip
    return conclude(run, [case], "")


@check("CFG062", "Rollout correction has the log-probabilities that it needs", needs=("config",),
       playbook="run-rollout-correction", problem="The correction has no log-probabilities")  # fmt: skip
def correction_fed(facts: Facts) -> Verdict:
    """Compares rollout_correction with calculate_log_probs.

    What it does:
        The correction compares the engine's log-probabilities with the actor's. rltrain refuses it without them; verl
        leaves it out without a word.

    Why it matters:
        A correction that does nothing looks like one that does not help.
    """
    run = config_of(facts)
    algorithm, field = run.spec.algorithm, "rollout.calculate_log_probs"
    rejects = run.values.get("algorithm.rollout_correction.rollout_rs")
    if not (algorithm.rollout_is or rejects) or run.spec.rollout.calculate_log_probs:
        return passed("off" if not (algorithm.rollout_is or rejects) else "with them")
    sure = run.framework == "rltrain"
    named = "rollout_is" if algorithm.rollout_is else "rollout_rs"
    found = f"{named} without them" + (f", which {who(run)} refuses" if sure else ": it does nothing")
    case = Case("fail" if sure else "warn", field, "the engine's log-probabilities", found, to=True)
    return conclude(run, [case], "")


@check("CFG063", "The engine makes room for training", needs=("config",), playbook="run-sleep")
def makes_room(facts: Facts) -> Verdict:
    """Notices an engine on the actor's GPUs that keeps its memory while the actor trains.

    What it does:
        Reads free_cache_engine where rollout and training share GPUs.

    Why it matters:
        gpu_memory_utilization is a share of the whole GPU; what the engine keeps, training cannot have. It may
        be meant, for speed, with a small share.
    """
    run = config_of(facts)
    rollout = run.spec.rollout
    if not run.spec.colocated or run.spec.device == "cpu":
        return skip("rollout and training share no GPU")
    engine = traits(rollout.name)
    if engine is None:
        return skip(f"nothing is known of the engine {rollout.name}" if rollout.name else "no engine is named")
    if rollout.sleeps or not engine.has_kv_cache:
        return passed(
            "it sleeps while the actor trains"
            if rollout.sleeps
            else f"the {rollout.name} engine has no cache of its own"
        )
    found = f"free_cache_engine=false: the engine keeps {rollout.memory_utilization:.0%} of each GPU"
    return conclude(run, [Case("info", "rollout.sleeps", "free_cache_engine=true", found, to=True)], "")


@check("CFG064", "Sleep and the allocator's settings go together", needs=("config",), playbook="expandable-segments",
       problem="Sleep mode and the allocator's settings exclude each other")  # fmt: skip
def expandable_segments(facts: Facts) -> Verdict:
    """Looks for expandable segments, in the config's environment for workers or here, beside an engine that sleeps.

    What it does:
        Reads runtime_env.env_vars of the config and, where recorded, this process's environment and vLLM's version.
        From 0.20.1 on, vLLM switches them off around its own pool.

    Why it matters:
        Older vLLM stops with "Expandable segments are not compatible with memory pool" when the engine starts.
    """
    run = config_of(facts)
    rollout = run.spec.rollout
    pool = traits_of(rollout.name).sleeps_in_pool
    if not pool or not rollout.sleeps or not run.spec.colocated or run.spec.device == "cpu":
        return skip("no vLLM that sleeps")
    places = _allocator_settings(facts, run)
    on = [(where, value) for where, value in places if "expandable_segments:true" in value.lower().replace(" ", "")]
    vllm = version_of(facts, "vllm") if facts.python.value is not None else None
    if not on:
        return passed("expandable segments are not switched on")
    if vllm is not None and vllm >= _SAFE_VLLM:
        return passed(f"vLLM {vllm} minds them no more")
    where, value = on[0]
    found = f"{value} with {f'vLLM {vllm}' if vllm else 'a vLLM of unknown version'}"
    # A setting of this shell says little of a run whose vLLM is not known.
    status = "info" if vllm is None and where in _ALLOCATOR else "warn"
    case = Case(status, where, f"no expandable segments beside a vLLM below {_SAFE_VLLM} that sleeps", found)
    return conclude(run, [case], "", params={"name": where.rpartition(".")[2]})


def _allocator_settings(facts: Facts, run: ConfigFacts) -> list[tuple[str, str]]:
    environ = facts.environ.value or {}
    here = [(name, environ[name]) for name in _ALLOCATOR if environ.get(name)]
    ours = [(key, str(value)) for key, value in run.values.items() if key.rpartition(".")[2] in _ALLOCATOR and value]
    return ours + here
