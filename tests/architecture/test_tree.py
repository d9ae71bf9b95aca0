"""What must not be in the tree, and what the packages may import."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Split so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:wo" r"rk|fa" r"rm)/|/root/\.py" r"env|/tmp/[a-z]+-[0-9a-f]{8}")
REGISTRY = re.compile(r"https?://(?:files|registry|deb|py" r"pi|security)\.[a-z.]+/")
STACK = {"torch", "ray", "vllm", "sglang", "transformers", "tensordict", "rltrain", "pynvml", "grpc", "pydantic"}


def tracked_texts() -> dict[str, str]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts: dict[str, str] = {}
    for name in filter(None, names.split("\0")):
        try:
            texts[name] = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
    assert len(texts) > 50
    return texts


def test_no_machine_path_and_no_registry() -> None:
    lines = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in tracked_texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line) or REGISTRY.search(line)
    ]
    assert not lines


def test_no_binaries() -> None:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    binary = [name for name in names if re.search(r"\.(so|whl|pt|safetensors|bin|pyc|zip|gz)$", name)]
    assert not binary


def test_doctor_process_stays_light() -> None:
    """A whole `rlcheck env` in one process imports nothing of the training stack."""
    code = (
        "import sys\n"
        "from rlcheck.cli.env import EnvRequest, run\n"
        "import io; sys.stdout = io.StringIO()\n"
        "run(EnvRequest())\n"
        f"print(sorted({STACK!r} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_import_contracts() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
