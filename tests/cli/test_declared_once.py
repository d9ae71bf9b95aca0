"""Each option of a program is declared once; the declaration is a field of the request of its command."""

import ast
import importlib
import inspect
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from rlcheck.cli import declare
from rlcheck.cli.app import COMMANDS, request_of
from rltrain.cli.app import COMMANDS as TRAINER_COMMANDS
from tests.conftest import ROOT

PROGRAMS = {"rlcheck": ROOT / "rlcheck" / "cli", "rltrain": ROOT / "trainer" / "rltrain" / "cli"}
REQUESTS: dict[str, dict[str, type[Any]]] = {
    "rlcheck": {name: request_of(name) for name in COMMANDS},
    "rltrain": {name: request for name, (request, _) in TRAINER_COMMANDS.items()},
}
REQUEST_FILES = {"requests", "report", "configs", "machines", "records", "answers"}
DIFFERENT: dict[str, dict[str, tuple[int, str]]] = {
    "rlcheck": {
        "--all": (2, "drift tries every variant; diagnose shows every diagnosis"),
        "--config": (3, "data is read for it; diagnose words its fixes as overrides of it; slow makes floors of it"),
        "--facts": (2, "elsewhere they are judged; diagnose confirms what a log says by them"),
        "--fix": (2, "env changes the machine; data writes copies of files"),
        "--format": (2, "a report, or a list, which has two of the formats"),
        "--gpus-per-node": (2, "ray asks a cluster whether they are there; memory-profile plans for them"),
        "--head-ip": (3, "without it ray looks for the head, nccl stays on this machine, preflight asks the config"),
        "--ignore": (2, "elsewhere a check is waived; diagnose leaves a playbook out"),
        "--nodes": (2, "ray asks a cluster whether they are there; memory-profile plans for them"),
        "--quick": (2, "nccl measures fewer sizes; preflight leaves links out"),
        "--select": (3, "elsewhere checks are run; list lists them; diagnose uses playbooks"),
        "--start-timeout": (2, "the engine's start, or the first step of a run that is watched"),
        "--timeout": (3, "of each examination; run: of watching; diagnose: of silence, too"),
    },
    "rltrain": {},
}
"""Long options that are declared for several commands: how often, and why they do not mean the same."""


def declarations(directory: Path) -> dict[str, list[str]]:
    """Where each option string is given to `typer.Option`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(directory.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.Option":
                for word in node.args:
                    if isinstance(word, ast.Constant) and str(word.value).startswith("--"):
                        found[str(word.value)].append(f"{path.name}:{node.lineno}")
    return found


def functions(directory: Path) -> list[tuple[str, list[str]]]:
    """Every function with the names of its parameters."""
    return [
        (
            f"{path.name}:{node.name}",
            [word.arg for word in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)],
        )
        for path in sorted(directory.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_option_is_declared_once(program: str) -> None:
    found = declarations(PROGRAMS[program])
    assert len(found) > 5
    repeated = {option: len(places) for option, places in found.items() if len(places) > 1}
    assert repeated == {option: times for option, (times, _) in DIFFERENT[program].items()}, found


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_function_takes_what_a_request_holds(program: str) -> None:
    """`run(request)` takes the request; a function that takes the same fields again repeats the declaration."""
    fields = {name: {field.name for field in declare.declared(request)} for name, request in REQUESTS[program].items()}
    for function, parameters in functions(PROGRAMS[program]):
        for command, names in fields.items():
            assert len(names & set(parameters)) < 4, f"{function} repeats the request of {command}"


@pytest.mark.parametrize(("program", "command"), [(name, command) for name in REQUESTS for command in REQUESTS[name]])
def test_a_command_is_a_request_and_a_run(program: str, command: str) -> None:
    request = REQUESTS[program][command]
    module = importlib.import_module(f"{program}.cli.{command.replace('-', '_')}")
    assert get_type_hints(module.run) == {"request": request, "return": int}
    assert inspect.getdoc(request)
    names = [field.name for field in declare.declared(request)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_field_has_one_declaration(program: str) -> None:
    """No second dataclass repeats the options of a request."""
    requests = {request.__name__ for request in REQUESTS[program].values()}
    fields = [{field.name for field in declare.declared(request)} for request in REQUESTS[program].values()]
    for path in sorted(PROGRAMS[program].rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in requests:
                own = {part.target.id for part in node.body
                       if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)}  # fmt: skip
                assert path.stem in REQUEST_FILES or all(len(own & names) < 4 for names in fields), node.name


@dataclass(frozen=True)
class Inner:
    """What several requests hold."""

    first: Annotated[int, typer.Option("--first")] = 1
    fixed: str = "not an option"


@dataclass(frozen=True)
class Outer:
    """Try it."""

    ORDER: ClassVar = ("words", "second", "first", "many")
    words: Annotated[tuple[str, ...], typer.Argument()]
    inner: Inner = Inner()
    second: Annotated[str, typer.Option("--second", "-s")] = "b"
    many: Annotated[tuple[int, ...], typer.Option("--many")] = ()


def test_annotations_that_are_no_values_are_refused() -> None:
    names: dict[str, Any] = {}
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    a: int = 1\n"
    )
    exec(text, names)
    with pytest.raises(TypeError, match="without `from __future__ import annotations`"):
        declare.command(names["A"], __name__)


def test_a_dataclass_becomes_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(f"{__name__}.run", lambda request: asked.append(request) or 7, raising=False)
    app = typer.Typer(rich_markup_mode=None)
    app.command("try")(declare.command(Outer, __name__))
    done = CliRunner().invoke(app, ["a", "b", "--many", "3", "--many", "4", "--first", "5"])
    assert done.exit_code == 7
    assert asked == [Outer(("a", "b"), Inner(5), "b", (3, 4))]
    text = CliRunner().invoke(app, ["--help"]).output
    assert "Try it." in text
    assert "fixed" not in text
    assert text.index("--second") < text.index("--first") < text.index("--many")
    assert CliRunner().invoke(app, []).exit_code == 2
