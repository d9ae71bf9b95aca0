"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

import msgspec

from rlcheck.facts.config import DataSpec, RolloutSpec
from rlcheck.facts.memory import Change, Limits
from tests.measure.memory.samples import CHANGES, GIB, HOST, PHASES, facts, measured, memory, phase, run, too_much

FITS = facts()
SHARE = Change(
    title="engine's share of the GPU 0.74",
    overrides=("rollout.memory_utilization=0.74",),
    peak_bytes=131 * GIB,
    fits=True,
)
EMPTY_CACHE = Limits(kv_tokens=900, concurrent_sequences=0, memory_utilization=0.78)
SMALL_CACHE = Limits(kv_tokens=8_400, concurrent_sequences=4, memory_utilization=0.78)
AWAKE_TOO_LARGE = memory(usable_bytes=80 * GIB, limits=Limits(memory_utilization=0.42))
KEPT = phase("actor update", actor_weights=7, actor_activations=60, rollout_weights=14, rollout_kv_cache=48)
WITHOUT_SLEEP = run({"rollout": RolloutSpec(n=8, sleeps=False)})
LOGITS = phase("actor update", actor_weights=7, actor_activations=20, actor_logits=116)

CASES = {
    "MEM001": (facts(too_much()), FITS),
    "MEM002": (facts(memory(usable_bytes=90 * GIB)), FITS),
    "MEM003": (facts(memory(host_bytes=48 * GIB, changes=CHANGES)), FITS),
    "MEM004": (facts(memory(limits=EMPTY_CACHE, more_cache=SHARE)), FITS),
    "MEM005": (facts(memory(limits=SMALL_CACHE, more_cache=SHARE)), FITS),
    "MEM006": (facts(AWAKE_TOO_LARGE), FITS),
    "MEM007": (facts(memory(phases=(KEPT,)), WITHOUT_SLEEP), facts(memory(phases=(KEPT,)))),
    "MEM008": (facts(measured()), facts(memory(measured=measured().measured[:1]))),
    "MEM009": (facts(memory(exact=False, architecture="MadeUpForCausalLM")), FITS),
    "MEM010": (facts(memory(phases=(LOGITS,))), FITS),
    "MEM011": (facts(measured()), facts(memory(measured=measured().measured[:1]))),
}
PACKED = {"mean_tokens": 700, "longest_tokens": 2048}
OTHER_FIRES = {
    "MEM001": (
        facts(msgspec.structs.replace(too_much(), not_measured="TRL 1.16.0")),
        facts(msgspec.structs.replace(too_much(), phases=PHASES[4:5], **PACKED)),
    ),
    "MEM003": (facts(memory(host_bytes=60 * GIB)), facts(memory(host_bytes=GIB, host_phases=HOST))),
    "MEM005": (facts(memory(limits=SMALL_CACHE), run({"data": DataSpec(train_batch_size=64)})),),
    "MEM010": (facts(memory(phases=(*PHASES, LOGITS), usable_bytes=100 * GIB)),),
}
