"""Runs whose memory is predicted and measured: sizes of the models, and what is varied. Plain data, no GPU needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlcheck.facts.base import known
from rlcheck.facts.config import (
    AlgorithmSpec,
    ConfigFacts,
    DataSpec,
    ModelFacts,
    ModelUse,
    RoleSpec,
    RolloutSpec,
    RunSpec,
    Sharding,
)


def qwen2(hidden: int, wide: int, layers: int, heads: int, kv_heads: int, vocab: int, tied: bool) -> dict[str, Any]:
    """A config.json of Qwen2's family."""
    return {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 32768,
    }


SIZES: dict[str, dict[str, Any]] = {
    "0.5B": qwen2(896, 4864, 24, 14, 2, 151936, tied=True),
    "1.5B": qwen2(1536, 8960, 28, 12, 2, 151936, tied=True),
    "7B": qwen2(3584, 18944, 28, 28, 4, 152064, tied=False),
    "8B": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
        "max_position_embeddings": 131072,
    },
    "4B": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
    },
    "MoE": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "moe_intermediate_size": 512,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
}


@dataclass(frozen=True)
class Case:
    """One run. `tokens` > 0: micro batches filled by tokens, else `micro` samples of `prompt` + `response` tokens."""

    name: str
    model: str
    micro: int = 4
    tokens: int = 0
    prompt: int = 512
    response: int = 512
    critic: bool = False
    ref: bool = False
    checkpointing: bool = True
    chunked: bool = True
    packed: bool = True
    offload: bool = False
    lora: int = 0
    dtype: str = "float32"
    gpus: int = 1
    utilization: float = 0.4
    oom: bool = False
    """It was seen to run out of memory on an H200."""

    def facts(self) -> ConfigFacts:
        """As a reader of configs would give it."""
        use = ModelUse(
            path=self.model, gradient_checkpointing=self.checkpointing, remove_padding=self.packed, lora_rank=self.lora
        )
        shards = Sharding(model_dtype=self.dtype, param_offload=self.offload, optimizer_offload=self.offload)
        actor = RoleSpec(
            name="actor",
            model=use,
            sharding=shards,
            mini_batch_size=64,
            micro_batch_size=self.micro,
            infer_micro_batch_size=self.micro,
            dynamic_batch=self.tokens > 0,
            infer_dynamic_batch=self.tokens > 0,
            max_tokens=self.tokens or 16384,
            infer_max_tokens=self.tokens or 16384,
            chunked_logits=self.chunked,
        )
        critic = RoleSpec(
            name="critic",
            model=ModelUse(path=self.model, gradient_checkpointing=self.checkpointing, remove_padding=self.packed),
            sharding=shards,
            mini_batch_size=64,
            micro_batch_size=self.micro,
            infer_micro_batch_size=self.micro,
            dynamic_batch=self.tokens > 0,
            infer_dynamic_batch=self.tokens > 0,
            max_tokens=self.tokens or 16384,
            infer_max_tokens=self.tokens or 16384,
        )
        ref = RoleSpec(
            name="ref",
            trained=False,
            model=use,
            sharding=shards,
            infer_micro_batch_size=self.micro,
            infer_dynamic_batch=self.tokens > 0,
            infer_max_tokens=self.tokens or 16384,
            chunked_logits=self.chunked,
        )
        spec = RunSpec(
            gpus_per_node=self.gpus,
            actor=actor,
            critic=critic if self.critic else None,
            ref=ref if self.ref else None,
            rollout=RolloutSpec(
                memory_utilization=self.utilization,
                max_model_len=self.prompt + self.response,
                max_seqs=256,
                n=8,
                sync_bucket_bytes=512 << 20,
            ),
            data=DataSpec(max_prompt_length=self.prompt, max_response_length=self.response, train_batch_size=64),
            algorithm=AlgorithmSpec(adv_estimator="gae" if self.critic else "grpo"),
        )
        model = known(ModelFacts(path=self.model, source="shape", sizes=SIZES[self.model]))
        roles = ["actor", *(["critic"] if self.critic else []), *(["ref"] if self.ref else [])]
        return ConfigFacts(framework="rltrain", source=self.name, spec=spec, models=dict.fromkeys(roles, model))


