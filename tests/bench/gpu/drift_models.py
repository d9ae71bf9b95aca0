"""Models of true shapes with random weights, and a config and data for each: `drift_models.py OUT SIZE...`.

Random weights of the usual size (0.02) give a policy that is nearly uniform, whose probabilities can hardly differ. So
the final norm is scaled until a sampled token has a probability of about 0.2 on average. Everything before stays as
initialised. A SIZE that ends in "-flat" is left as it is.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from rltrain.toy.tokenizer import build_tokenizer
from tests.bench.gpu.memory_configs import SIZES

LOGIT_STD = 5.0
"""With 150,000 tokens: an entropy of about 3.4 nats, largest logits above 20. With more, samples run into loops."""
INITIAL_STD = 0.02
NUM_ROWS, NUM_DIGITS = 128, 96
TINY = {**SIZES["0.5B"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 512} | {
    "num_attention_heads": 2
}
"""To try the scripts on a CPU."""


def make(out: Path, size: str, logit_std: float | None = LOGIT_STD) -> None:
    """Write model, data and config of SIZE to OUT, drawn from one seed. LOGIT_STD None: as initialised."""
    out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = dict(TINY if size == "tiny" else SIZES[size])
    tokenizer = build_tokenizer(shape["vocab_size"])
    ids = {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id", "bos_token_id")}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}
    config = AutoConfig.for_model(shape.pop("model_type"), **shape, **ids, **rope, initializer_range=INITIAL_STD)
    torch.manual_seed(1)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if logit_std is not None:
        with torch.no_grad():
            # A normed vector has length sqrt(hidden size), so this is the spread of its products with the head.
            model.model.norm.weight.fill_(logit_std / (INITIAL_STD * config.hidden_size**0.5))
    model.save_pretrained(out / "model")
    tokenizer.save_pretrained(str(out / "model"))
    draw = random.Random(1)
    with (out / "train.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(NUM_ROWS):
            digits = "".join(draw.choice("0123456789") for _ in range(NUM_DIGITS))
            prompt = [{"role": "user", "content": digits}]
            row = {"data_source": "digits", "prompt": prompt, "reward_model": {"style": "rule", "ground_truth": "1"}}
            file.write(json.dumps(row) + "\n")
    (out / "config.yaml").write_text(yaml.safe_dump(run_config(out, device)))


def run_config(out: Path, device: str) -> dict[str, object]:
    """A GRPO run in bfloat16 on both sides."""
    return {
        "data": {
            "train_files": [str(out / "train.jsonl")],
            "val_files": [str(out / "train.jsonl")],
            "max_prompt_length": 256,
            "max_response_length": 256,
            "train_batch_size": 64,
        },
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {
            "model": {"path": str(out / "model")},
            "actor": {
                "ppo_mini_batch_size": 64,
                "ppo_micro_batch_size_per_gpu": 16,
                "fsdp_config": {"dtype": "bfloat16"},
            },
            "rollout": {
                "name": "vllm",
                "dtype": "bfloat16",
                "n": 4,
                "ignore_eos": True,
                "max_num_seqs": 128,
                "gpu_memory_utilization": 0.4,
            },
        },
        "reward_model": {"rules": [{"kind": "regex", "pattern": "1234|4321|5678|8765|2468"}]},
        "trainer": {"device": device, "n_gpus_per_node": 1, "num_cpu_ranks": 1, "resume_mode": "disable"},
    }


if __name__ == "__main__":
    for name in sys.argv[2:]:
        make(Path(sys.argv[1]) / name, name.removesuffix("-flat"), None if name.endswith("-flat") else LOGIT_STD)
        print(f"{name}: {Path(sys.argv[1]) / name}", flush=True)
