"""Which modules import by a name made at run time, which import-linter cannot see: these, and no other."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import ROOT

BY_NAME = {
    "rlcheck/checks/__init__.py": "the checks of a family",
    "rlcheck/cli/app.py": "what a command can be asked",
    "rlcheck/cli/declare.py": "the command that was asked for",
    "rlcheck/diagnose/decode.py": "decoders, one module a topic",
    "rlcheck/diagnose/needed.py": "the parser of regular expressions, which has moved",
    "rlcheck/doctor/settings.py": "tomllib, or tomli",
    "rlcheck/measure/config/toml.py": "tomllib, or tomli",
    "rlcheck/measure/config/trainers/__init__.py": "the module of each trainer",
    "rlcheck/measure/run/trainer_state.py": "pyarrow, where it is installed",
    "rlcheck/measure/machine/python.py": "the scanner, which otherwise runs elsewhere",
    "rlcheck/measure/machine/registry.py": "the probe of a section",
    "rlcheck/remote/agent/boot.py": "a part of the agent, sent along",
    "rlcheck/remote/bootstrap.py": "the scanner, sent along",
    "rlcheck/remote/collectives/program.py": "a module that is sent along",
    "rlcheck/remote/data/tables.py": "pyarrow, where it is",
    "rlcheck/remote/import_child.py": "the package whose import is tried",
    "rlcheck/remote/plugin_child.py": "a framework's plug-in",
    "rlcheck/report/by_family.py": "what shows a family",
    "rlcheck/report/pages/collectives_plots.py": "matplotlib, where it is",
    "rlcheck/report/pages/drift_plots.py": "matplotlib, where it is",
    "rlcheck/report/pages/memory_plots.py": "matplotlib, where it is",
    "trainer/rltrain/algos/advantages/__init__.py": "the estimator of a name",
    "trainer/rltrain/cluster/fork_server.py": "what workers will need",
    "trainer/rltrain/config/engines.py": "what an engine's row names",
    "trainer/rltrain/config/paths.py": "huggingface_hub, where it is",
    "trainer/rltrain/controller/callbacks/wandb.py": "wandb, where it is",
    "trainer/rltrain/data/readers.py": "the library of a file format",
    "trainer/rltrain/measure/canary/plugin.py": "peft, where it is",
    "trainer/rltrain/measure/reward/child.py": "cloudpickle, where it is",
    "trainer/rltrain/proof/score.py": "numpy.random, where it is",
    "trainer/rltrain/rewards/math_reward.py": "math_verify, where it is",
    "trainer/rltrain/rewards/scorer.py": "numpy.random, where it is",
}
"""By path: what is imported there."""


def imports_by_name(path: Path) -> bool:
    """Whether the file calls `import_module` or `__import__`, under whatever name it has imported it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {"import_module", "__import__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "importlib":
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "import_module"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names) or (isinstance(node, ast.Name) and node.id in names)
        for node in ast.walk(tree)
    )


def test_only_these_import_by_name() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in (ROOT / "rlcheck", ROOT / "trainer" / "rltrain")
        for path in package.rglob("*.py")
        if imports_by_name(path)
    }
    assert found == set(BY_NAME)


def test_other_spellings_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    for text in (
        "import importlib as i\ni.import_module('x')",
        "from importlib import import_module as load\nload('x')",
        "__import__('x')",
    ):
        file.write_text(text)
        assert imports_by_name(file), text
    file.write_text("import importlib.metadata\nimportlib.metadata.version('x')")
    assert not imports_by_name(file)
