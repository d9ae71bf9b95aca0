"""Write tests/fixtures/releases.txt: in which releases of a package the words of the playbooks stand.

    python -m tests.tools.releases [PACKAGE ...] [--keep DIR]

For maintainers: each package is fetched with pip, its current release and the two before, read and deleted; 7 GB are
fetched in all. `--keep` leaves the texts in DIR, which makes a second run short. With names of packages, what is known
of the others stays as it is. What is looked for: environment variables and options of command lines that a playbook
offers, and the constant text of every signature. `tests/architecture/test_releases.py` compares the playbooks with the
record.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlcheck.diagnose.blocks import Cutter
from rlcheck.diagnose.scan import Finder
from rlcheck.playbook import Library, Playbook
from tests.tools.release_texts import PACKAGES, keep_text, versions_of

RECORD = Path(__file__).parents[1] / "fixtures" / "releases.txt"
NOWHERE = "none"
LEAST = 12
"""Characters of a constant text that is worth looking for."""
_MOST = 3
"""Packages that are named for one text."""
_OWNERS = (
    r"ACCELERATE|BNB|DEEPSPEED|DS|FLASHINFER|FLASH_ATTENTION|GLOO|HF|HUGGING_FACE|HYDRA|NCCL|"
    r"PYTORCH|RAY|SGL|SGLANG|TOKENIZERS|TORCH|TORCHDYNAMO|TORCHINDUCTOR|TRANSFORMERS|TRITON|TRL|"
    r"VERL|VLLM|WANDB"
)
VARIABLE = re.compile(rf"(?<![\w.])(?<!unset )(?<!grep )(?:{_OWNERS})(?:_[A-Z0-9]+)+(?![\w*])")
_OPTION = r"--[a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)*"
OPTION = re.compile(rf"(?<![\w-]){_OPTION}(?![\w*])")
_PROGRAM = re.compile(
    rf"(?P<option>(?<![\w-]){_OPTION})|(?<![\w./-])(?P<mine>vllm|sglang|torchrun|accelerate|deepspeed|hf|ray|trl|wandb)\b"
    r"|(?<![\w./-])(?P<other>[a-z][\w.-]*)(?= )|[;`|]"
)
_FIELD = re.compile(rb"^    ([a-z]\w+) *: ", re.M)
_FOUND = re.compile(rf"(?:{_OWNERS})(?:_[A-Z0-9]+)+|{_OPTION}".encode())
_PARSER: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


@dataclass
class Record:
    """What is in the file: when each package was read and in which releases, and where each word stands."""

    date: str = ""
    releases: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    words: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])

    def current(self, word: str) -> list[str]:
        """The packages whose current release holds WORD."""
        return [name for name, versions in self.words.get(word, {}).items() if versions[0] == self.releases[name][0]]

    def gone(self, word: str) -> bool:
        """Whether WORD stands in an older release of what was read, and in no current one."""
        return bool(self.words.get(word)) and not self.current(word)


def offered(book: Playbook) -> Iterator[str]:
    """Yield the texts of BOOK that tell what to type or to set: its fixes and commands, one after the other."""
    yield from (f"{fix.title}\n{fix.command}\n{fix.caution}" for fix in book.fixes)
    lines = (line for step in book.verify for line in step.run.split("\n"))
    yield from (line for line in lines if "grep" not in line)  # what is looked for need not be there


def words_of(text: str) -> Iterator[str]:
    """Yield the variables, and the options of programs that the record covers or that nobody is named for.

    >>> [*words_of("ray start --head; docker run --init; export VLLM_PORT=1; NCCL_IB_*")]
    ['--head', 'VLLM_PORT']
    """
    for line in text.split("\n"):
        program = ""
        for match in _PROGRAM.finditer(line):
            if match["option"] is None:
                ends = match["mine"] is None and match["other"] is None
                program = match["other"] if match["other"] in OTHERS else "" if ends or match["mine"] else program
            elif program not in OTHERS and match["option"] not in _THEIRS:
                yield match["option"]
    yield from VARIABLE.findall(text)


OTHERS = {
    "apptainer", "apt", "apt-get", "conda", "curl", "docker", "enroot", "git", "helm", "ip", "journalctl",
    "kubectl", "mpirun", "numactl", "nvidia-smi", "nvcc", "pip", "podman", "rlcheck", "rltrain", "rocm-smi",
    "amd-smi", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "singularity", "slurm", "squeue", "srun",
    "ssh", "sudo", "systemctl", "uv",
}  # fmt: skip
"""Programs whose options no package here defines."""
_THEIRS = {
    # Slurm and pyxis
    "--account", "--cpus-per-task", "--exclusive", "--gpu-bind", "--gpus-per-node", "--gpus-per-task", "--gres",
    "--mem", "--mem-per-cpu", "--mem-per-gpu", "--ntasks-per-node", "--qos", "--requeue", "--signal", "--time",
    "--container-image", "--container-mounts",
    # containers
    "--cpus", "--gpus", "--ipc", "--memory", "--network", "--nv", "--rocm", "--shm-size", "--ulimit",
    "--writable-tmpfs", "--cap-add", "--runtime",
    # pip, wsl, perftest
    "--default-timeout", "--find-links", "--index-url", "--isolated", "--no-binary", "--no-build-isolation",
    "--no-cache-dir", "--no-deps", "--install", "--report_gbits",
    # text-generation-inference
    "--cuda-memory-fraction", "--max-batch-prefill-tokens", "--max-input-tokens", "--num-shard",
    # slime, Isaac Lab, examples of verl and DeepSpeed, rlcheck
    "--log-probs-chunk-size", "--max-tokens-per-gpu", "--num_envs", "--local_save_dir", "--enable_hybrid_engine",
    "--inference_tp_size", "--head-ip", "--disable-weights-backuper",
}  # fmt: skip
"""Options of such programs, where a sentence names them without their program."""


def texts_of(pattern: str, literal: str) -> set[str]:
    """Return the longest constant text of each alternative of PATTERN; LITERAL where it is long enough.

    >>> sorted(texts_of(r"Cannot find (?P<x>\\S+) in the cache|No such cache entry", "cache"))
    ['No such cache entry', 'in the cache']
    """
    if len(literal) >= LEAST:
        return {literal.strip()}
    tree = _PARSER.parse(pattern)
    parts = tree[0][1][1] if len(tree) == 1 and str(tree[0][0]) == "BRANCH" else [tree]
    found = {max(_runs(part), key=len, default="") for part in parts}
    return {text for text in found if len(text) >= LEAST}


def _runs(items: Any) -> Iterator[str]:
    run = ""
    for operation, argument in items:
        if str(operation) == "LITERAL":
            run += chr(argument)
            continue
        yield run.strip()
        run = ""
        if str(operation) == "SUBPATTERN":
            yield from _runs(argument[3])
    yield run.strip()


@cache
def signature_texts(library: Library) -> dict[str, list[str]]:
    """Return each constant text of the signatures of LIBRARY, with the playbooks that look for it."""
    found: dict[str, list[str]] = {}
    for playbook_id in library.ids():
        for signature in library.get(playbook_id).signatures:
            for text in texts_of(signature.pattern, signature.literal):
                if "\n" not in text and playbook_id not in found.setdefault(text, []):
                    found[text].append(playbook_id)
    return found


def read() -> Record:
    """Read the record."""
    record = Record()
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        if line.startswith("# read on "):
            record.date = line.removeprefix("# read on ")
        elif line.startswith("# "):
            name, *versions = line[2:].split(" ")
            record.releases[name] = versions
        else:
            word, places = line.split("\t")
            record.words[word] = {} if places == NOWHERE else dict(_place(one, record) for one in places.split("; "))
    return record


def _place(text: str, record: Record) -> tuple[str, list[str]]:
    name, *versions = text.split(" ")
    return name, versions or record.releases[name]


def write(record: Record) -> None:
    """Write RECORD: a package without versions means all of its releases that were read."""
    lines = [f"# read on {record.date}", *(f"# {name} {' '.join(v)}" for name, v in sorted(record.releases.items()))]
    for word, places in sorted(record.words.items()):
        # A current release first: the test asks for it.
        order = sorted(places, key=lambda name: (places[name][0] != record.releases[name][0], name))[:_MOST]
        told = [name if places[name] == record.releases[name] else " ".join((name, *places[name])) for name in order]
        lines.append(f"{word}\t{'; '.join(told) or NOWHERE}")
    RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")


def look(path: Path, words: set[str], texts: set[str]) -> set[str]:
    """Return those of WORDS and of TEXTS that the file at PATH holds; an option may be the field of a dataclass."""
    finder = Finder([text.encode() for text in texts])
    cutter = Cutter()
    found: set[bytes] = set()
    fields: set[bytes] = set()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            for block in cutter.feed(data):
                found.update(_FOUND.findall(block.data), finder.find(block.data)[0])
                fields.update(_FIELD.findall(block.data))
    if rest := cutter.rest():
        found.update(_FOUND.findall(rest.data), finder.find(rest.data)[0])
    named = {one.decode() for one in found} | {f"--{one.decode().replace('_', '-')}" for one in fields}
    named |= {f"--{one.decode()}" for one in fields}
    return {word for word in words | texts if word in named or _shorter(word) in named}


def _shorter(word: str) -> str:
    """The option that stands for WORD in a source: that of a switch, or that of a section.

    >>> _shorter("--no-enable-lora"), _shorter("--lora-config.rank")
    ('--enable-lora', '--lora-config')
    """
    if not word.startswith("--"):
        return word
    return re.sub(r"^--no-", "--", word).partition(".")[0]


def main(packages: list[str], folder: Path) -> None:
    """Read PACKAGES and write what was found of them to the record."""
    library = Library()
    books = [library.get(playbook_id) for playbook_id in library.ids()]
    words = {word for book in books for text in offered(book) for word in words_of(text)}
    texts = set(signature_texts(library))
    old = read() if RECORD.exists() else Record()
    record = Record(datetime.date.today().isoformat(), dict(old.releases))
    record.words = {word: dict(old.words.get(word, {})) for word in words | texts}
    for package in packages:
        record.releases[package] = versions_of(package)
        for places in record.words.values():
            places.pop(package, None)
        for version in record.releases[package]:
            print(f"reads {package} {version}", flush=True)
            for word in look(keep_text(package, version, folder), words, texts):
                record.words[word].setdefault(package, []).append(version)
    write(record)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=[*PACKAGES])
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    with TemporaryDirectory() as scratch:
        main(chosen.packages, chosen.keep or Path(scratch))