FIT: tuple[Case, ...] = (
    Case("f01", "0.5B", micro=16),
    Case("f02", "0.5B", micro=8, checkpointing=False),
    Case("f03", "0.5B", micro=8, critic=True, chunked=False),
    Case("f04", "1.5B", micro=8, response=1536),
    Case("f05", "1.5B", micro=4, prompt=1024, response=1024, critic=True, checkpointing=False, chunked=False),
    Case("f06", "1.5B", tokens=16384, prompt=1024, response=3072, offload=True),
    Case("f07", "7B", micro=2, prompt=1024, response=3072, dtype="bfloat16", ref=True),
    Case("f08", "7B", micro=4, response=1536, lora=64, dtype="bfloat16"),
    Case("f09", "MoE", micro=8),
    Case("f10", "0.5B", micro=16, packed=False, chunked=False),
    Case("f11", "7B", micro=1, prompt=1024, response=1024),
    Case("f12", "MoE", micro=8, checkpointing=False, critic=True),
)
"""What the model's constants were found on."""

REPORT: tuple[Case, ...] = (
    Case("r01", "0.5B", micro=32, ref=True),
    Case("r02", "0.5B", micro=4, prompt=1024, response=3072, critic=True, checkpointing=False),
    Case("r03", "1.5B", tokens=32768, prompt=2048, response=6144),
    Case("r04", "1.5B", micro=8, response=1536, critic=True, offload=True),
    Case("r05", "1.5B", micro=2, response=1536, checkpointing=False, chunked=False),
    Case("r06", "7B", tokens=16384, response=3584, dtype="bfloat16"),
    Case("r07", "7B", micro=2, prompt=1024, response=3072, lora=16, chunked=False),
    Case("r08", "MoE", micro=16, critic=True),
    Case("r09", "4B", micro=4),
    Case("r10", "4B", micro=2, response=1536, critic=True),
    Case("r11", "8B", micro=1, prompt=1024, response=1024),
    Case("r12", "0.5B", micro=8, response=1024, packed=False, critic=True, ref=True),
    Case("r13", "0.5B", micro=64, prompt=128, response=896, chunked=False),
)
"""What it is judged by: one GPU."""

TWO: tuple[Case, ...] = (
    Case("t01", "7B", micro=2, response=1536, gpus=2),
    Case("t02", "7B", micro=2, prompt=1024, response=3072, critic=True, dtype="bfloat16", gpus=2),
    Case("t03", "1.5B", micro=4, response=1536, critic=True, chunked=False, checkpointing=False, gpus=2),
    Case("t04", "MoE", micro=8, checkpointing=False, gpus=2),
    Case("t05", "8B", micro=2, critic=True, gpus=2),
    Case("t06", "8B", micro=4, response=3584, critic=True, ref=True, checkpointing=False, gpus=2, oom=True),
)
"""What it is judged by: two GPUs."""

OUT_OF_MEMORY: tuple[Case, ...] = (
    Case("o01", "7B", micro=1, critic=True, oom=True),
    Case("o02", "7B", micro=1, ref=True, oom=True),
    Case("o03", "1.5B", micro=24, response=1536, checkpointing=False, oom=True),
    Case("o04", "0.5B", micro=80, prompt=128, response=896, chunked=False, oom=True),
    Case("o05", "0.5B", micro=96, checkpointing=False, oom=True),
    Case("o06", "MoE", micro=128, critic=True, checkpointing=False, oom=True),
    Case("o07", "8B", micro=2, prompt=1024, response=7168, checkpointing=False, oom=True),
)
"""Runs that one H200 cannot hold."""

ENGINES: tuple[Case, ...] = (
    Case("e01", "0.5B", micro=16, utilization=0.5),
    Case("e02", "1.5B", micro=8, response=1536, critic=True, utilization=0.6),
    Case("e03", "7B", micro=4, response=1536, lora=64, dtype="bfloat16", utilization=0.4),
    Case("e04", "MoE", micro=8, utilization=0.3),
)
"""With the rollout engine."""

GROUPS: dict[str, tuple[Case, ...]] = {
    "fit": FIT,
    "report": REPORT,
    "two": TWO,
    "oom": OUT_OF_MEMORY,
    "engines": ENGINES,
}
