"""What an update of the actor takes on one GPU, without engine or Ray: `update.py SIZE [--rows N] [--passes …]`.

The shapes of Qwen2.5 0.5B (S) and 1.5B (M) with random weights in bfloat16, N rows (128) of 64 + 512 tokens, one
optimizer step, by the training rank of a run in this process. For each number of rows in a pass: seconds of the faster
of two updates, and its share of 989 TFLOP/s at 6 x parameters x tokens; with activations computed again in the backward
pass, and kept (--keep). --plain: without kernels of our own for parts of layers. --profile FILE: of the last one.
Last, what checksums of all weights take.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportArgumentType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import Qwen2Config

from rltrain.algos.aggregation import AggNormalizer
from rltrain.config import load
from rltrain.config.machine import this_machine
from rltrain.config.resolve import resolve
from rltrain.config.schema import RunConfig
from rltrain.measure.memory.random_weights import RandomWeights
from rltrain.measure.memory.rows import full_rows
from rltrain.workers.fsdp import fused_layers
from rltrain.workers.fsdp.actor import update_and_read
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch
from rltrain.workers.fsdp.rank import RankInfo, free_port
from rltrain.workers.fsdp.worker import TrainWorker

CONFIG = Path(__file__).parent / "grpo-0.5b.yaml"
PROMPT, ANSWER = 64, 512
PEAK_FLOPS = 989e12
SHAPES = {
    "S": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "M": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
}


class Bench:
    """A training rank on the GPU, and rows to learn from."""

    def __init__(self, size: str, rows: int) -> None:
        directory = tempfile.mkdtemp()
        shape = Qwen2Config(**SHAPES[size], num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True)
        shape.save_pretrained(directory)
        self.config: RunConfig = resolve(
            load(str(CONFIG), [f"actor_rollout_ref.model.path={directory}"]), this_machine()
        )
        self.worker = TrainWorker(self.config, RankInfo(0, 1, "127.0.0.1", free_port(), "cuda:0"), RandomWeights())
        begun = time.perf_counter()
        facts = self.worker.setup(100)
        print(f"set up in {time.perf_counter() - begun:.1f} s; one kernel each: {facts['fused']}", flush=True)
        self.actor = self.worker._models["actor"]
        self.num_parameters = facts["num_parameters"]["actor"]
        self.fields = full_rows(MicroSize(rows, None), PROMPT, ANSWER, shape.vocab_size)
        self.fields["advantages"] = torch.randn(rows, ANSWER, generator=torch.Generator().manual_seed(0))

    def update(self, rows_of_a_pass: int) -> float:
        """Take one optimizer step; seconds."""
        wanted = {"ppo_micro_batch_size_per_gpu": rows_of_a_pass}
        section = self.config.actor_rollout_ref.actor.model_copy(update=wanted)
        mask = self.fields["response_mask"]
        mini = MiniBatch(self.fields, AggNormalizer.of(mask, float(ANSWER)), -(-len(mask) // rows_of_a_pass))
        torch.cuda.synchronize()
        begun = time.perf_counter()
        update_and_read(self.actor, self.worker._policy(self.actor), section, mini, 1)
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    def measure(self, name: str, passes: Sequence[int]) -> None:
        """Print a line for each number of rows in a pass."""
        tokens = self.fields["input_ids"].numel()
        for rows in passes:
            torch.cuda.reset_peak_memory_stats()
            first, *others = (self.update(rows) for _ in range(3))
            share = 6 * self.num_parameters * tokens / min(others) / PEAK_FLOPS
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(f"{name}, {rows:3} rows a pass: first {first:.2f} s, then {min(others):.3f} s, {share:.1%} of the "
                  f"peak, {peak:.1f} GiB", flush=True)  # fmt: skip

    def profile(self, rows: int, file: Path) -> None:
        """Write where an update's time goes on the GPU, and on the host."""
        with torch.profiler.profile() as found:
            self.update(rows)
        tables = (found.key_averages().table(sort_by=f"self_{one}_time_total", row_limit=40) for one in ("cuda", "cpu"))
        file.write_text("\n".join(tables))

    def checksums(self) -> None:
        """Print what those of all weights take."""
        self.worker.weight_pieces()
        begun = time.perf_counter()
        found = self.worker.weight_pieces()
        print(f"checksums of {len(found)} tensors: {time.perf_counter() - begun:.3f} s", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=sorted(SHAPES))
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--passes", type=int, nargs="*", default=[32])
    parser.add_argument("--keep", type=int, nargs="*", default=[])
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--profile", type=Path)
    asked = parser.parse_args()
    if asked.plain:
        fused_layers.fuse = lambda *_: set()
    bench = Bench(asked.size, asked.rows)
    bench.measure("computed again", asked.passes)
    if asked.keep:
        bench.actor.model.gradient_checkpointing_disable()  # pyright: ignore[reportCallIssue]
        bench.measure("kept", asked.keep)
    if asked.profile:
        bench.profile((asked.keep or asked.passes)[-1], asked.profile)
    bench.checksums()
    bench.worker.shutdown()


if __name__ == "__main__":
    main()
