"""What the trainer's parts may know, beyond the contracts of pyproject.toml; and that its config holds no dead key."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from rltrain.config import schema
from rltrain.config.schema import RunConfig

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "trainer" / "rltrain"
SOURCES = sorted(TRAINER.rglob("*.py"))
MAX_LOOP_LINES = 150
HEAVY = {"torch", "ray", "vllm", "sglang", "transformers", "tensordict", "datasets", "pyarrow"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_loop_is_read_in_one_go() -> None:
    assert (TRAINER / "controller" / "loop.py").read_text(encoding="utf-8").count("\n") < MAX_LOOP_LINES


def test_process_groups_are_the_business_of_ranks_and_weight_sync() -> None:
    """An engine and a training rank each own their process's default group; nobody else makes or uses one."""
    users = {
        ".".join(path.relative_to(TRAINER).parts[:2])
        for path in SOURCES
        if any(name.startswith(("torch.distributed", "torch._C._distributed")) for name in imports_of(path))
    }
    assert users == {"workers.fsdp", "workers.sync"}


CODES = {
    "help": (
        "from typer.testing import CliRunner\n"
        "from rltrain.cli.app import app\n"
        "assert CliRunner().invoke(app, ['run', '--help']).exit_code == 0"
    ),
    "dry run": (
        "from rltrain.config import check, load, notes, resolve\n"
        "from rltrain.config.resolve import Machine\n"
        "from rlcheck.measure.memory.predict import Gpu\n"
        "from rltrain.cli.dry_run import report\n"
        "config = resolve(load('toy-ppo'), Machine('cpu', 0, 2))\n"
        "check(config)\n"
        "assert list(report(config, 'table', Gpu('CPU', 1 << 34)))"
    ),
}


@pytest.mark.parametrize("name", CODES)
def test_it_imports_no_training_stack(name: str) -> None:
    code = f"import sys\n{CODES[name]}\nprint(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.strip().splitlines()[-1:] == ["[]"], done.stdout + done.stderr


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """MODEL and the sections in it."""
    yield model
    for field in model.model_fields.values():
        annotation = field.annotation
        for kind in (annotation, *getattr(annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from sections(kind)


def is_a_choice(model: type[BaseModel], name: str) -> bool:
    """Not a key of one value, which is there so that a config written for verl says what it means."""
    return len(getattr(model.model_fields[name].annotation, "__args__", (1, 2))) > 1


def test_every_config_key_does_something() -> None:
    """Each key is read somewhere outside of the schema and of the rules that only refuse values."""
    silent = {TRAINER / "config" / "rules.py", *(TRAINER / "config" / "schema").glob("*.py")}
    assert Path(schema.__file__) in silent
    read: set[str] = set()
    for path in set(SOURCES) - silent:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                read.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                read.add(node.value.rpartition(".")[2])
    dead = {
        f"{model.__name__}.{name}"
        for model in sections(RunConfig)
        for name in model.model_fields
        if name not in read and is_a_choice(model, name)
    }
    assert not dead
