"""Peak memory and time of log-probabilities and their gradient, with a head read by blocks and with whole logits.

    .venv/bin/python -m tests.bench.bench_head [TOKENS] [WIDTH] [LAYERS]

LAYERS (1) decoder layers of Qwen2's of WIDTH (896) with the vocabulary of Qwen2.5 (151,936) and one row of TOKENS
tokens (4096), each way in a process of its own: on a GPU in bfloat16, else on the CPU in float32. The peak is what a
pass with its backward, activations checkpointed, adds to what is allocated on the GPU, or to the resident size.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from rltrain.workers.fsdp import head_proof, packing
from rltrain.workers.fsdp.forward import Policy
from rltrain.workers.fsdp.fused_head import FusedHead

VOCABULARY = 151_936
GIB = 1 << 30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE, BOUND = (torch.bfloat16, packing.HALF.exact) if DEVICE == "cuda" else (torch.float32, 1e-4)


def peak() -> int:
    """Bytes that this process held at most, on the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status", encoding="ascii") as lines:
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def measure(by_blocks: bool, tokens: int, width: int, layers: int) -> dict[str, float]:
    """Bytes, seconds, and the sum of log-probabilities, by which the two ways are seen to be one."""
    torch.manual_seed(0)
    sizes = Qwen2Config(
        hidden_size=width,
        intermediate_size=width if layers == 1 else width * 35 // 6,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=1,
        use_cache=False,
        vocab_size=VOCABULARY,
        max_position_embeddings=tokens + 2,
    )
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(sizes, dtype=DTYPE)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    policy = Policy(model, 1.0, packed=False, chunked=True)
    if by_blocks:
        head = head_proof.proven(policy, packing.trial_rows(VOCABULARY, (9, 9), DEVICE)[0], BOUND)
        assert isinstance(head, FusedHead), head
        policy = replace(policy, head=head)
    ids = torch.randint(0, VOCABULARY, (1, tokens + 1), device=DEVICE)
    everywhere = torch.ones_like(ids)
    positions = torch.arange(tokens + 1, device=DEVICE)[None]
    rows = {"input_ids": ids, "attention_mask": everywhere, "position_ids": positions}
    before, began = peak(), time.perf_counter()
    stats = policy({**rows, "response_mask": everywhere[:, 1:]})
    stats.log_probs.sum().backward()
    seconds = time.perf_counter() - began
    return {"bytes": peak() - before, "seconds": seconds, "sum": float(stats.log_probs.detach().double().sum())}


def main(tokens: int, width: int, layers: int) -> None:
    """Print a line for each way."""
    print(
        f"{tokens} tokens, width {width}, {layers} layers, vocabulary {VOCABULARY}, {DEVICE}: "
        f"logits are {4 * tokens * VOCABULARY / GIB:.2f} GiB in float32"
    )
    for name in ("whole", "blocks"):
        command = [sys.executable, "-m", "tests.bench.bench_head", name, str(tokens), str(width), str(layers)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"{name:7} {found['bytes'] / GIB:6.2f} GiB {found['seconds']:7.1f} s   sum of log p {found['sum']:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["whole"], ["blocks"]):
        print(json.dumps(measure(sys.argv[1] == "blocks", *map(int, sys.argv[2:]))))
    else:
        main(*(int(word) for word in (sys.argv[1:] + ["4096", "896", "1"][len(sys.argv[1:]) :])))
