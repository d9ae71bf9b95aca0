"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from typing import Any

from rlcheck.facts.base import absent, known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import (
    Case,
    Failure,
    LogProbs,
    RolloutFacts,
    ServerFacts,
    SleepUse,
    Speed,
    StageTime,
    TemplateUse,
)

GIB = 1 << 30
URL = "http://10.0.0.7:8000"
STOP = Case(name="stop string", expected="a greedy answer ends with it", found="7 tokens, reason stop")
LONG = Case(name="prompt of max_model_len", expected="refused", found="HTTP 400")
LOG_PROBS = LogProbs(num_completions=8, num_tokens=64, num_log_probs=64, mean=-1.5, lowest=-9.0)
SLEEP = SleepUse(
    before_start_bytes=GIB, awake_bytes=70 * GIB, asleep_bytes=3 * GIB, again_bytes=70 * GIB, total_bytes=140 * GIB
)
ALL = ("/update_weights", "/sleep", "/wake_up", "/pause", "/reset_prefix_cache")
SERVER = ServerFacts(
    host="10.0.0.7",
    port=8000,
    addresses=("10.0.0.7",),
    banner="uvicorn",
    health=known(200),
    models=("tiny",),
    max_model_len=known(4096),
    endpoints=known(dict.fromkeys(ALL, True)),
)


def engine(**changes: Any) -> Facts:
    """An engine that started and answered."""
    usual: dict[str, Any] = {
        "target": "run.yaml",
        "engine": "vllm",
        "version": "0.26.0",
        "device": "cuda",
        "weights": "saved",
        "stages": (StageTime(name="engine start", seconds=40.0),),
        "speed": known(Speed(first_token_s=0.05, tokens_per_s=5000, num_requests=64, tokens_per_request=256)),
        "log_probs": known(LOG_PROBS),
        "stops": known((STOP,)),
        "lengths": known((LONG,)),
        "template": known(TemplateUse(present=True, source="the tokenizer", rendered="<|user|>hi", num_tokens=3)),
        "sleep": known(SLEEP),
        "server": absent("no server"),
    }
    return Facts(rollout=known(RolloutFacts(**{**usual, **changes})))


def broken(stage: str, kind: str, line: str, **more: Any) -> Facts:
    """An engine that failed in `stage`."""
    why = missing("error", f"not reached: {line}")
    nothing = dict.fromkeys(("speed", "log_probs", "stops", "lengths", "template", "sleep"), why)
    return engine(failure=Failure(stage=stage, kind=kind, line=line, **more), **nothing)


def server(failure: Failure | None = None, speed: Speed | None = None, **changes: Any) -> Facts:
    """A server that runs."""
    found = ServerFacts(**{name: getattr(SERVER, name) for name in SERVER.__struct_fields__} | changes)
    streamed = Speed(first_token_s=0.05, tokens_per_s=100, num_requests=1, chunks=32, stream_s=0.4)
    return engine(target=URL, is_server=True, device="", weights="", failure=failure, speed=known(speed or streamed),
                  sleep=absent("a server's memory is not seen"), server=known(found))  # fmt: skip


def unreached(kind: str, line: str) -> Facts:
    """A server that does not answer."""
    return server(failure=Failure(stage="health", kind=kind, line=line), health=missing("error", "not reached"),
                  models=())  # fmt: skip


WRAPPED = "RuntimeError: Engine core initialization failed. See root cause above."
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
REFUSED = Failure(stage="health", kind="address", line="10.0.0.7:8000: Connection refused")

CASES: dict[str, tuple[Facts, Facts]] = {
    "ROL001": (broken("engine start", "crash", WRAPPED, root=OOM, tail=("a line",)), engine()),
    "ROL002": (broken("first generation", "timeout", "did not answer within 300 s"), engine()),
    "ROL003": (
        engine(log_probs=known(LogProbs(num_completions=8, num_tokens=64, num_log_probs=63, worst="completion 3"))),
        engine(),
    ),
    "ROL004": (
        engine(stops=known((Case(name="ignore_eos", expected="16 tokens", found="one of 3", ok=False),))),
        engine(),
    ),
    "ROL005": (
        engine(lengths=known((Case(name=LONG.name, expected="refused", found="answered", ok=False),))),
        engine(),
    ),
    "ROL006": (engine(template=known(TemplateUse(present=False))), engine()),
    "ROL007": (
        engine(sleep=known(SleepUse(before_start_bytes=GIB, awake_bytes=70 * GIB, asleep_bytes=60 * GIB,
                                    again_bytes=70 * GIB, total_bytes=140 * GIB))),
        engine(),
    ),
    "ROL010": (unreached("address", "10.0.0.7:8000: Connection refused"), server()),
    "ROL011": (
        server(failure=Failure(stage="model", kind="foreign", line="GET /v1/models: HTTP 404"), banner="Ray Dashboard"),
        server(),
    ),
    "ROL012": (server(failure=Failure(stage="model", kind="key", line="HTTP 401, no key was sent")), server()),
    "ROL013": (server(endpoints=known(dict.fromkeys(ALL, False))), server()),
    "ROL014": (server(proxies={"http_proxy": "http://proxy:3128"}), server()),
    "ROL015": (server(loopback=True, host="localhost"), server()),
    "ROL016": (server(speed=Speed(first_token_s=1.9, chunks=32, stream_s=2.0, num_requests=1)), server()),
}  # fmt: skip

OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "ROL001": (
        broken("config", "user", "actor_rollout_ref.model.path is not set"),
        broken("engine start", "crash", "User-specified max_model_len (4096) is greater", known="run-lengths"),
        broken("engine start", "timeout", "did not answer within 6 s in stage engine start"),
    ),
    "ROL002": (
        server(failure=Failure(stage="generation", kind="silent", line="POST was not answered within 120 s")),
        server(failure=Failure(stage="generation", kind="address", line="10.0.0.7:8000: Connection refused")),
        broken("first generation", "crash", OOM, known="kv-cache-too-small"),
    ),
    "ROL003": (
        engine(log_probs=known(LogProbs(num_completions=1, num_tokens=4, num_log_probs=4, num_not_finite=1))),
        engine(log_probs=known(LogProbs(num_completions=1, num_tokens=4, num_log_probs=4, num_positive=1))),
    ),
    "ROL006": (engine(template=known(TemplateUse(present=True, error="roles must alternate"))),),
    "ROL010": (
        unreached("tls", "its certificate is not trusted: self-signed certificate"),
        unreached("plain", "no TLS is spoken"),
        unreached("name", "the name node7 cannot be resolved"),
    ),
    "ROL011": (
        server(failure=Failure(stage="health", kind="redirect", line="HTTP 301"), redirect="https://10.0.0.8/health"),
    ),
    "ROL012": (
        server(health=known(503)),
        server(failure=Failure(stage="model", kind="busy", line="GET /v1/models: HTTP 429"), models=()),
    ),
}
OTHER_QUIET: dict[str, tuple[Facts, ...]] = {
    "ROL001": (server(),),
    "ROL002": (broken("engine start", "died", "died with signal 9"), unreached("name", "no such name")),
    "ROL004": (server(),),
    "ROL011": (unreached("address", "refused"),),
    "ROL012": (unreached("address", "refused"),),
    "ROL016": (engine(), server(speed=Speed(first_token_s=0.3, chunks=32, stream_s=0.31, num_requests=1))),
}
