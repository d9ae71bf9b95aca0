"""vLLM's CPU build.

Measured with 0.32.0 on two busy cores, the first start on a machine: 13 s to import vLLM, 19 s to make the engine (15 s
of them a child process that imports vLLM again to look at the model's class; later starts find that in a cache), 16 s
for the first generation (torch.compile building C++ for a helper of the sampler; 2 s once cached). The child and the
compilation are avoided here: 10 s, 3 s, and less than 0.1 s remain.
"""

# vLLM has no stubs, and transformers' configs have the attributes of their model.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import psutil
import torch
from transformers import AutoConfig

from rltrain.config.schema import RunConfig
from rltrain.workers.rollout.protocol import WakeTag

BLOCK_TOKENS = 128
"""vLLM's default block on a CPU."""
_MEMORY_SHARE = 0.25
"""Largest share of the free memory that the KV cache may take."""


class Cpu:
    """vLLM 0.32 on a CPU. It cannot sleep: both calls do nothing, and weights and cache stay where they are."""

    device = "cpu"
    versions = ">=0.32,<0.33"
    packs_weights = True

    def environ(self) -> dict[str, str]:
        """No thread binding: engine and training ranks take turns on the same cores. No torch.compile: see above."""
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}

    def prepare(self, config: RunConfig, model_dir: str) -> None:
        """Register the model's class itself, so that no child process has to look at it."""
        from vllm import ModelRegistry

        trust = config.actor_rollout_ref.model.trust_remote_code
        known = ModelRegistry.models
        for name in AutoConfig.from_pretrained(model_dir, trust_remote_code=trust).architectures or ():
            if name in known:
                ModelRegistry.register_model(name, known[name].load_model_cls())

    def arguments(self, config: RunConfig, model_dir: str) -> dict[str, Any]:
        """Eager: compiling takes a C++ compiler and a minute. A KV cache of a known size, so that none is measured.

        Prompts are read whole, whatever `enable_chunked_prefill` says: after a part of a prompt vLLM draws a token and
        turns the request's generator back, which a generator on a CPU cannot do ("does not use offset").
        """
        rollout = config.actor_rollout_ref.rollout
        assert rollout.max_model_len is not None
        most = min(rollout.max_num_batched_tokens, rollout.max_num_seqs * rollout.max_model_len)
        return {
            "enforce_eager": True,
            "kv_cache_memory_bytes": kv_cache_bytes(config, model_dir),
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(most, rollout.max_model_len),
        }

    def sleep(self, llm: Any) -> bool:
        """Nothing."""
        return False

    def wake(self, llm: Any, tag: WakeTag) -> None:
        """Nothing."""


def kv_cache_bytes(config: RunConfig, model_dir: str) -> int:
    """Room for `max_num_seqs` sequences of `max_model_len`, but at most a quarter of the free memory.

    With less, vLLM runs fewer sequences at a time.
    """
    parts = config.actor_rollout_ref
    rollout, trust = parts.rollout, parts.model.trust_remote_code
    assert rollout.max_model_len is not None
    hf = AutoConfig.from_pretrained(model_dir, trust_remote_code=trust, **parts.model.override_config).get_text_config()
    heads: int = hf.num_attention_heads
    # Absent, or None, in configs of models without grouped queries and of those whose heads divide the hidden size.
    kv_heads: int = getattr(hf, "num_key_value_heads", None) or heads
    head_size: int = getattr(hf, "head_dim", None) or hf.hidden_size // heads
    dtype: torch.dtype = getattr(torch, rollout.dtype)
    block_bytes = BLOCK_TOKENS * 2 * hf.num_hidden_layers * kv_heads * head_size * dtype.itemsize
    per_sequence = -(-rollout.max_model_len // BLOCK_TOKENS)
    most = int(psutil.virtual_memory().available * _MEMORY_SHARE) // block_bytes
    # One block is vLLM's own.
    return block_bytes * (1 + max(per_sequence, min(rollout.max_num_seqs * per_sequence, most)))
