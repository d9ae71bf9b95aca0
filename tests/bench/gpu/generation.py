"""What the engine's bare call takes on one GPU: `generation.py CONFIG [VALUE...] [--times N]`.

The model, engine arguments and lengths of CONFIG; `train_batch_size` * `rollout.n` answers of `max_response_length`
tokens, by `vllm.LLM.generate` in one call: without log-probabilities, with those of the sampled tokens of one answer in
16, and of all; a seed for every request. Seconds of each call are printed. The run's own is `timing_s/gen` of its
metrics (report.py).
"""

# vLLM has no stubs.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import argparse
import os
import random
import time

from rltrain.config import load
from rltrain.config.machine import this_machine
from rltrain.config.resolve import resolve
from rltrain.workers.rollout.vllm import options, versions


def main(source: str, overrides: list[str], times: int) -> None:
    """Print seconds of each call."""
    config = resolve(load(source, overrides), this_machine())
    rollout, data = config.actor_rollout_ref.rollout, config.data
    model_dir = str(config.actor_rollout_ref.model.path)
    adapter = versions.choose(config.trainer.device, *versions.installed())
    quiet = {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING")}
    os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} | adapter.environ() | quiet)
    from vllm import LLM, SamplingParams

    begun = time.perf_counter()
    llm = LLM(**options.base(config, model_dir, True) | adapter.arguments(config, model_dir))
    print(f"engine started in {time.perf_counter() - begun:.1f} s", flush=True)
    draw = random.Random(0)
    count, length = data.train_batch_size * rollout.n, data.max_response_length
    prompts = [[draw.randrange(100, 400) for _ in range(64)] for _ in range(data.train_batch_size)]
    asked = [{"prompt_token_ids": prompts[row // rollout.n]} for row in range(count)]
    kinds = (("no log-probs", 0), ("log-probs of one in 16", 16), ("log-probs of sampled tokens", 1))
    for name, one_in in kinds:
        for _ in range(times):
            params = [
                SamplingParams(
                    max_tokens=length,
                    ignore_eos=True,
                    logprobs=0 if one_in and row % one_in == 0 else None,
                    seed=row,
                    detokenize=False,
                )
                for row in range(count)
            ]
            llm.reset_prefix_cache()
            begun = time.perf_counter()
            answers = llm.generate(asked, params, use_tqdm=False)
            seconds = time.perf_counter() - begun
            tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
            print(f"{name}: {seconds:.2f} s for {tokens} tokens", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--times", type=int, default=3)
    options_given = parser.parse_args()
    main(options_given.source, options_given.overrides, options_given.times)
