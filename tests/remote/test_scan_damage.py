"""What a disk that was full, a move or a hand in site-packages leaves behind, made with real environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.document import Facts
from rlcheck.finding import Finding
from rlcheck.measure.machine import python as probe
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.playbook import Library
from tests.remote.trees import compile_library, install, scan


def wheel(directory: Path, name: str, files: dict[str, bytes]) -> None:
    """A wheel of version 1.0 that pip takes."""
    info = f"{name}-1.0.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,{len(data)}\n" for path, data in files.items()))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `env`, a virtual environment that has a package called verl, and the wheel of it."""
    root = tmp_path_factory.mktemp("made")
    compile_library(root / "lib.so", "int f(void) { return 1; }")
    sources = {f"verl/{name}.py": b"" for name in ("__init__", "core", "data")}
    wheel(root, "verl", {**sources, "verl/big.so": (root / "lib.so").read_bytes()})
    subprocess.run([sys.executable, "-m", "venv", root / "env"], check=True, timeout=120)
    pip(root / "env", "install", "-q", "--no-index", "--find-links", str(root), "verl")
    return root


def pip(env: Path, *arguments: str) -> None:
    subprocess.run([env / "bin/python", "-m", "pip", *arguments], check=True, timeout=120)


def site_of(env: Path) -> Path:
    return next(env.glob("lib/python3*/site-packages"))


def judge(env: Path, id: str, cwd: Path | None = None) -> Finding:
    """The finding about an environment, as `rlcheck env --python ENV` makes it in the directory CWD."""
    before = Path.cwd()
    os.chdir(cwd or "/")
    try:
        fact = probe.collect(ProbeContext(environ={}, python=(str(env),)))
    finally:
        os.chdir(before)
    (check,) = (check for check in family_checks("ENV") if check.id == id)
    return judging.judge(Facts(python=fact), (check,), Library())[0]


def run_fix(finding: Finding, root: Path) -> None:
    """Run the first fix; pip finds its wheels in ROOT."""
    environ = {"PATH": os.environ["PATH"], "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root)}
    command = ["sh", "-c", finding.fixes[0].command]
    done = subprocess.run(command, env=environ, check=False, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("how", ["cut short", "points nowhere"])
def test_a_damaged_library_and_its_fix(made: Path, how: str) -> None:
    library = site_of(made / "env") / "verl/big.so"
    if how == "cut short":
        os.truncate(library, library.stat().st_size // 2)
    else:
        library.unlink()
        library.symlink_to("/cache/that/was/cleaned/big.so")
    found = judge(made / "env", "ENV048")
    assert found.status == "fail"
    assert f"verl 1.0: verl/big.so: {'a link that ' if how != 'cut short' else ''}{how}" in found.message
    run_fix(found, made)
    assert judge(made / "env", "ENV048").status == "pass"


def test_a_library_that_was_stripped_is_whole(made: Path, tmp_path: Path) -> None:
    strip = shutil.which("strip")
    if strip is None:
        pytest.skip("needs strip")
    library = site_of(made / "env") / "verl/big.so"
    size = library.stat().st_size
    subprocess.run([strip, library], check=True, timeout=20)
    assert library.stat().st_size < size
    assert judge(made / "env", "ENV048").status == "pass"


def test_a_record_that_is_gone_and_its_fix(made: Path) -> None:
    (record,) = site_of(made / "env").glob("verl-1.0.dist-info/RECORD")
    record.unlink()
    found = judge(made / "env", "ENV026")
    assert (found.status, "no RECORD" in found.message) == ("warn", True)
    run_fix(found, made)
    assert judge(made / "env", "ENV026").status == "pass"


def test_metadata_that_is_gone_is_no_leftover_to_remove(made: Path) -> None:
    (record,) = site_of(made / "env").glob("verl-1.0.dist-info/METADATA")
    record.unlink()
    found = judge(made / "env", "ENV026")
    assert found.status == "fail"
    assert "verl==1.0" in found.fixes[0].command
    leftovers = judge(made / "env", "ENV025")
    assert leftovers.status == "pass", leftovers.message
    run_fix(found, made)
    assert judge(made / "env", "ENV026").status == "pass"


def test_a_moved_and_a_copied_environment(made: Path, tmp_path: Path) -> None:
    old, moved, copy = tmp_path / "old", tmp_path / "moved", tmp_path / "copy"
    subprocess.run([sys.executable, "-m", "venv", old], check=True, timeout=120)
    assert judge(old, "ENV049").status == "pass"
    shutil.copytree(old, copy, symlinks=True)
    found = judge(copy, "ENV049")
    assert (found.status, str(old) in found.message) == ("warn", True)
    old.rename(moved)
    found = judge(moved, "ENV049")
    assert (found.status, "find no Python (pip)" in found.message) == ("fail", True)
    run_fix(found, made)
    assert judge(moved, "ENV049").status == "pass"
    said = subprocess.run([moved / "bin/pip", "--version"], check=True, capture_output=True, text=True, timeout=60)
    assert str(moved) in said.stdout


def test_the_working_directory_comes_first(made: Path, tmp_path: Path) -> None:
    assert judge(made / "env", "ENV031", tmp_path).status == "pass"
    (tmp_path / "wandb").mkdir()  # a plain folder hides nothing
    (tmp_path / "turtle.py").touch()
    assert judge(made / "env", "ENV031", tmp_path).status == "warn", "of the standard library, and nobody needs it"
    (tmp_path / "random.py").touch()
    found = judge(made / "env", "ENV031", tmp_path)
    assert (found.status, f"{tmp_path}/random.py" in str(found.details)) == ("fail", True)
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl/__init__.py").touch()
    found = judge(made / "env", "ENV031", tmp_path)
    assert (found.status, f"verl is found first in {tmp_path}/verl" in found.message) == ("fail", True)
    assert "unset" not in found.fixes[0].command


def test_a_checkout_in_the_working_directory_is_a_warning(made: Path, tmp_path: Path) -> None:
    shutil.copytree(site_of(made / "env") / "verl", tmp_path / "verl")
    assert judge(made / "env", "ENV031", tmp_path).status == "warn"


def test_a_pth_file_that_imports_what_is_gone(made: Path) -> None:
    path = site_of(made / "env") / "zz_mine.pth"
    path.write_text("# mine\nimport sys; import nonexistent_thing\n/tmp\n")
    found = judge(made / "env", "ENV025")
    assert (found.status, f"{path}:2: imports nonexistent_thing" in found.message) == ("warn", True)
    path.write_text("import sys; sys.exit(3)\n")
    fact = probe.collect(ProbeContext(environ={}, python=(str(made / "env"),)))
    path.unlink()
    assert fact.missing is not None
    assert f"every start of this Python runs {path}:1: import sys; sys.exit(3)" in fact.missing.reason


def test_what_is_imported_in_any_case(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    sources = {
        "verl/__init__.py": "from .core import Trainer\n_LATE = {'LLM': '.late'}\n",
        "verl/core.py": "import os, tensordict\nif os.name:\n    import colorama\n",
        "verl/late.py": "import hydra.core\n",
        "verl/extra.py": "import torchao\n",
        "verl/guarded.py": "try:\n    import wandb\nexcept ImportError:\n    wandb = None\n",
    }
    install(site, "verl", requires=("tensordict", "colorama", "hydra", "torchao", "wandb", "peft; extra == 'lora'"),
            files=sources)  # fmt: skip
    assert scan(site)["unguarded"] == {"tensordict": "verl/core.py:1"}
