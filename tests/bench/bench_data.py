"""How long `rlcheck data` takes for a million rows, and how much memory.

    python -m tests.bench.bench_data [--rows 1000000] [--words 14] [--formats jsonl,parquet,gz] [--no-tokenizer]
                                     [--keep DIR]

Makes rows of about 300 bytes (2 kB with --words 270): arithmetic word problems as verl has them, a thousandth of them
wrong in known ways; a byte-level BPE tokenizer trained on them, and a config. Runs the command as a user does and
prints seconds, peak memory of all its processes together, and whether the counts are those that were put in.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

WORDS = ("apple", "basket", "river", "market", "teacher", "garden", "window", "letter", "bottle", "painter", "engine",
         "farmer", "ticket", "school", "bridge", "island", "planet", "coffee", "hammer", "pencil")  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_row(number: int, draw: random.Random, num_words: int = 14) -> dict:
    """A row of about 300 bytes, or with more words."""
    words = " ".join(draw.choices(WORDS, k=num_words))
    a, b = draw.randrange(10**6), draw.randrange(100)
    return {
        "prompt": [{"role": "user", "content": f"In row {number}: {words}. What is {a} + {b}?"}],
        "data_source": draw.choice(("openai/gsm8k", "openai/gsm8k", "math_dapo")),
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"index": number, "split": "train"},
    }


FAULTS = ("json", "prompt_empty", "truth_missing", "nul", "repeated")


def write_jsonl(path: Path, num_rows: int, num_words: int) -> dict[str, int]:
    """The rows, a thousandth of them wrong; returns how often each fault was put in."""
    draw, put = random.Random(5), dict.fromkeys(FAULTS, 0)
    before = ""
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_rows):
            row = make_row(number, draw, num_words)
            line = json.dumps(row)
            if number % 1000 == 999:
                fault = FAULTS[number // 1000 % len(FAULTS)]
                put[fault] += 1
                if fault == "json":
                    line = line[:-3]
                elif fault == "prompt_empty":
                    row["prompt"][0]["content"] = "  "
                    line = json.dumps({**row, "prompt": "  "})
                elif fault == "truth_missing":
                    del row["reward_model"]["ground_truth"]
                    line = json.dumps(row)
                elif fault == "nul":
                    row["prompt"][0]["content"] += "\0"
                    line = json.dumps(row)
                else:
                    line = before
            file.write(line + "\n")
            before = line
    return put


def write_parquet(path: Path, num_rows: int, num_words: int) -> None:
    """The same rows without faults, in row groups of 200 000; pandas writes up to a million into one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = random.Random(5)
    writer = None
    for start in range(0, num_rows, 200_000):
        numbers = range(start, min(start + 200_000, num_rows))
        table = pa.Table.from_pylist([make_row(number, draw, num_words) for number in numbers])
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def make_tokenizer(directory: Path) -> None:
    """A byte-level BPE of 4000 tokens with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    draw = random.Random(6)
    texts = [make_row(number, draw)["prompt"][0]["content"] for number in range(3000)]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)


def timed(command: list[str]) -> tuple[float, int, str, int]:
    """Seconds, peak bytes (proportional set size) of the process and its children, standard output, exit code."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        top = psutil.Process(process.pid)
        while not ended.wait(0.2):
            try:
                family = [top, *top.children(recursive=True)]
                peak = max(peak, sum(one.memory_full_info().pss for one in family))
            except psutil.Error:
                continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    out, err = process.communicate()
    ended.set()
    watcher.join()
    if process.returncode not in (0, 1):
        sys.exit(err)
    return time.perf_counter() - started, peak, out, process.returncode


def main() -> None:
    """Make the files, run the command on each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=14)
    parser.add_argument("--formats", default="jsonl,parquet")
    parser.add_argument("--no-tokenizer", action="store_true")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    directory = args.keep or Path(tempfile.mkdtemp(prefix="bench-data-"))
    directory.mkdir(exist_ok=True)
    put = write_jsonl(directory / "rows.jsonl", args.rows, args.words)
    if "parquet" in args.formats:
        write_parquet(directory / "rows.parquet", args.rows, args.words)
    if "gz" in args.formats:
        with (directory / "rows.jsonl").open("rb") as source, gzip.open(directory / "rows.gz", "wb", 1) as packed:
            shutil.copyfileobj(source, packed)
    make_tokenizer(directory / "tokenizer")
    config = directory / "run.json"
    rules = [{"kind": "gsm8k", "name": "gsm8k", "data_sources": None}]
    config.write_text(json.dumps({"data": {"max_prompt_length": 512}, "reward": {"rules": rules}}))
    extra = [] if args.no_tokenizer else ["--tokenizer", str(directory / "tokenizer")]
    print(f"{args.rows} rows, {(directory / 'rows.jsonl').stat().st_size / args.rows:.0f} bytes each as JSONL")
    for name in args.formats.split(","):
        path = directory / f"rows.{name}"
        facts = directory / f"{name}.facts.json"
        command = [
            sys.executable,
            "-m",
            "rlcheck",
            "data",
            str(path),
            "--config",
            str(config),
            "--framework",
            "spec",
            *extra,
            "--record",
            str(facts),
        ]
        seconds, peak, _, code = timed(command)
        found = json.loads(facts.read_text())["nodes"][0]["dataset"]["value"]
        counts = {one["kind"]: one["count"] for one in found.get("troubles", ())}
        wrong = {} if name == "parquet" else {kind: (put[kind], counts.get(kind, 0)) for kind in FAULTS
                                              if put[kind] != counts.get(kind, 0)}  # fmt: skip
        judged = "counts right" if not wrong else f"put in and found differ: {wrong}"
        print(f"{name:8} {seconds:6.1f} s  {peak / 2**20:5.0f} MiB in all  exit {code}  {judged}")
    if not args.keep:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
