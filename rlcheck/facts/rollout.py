"""What `rlcheck rollout` measured of an engine or a server."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class StageTime(Struct, frozen=True):
    """How long one stage took."""

    name: str
    seconds: float


class Failure(Struct, frozen=True):
    """Why there is no answer.

    `stage`: what was being done. `kind` of an engine: user (a config that it refuses), crash, died, timeout, missing
    (not installed there), unsupported (this doctor cannot start it); of a server: name, address, silent, tls, plain
    (TLS spoken to a server without it), redirect, key, busy (too many requests, or not ready), foreign (no LLM server),
    refused (an HTTP error).
    `line`: what was said, in one line; `root`: the error that was raised first, where `line` is only its consequence;
    `known`: the playbook that recognises either. `tail`: the last lines that were printed.
    """

    stage: str
    kind: str
    line: str
    root: str = ""
    known: str = ""
    tail: tuple[str, ...] = ()


class Speed(Struct, frozen=True):
    """How fast it generates. `first_token_s` is of one warm request alone (prompt read, one token made)."""

    first_token_s: float = 0.0
    tokens_per_s: float = 0.0
    num_requests: int = 0
    prompt_tokens: int = 0
    tokens_per_request: int = 0
    chunks: int = 0
    """Pieces that a streamed answer came in; 0: not streamed."""
    stream_s: float = 0.0
    """From the request to the end of the streamed answer."""


class LogProbs(Struct, frozen=True):
    """Log-probabilities of the sampled tokens, over all completions. `worst` names the first completion that lacks
    some or holds one that is none."""

    num_completions: int = 0
    num_tokens: int = 0
    num_log_probs: int = 0
    num_not_finite: int = 0
    num_positive: int = 0
    mean: float = 0.0
    lowest: float = 0.0
    worst: str = ""


class Case(Struct, frozen=True):
    """One thing that was tried: what should happen, and what did. `judged` is false where nothing came of it."""

    name: str
    expected: str
    found: str
    ok: bool = True
    judged: bool = True


class TemplateUse(Struct, frozen=True):
    """The chat template on one user message. `error`: why it could not be rendered."""

    present: bool
    source: str = ""
    rendered: str = ""
    num_tokens: int = 0
    error: str = ""


class SleepUse(Struct, frozen=True):
    """Memory of the GPU that the engine takes most of, all processes together, in bytes: before the engine came, while
    it was awake, asleep, and awake again."""

    before_start_bytes: int
    awake_bytes: int
    asleep_bytes: int
    again_bytes: int
    total_bytes: int
    sleep_s: float = 0.0
    wake_s: float = 0.0
    forgets: bool = False
    """Weights must be loaded again afterwards."""


class ServerFacts(Struct, frozen=True):
    """A server as it was reached. `endpoints`: path to whether the server has it; what trainers need, nothing else."""

    scheme: str = "http"
    host: str = ""
    port: int = 0
    addresses: tuple[str, ...] = ()
    loopback: bool = False
    banner: str = ""
    """What the server calls itself, or the title of its page."""
    health: Fact[int] = Fact()
    """HTTP status of /health."""
    models: tuple[str, ...] = ()
    max_model_len: Fact[int] = Fact()
    endpoints: Fact[dict[str, bool]] = Fact()
    redirect: str = ""
    needs_key: bool = False
    key_from: str = ""
    """The environment variable that the key came from."""
    proxies: dict[str, str] = {}
    """Variable to proxy, secrets removed: those that HTTP libraries would send calls to this server through."""


class RolloutFacts(Struct, frozen=True):
    """One engine, started or reached."""

    target: str = ""
    is_server: bool = False
    engine: str = ""
    """vllm, sglang, hf; "" where it is not known."""
    version: str = ""
    model: str = ""
    device: str = ""
    weights: str = ""
    """saved (those of the model's files) or random."""
    stages: tuple[StageTime, ...] = ()
    failure: Failure | None = None
    speed: Fact[Speed] = Fact()
    log_probs: Fact[LogProbs] = Fact()
    stops: Fact[tuple[Case, ...]] = Fact()
    lengths: Fact[tuple[Case, ...]] = Fact()
    template: Fact[TemplateUse] = Fact()
    sleep: Fact[SleepUse] = Fact()
    server: Fact[ServerFacts] = Fact()
    notes: tuple[str, ...] = ()
