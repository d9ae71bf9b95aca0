"""One walk through all that a served engine asks of a server: on a real one to record it, and on the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.core.errors import RunFailure
from rltrain.workers.rollout.protocol import Completion, Request
from rltrain.workers.rollout.served.remote import RemoteEngine
from rltrain.workers.rollout.stream import Stream
from rltrain.workers.sync.transport import Descriptor
from tests.trainer.workers.rollout.compare import PLAIN, requests
from tests.trainer.workers.rollout.tiny import MAX_MODEL_LEN

SAMPLINGS = {
    "plain": PLAIN,
    "greedy": replace(PLAIN, temperature=0.0, max_tokens=6),
    "cut": replace(PLAIN, top_k=5, top_p=0.8, temperature=1.2),
    "late": replace(PLAIN, min_tokens=8, temperature=2.0),
    "stop token": replace(PLAIN, ignore_eos=True, stop_token_ids=tuple(range(2, 20))),
}


def config_of(directory: Path, url: str) -> RunConfig:
    """Of a server on the ranks' own GPU, which sleeps while they train."""
    rollout = {"name": "remote", "dtype": "bfloat16", "num_replicas": 1, "max_model_len": MAX_MODEL_LEN}
    return RunConfig.model_validate(
        {
            "actor_rollout_ref": {
                "model": {"path": str(directory)},
                "rollout": rollout | {"max_num_seqs": 16, "engine_kwargs": {"remote": {"url": url}}},
            },
            "data": {"max_response_length": 16},
            "trainer": {"device": "cuda", "n_gpus_per_node": 1, "seed": 7, "verify_weight_sync": True},
        }
    )


def walk(engine: RemoteEngine, whole: Sequence[Descriptor], odd: Descriptor) -> dict[str, Any]:
    """What the engine found on its way; plain JSON.

    Args:
        engine: not started.
        whole: buckets of one sync.
        odd: a bucket with a weight that the model does not have.
    """
    facts = engine.start()
    found: dict[str, Any] = {"facts": {name: facts[name] for name in ("engine", "engine_version", "seeds")}}
    found["cuts"] = facts["log_probs_of_what_is_left"]
    found["slept"] = engine.sleep()
    engine.wake("weights")
    for descriptor in whole:
        engine.load_bucket(descriptor)
    engine.reset_prefix_cache()
    engine.wake("kv_cache")
    names = [entry.name for descriptor in whole for entry in descriptor.bucket.entries]
    found["checksums"] = engine.checksums(names)
    asked = [replace(one, log_probs=row % 2 == 0) for row, one in enumerate(requests(6))]
    stream = Stream(engine, max_retries=0)
    for name, sampling in SAMPLINGS.items():
        stream.submit(list(enumerate(asked)), sampling)
        answers: dict[int, Completion] = {}
        while stream.under_way:
            answers |= dict(stream.collect(10.0))
        found[name] = [_plain(answers[row]) for row in sorted(answers)]
    stream.submit([(0, asked[0]), (1, Request((5,) * 20, 9))], replace(PLAIN, max_tokens=150, ignore_eos=True))
    while not (some := stream.collect(0.0)):
        stream.abort([1])
    found["left"] = [number for number, _ in some]
    try:
        engine.load_bucket(odd)
    except RunFailure as failure:
        found["odd"] = str(failure)
    return found


def _plain(answer: Completion) -> dict[str, Any]:
    log_probs = None if answer.log_probs is None else [round(float(one), 5) for one in answer.log_probs]
    return {
        "tokens": answer.token_ids.tolist(),
        "log_probs": log_probs,
        "reason": answer.finish_reason,
        "versions": [list(span) for span in answer.versions],
    }
