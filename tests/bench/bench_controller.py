"""What the controller pays for answers: seconds and memory from arrays as Ray delivers them to the batch.

    .venv/bin/python tests/bench/bench_controller.py [--rows 8192] [--tokens 8192] [--prompt 512] [--group 8]
        [--every] [--old]

Synthetic answers of exactly TOKENS tokens, pickled as Ray does it (protocol 5, buffers out of band), in pieces of one
`collect`. `--every`: log-probabilities of all answers, not of one in 16.
`--old`: tuples of Python numbers instead, as they crossed before, for comparison (73 bytes a token: take fewer rows).
Decoding is not counted: it happens while answers are generated.
"""

from __future__ import annotations

import argparse
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rltrain.controller.assemble import assemble
from rltrain.core.batch import Sample
from rltrain.workers.rollout.protocol import Completion

PIECE = 256
"""Answers in one `collect`."""
MB = 1 << 20


def pieces(options: argparse.Namespace) -> list[tuple[bytes, list[Any]]]:
    """Finished answers as they cross: pickled, with their buffers apart."""
    rng, found = np.random.default_rng(0), []
    for start in range(0, options.rows, PIECE):
        some = []
        for row in range(start, min(start + PIECE, options.rows)):
            ids = rng.integers(0, 150_000, options.tokens, dtype=np.int32)
            log_probs = -rng.random(options.tokens, dtype=np.float32) if options.every or row % 16 == 0 else None
            prompt = np.full(options.prompt, row // options.group, dtype=np.int32)
            if options.old:
                values = () if log_probs is None else tuple(log_probs.tolist())
                some.append((row, (tuple(ids.tolist()), values, tuple(prompt.tolist()))))
            else:
                some.append((row, Completion(ids, log_probs, "stop", prompt, ((0, 1),))))
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(some, protocol=5, buffer_callback=buffers.append)
        found.append((data, [bytes(buffer) for buffer in buffers]))
    return found


class Memory:
    """The most resident memory of this process in a block, above what there was."""

    def __enter__(self) -> Memory:
        self._over, self.most = threading.Event(), 0
        self._before = resident()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.most = max(self.most, resident() - self._before)
        self.most = max(self.most, resident() - self._before)


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def new_batch(samples: list[Sample], crossed: list[tuple[bytes, list[Any]]]) -> int:
    """Rows of the batch that training gets."""
    found: dict[int, Completion] = {}
    for data, buffers in crossed:
        found |= dict(pickle.loads(data, buffers=buffers))
    return len(assemble(samples, [found[row].trajectory() for row in range(len(samples))], 0))


def old_batch(samples: list[Sample], crossed: list[tuple[bytes, list[Any]]]) -> int:
    """The same from tuples: one tensor for each, then rows of padded ones."""
    found: dict[int, Any] = {}
    for data, buffers in crossed:
        found |= dict(pickle.loads(data, buffers=buffers))
    width = max(len(one[0]) for one in found.values())
    ids = torch.zeros((len(samples), width), dtype=torch.int64)
    log_probs = torch.zeros((len(samples), width))
    for row in range(len(samples)):
        tokens, values, _ = found[row]
        ids[row, : len(tokens)] = torch.tensor(list(tokens), dtype=torch.int64)
        log_probs[row, : len(values)] = torch.tensor(values)
    return len(ids)


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 8192), ("tokens", 8192), ("prompt", 512), ("group", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("every", "old"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    prompts = [(group,) * options.prompt for group in range(-(-options.rows // options.group))]
    groups = [row // options.group for row in range(options.rows)]
    samples = [Sample(str(group), row, prompt_ids=prompts[group]) for row, group in enumerate(groups)]
    crossed = pieces(options)
    with Memory() as memory:
        begun, busy = time.perf_counter(), time.thread_time()
        rows = (old_batch if options.old else new_batch)(samples, crossed)
        seconds, busy = time.perf_counter() - begun, time.thread_time() - busy
    tokens = rows * options.tokens
    print(
        f"{rows} answers, {tokens / 1e6:.1f} M tokens: {seconds:.2f} s ({busy:.2f} s of them computing), "
        f"{memory.most / MB:.0f} MiB at most, {memory.most / tokens:.1f} bytes a token"
    )


if __name__ == "__main__":
    main()
