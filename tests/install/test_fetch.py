"""rlcheck/data/stacks/fetch.py: uv installs what pip is configured for, and pip where uv cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rlcheck.data.stacks import fetch
from tests.install.script import command

TORCH = "torch==2.13.0+cpu"
INDEX = "https://download.pytorch.org/whl/cpu"
NO_TORCH = f"cause: Because there is no version of {TORCH} and you require {TORCH}, we can conclude"
PIP_NO_TORCH = f"ERROR: No matching distribution found for {TORCH}"
UNREACHABLE = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
    "ERROR: No matching distribution found for absl-py==2.5.1"
)
FAILURES = [
    ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk filled up"),
    (UNREACHABLE, "registry is out of reach (absl-py==2.5.1 was not found)"),
    ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "PIP_CERT"),
    ("WARNING: ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407", "proxy"),
    ("ERROR: 401 Client Error: Unauthorized for url: https://example.com/simple/", "refused access"),
    ("ERROR: No matching distribution found for ray==2.60.0", "no configured package source has ray==2.60.0"),
    ("Traceback (most recent call last):\n  File x\nValueError: odd", "pip failed."),
]


class Home:
    """An environment whose uv and pip are played by commands; `calls` is what they were given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "bin").mkdir()
        (path / ".rlcheck").mkdir()
        (path / "calls").touch()

    def plays(self, tool: str, body: str = "") -> str:
        """`tool` writes down its arguments, then does `body`."""
        command(self.path / "bin", tool, f'echo "{tool} $*" >>{self.path}/calls\n{body}')
        return str(self.path / "bin" / tool)

    @property
    def calls(self) -> list[str]:
        return (self.path / "calls").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path)
    monkeypatch.setattr(fetch, "HOME", home.path)
    monkeypatch.setattr(fetch, "STATE", home.path / ".rlcheck")
    monkeypatch.setattr(fetch, "PIP_INSTALL", [home.plays("pip")])
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))  # where a machine may have settings of its own
    home.plays("uv")
    return home


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, stack: str = "cpu", offline: str = "") -> str:
    """`fetch.py` with these arguments; what it complains of."""
    monkeypatch.setattr(sys, "argv", ["fetch.py", stack, offline, *arguments])
    try:
        fetch.main()
    except SystemExit as end:
        return str(end)
    return ""


@pytest.mark.parametrize(("log", "words"), FAILURES)
def test_failures_are_explained(home: Home, monkeypatch: pytest.MonkeyPatch, log: str, words: str) -> None:
    (home.path / "log").write_text(f"Looking in indexes\n{log}\n", encoding="utf-8")
    for tool in ("uv", "pip"):
        home.plays(tool, f"cat {home.path}/log; exit 1")
    said = run(monkeypatch, "-r", "pins.txt")
    assert words in said.splitlines()[-1]
    assert said.splitlines()[-1].startswith("install.sh: ")
    assert "Traceback" not in said
    assert str(home.path / ".rlcheck" / "install.log") in said


def test_a_failure_to_fetch_leaves_a_complete_environment_complete(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    state = home.path / ".rlcheck" / "state"
    state.write_text("building 1 here\n", encoding="utf-8")
    home.plays("uv", "exit 2")
    home.plays("pip", "echo Installing collected packages: ruff; exit 1")
    (home.path / ".rlcheck" / "base.txt").touch()
    assert "pip failed." in run(monkeypatch, "-r", "pins.txt")
    assert state.read_text(encoding="utf-8") == "building 1 here\n"
    home.plays("pip", "echo ERROR: No matching distribution found for ruff==1; exit 1")
    assert "ruff==1" in run(monkeypatch, "-r", "pins.txt")
    assert state.read_text(encoding="utf-8") == "ready\n"


def test_uv_installs_and_pip_does_not(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "-r", "pins.txt") == ""
    (call,) = home.calls
    assert call.startswith(f"uv pip install --python {sys.executable} --index-strategy unsafe-best-match --no-deps")
    assert call.endswith("-r pins.txt")
    assert not (home.path / ".rlcheck" / "tmp").exists()


def test_the_project_is_built_with_the_pinned_back_end(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("uv", "pip"):
        home.plays(tool, f"echo $PIP_CONSTRAINT $PIP_BUILD_CONSTRAINT $UV_BUILD_CONSTRAINT >>{home.path}/calls; exit 1")
    run(monkeypatch, "--editable", "/project", stack="build")
    assert home.calls[1] == home.calls[3] == "build.txt build.txt build.txt"
    assert (fetch.STACKS / "build.txt").exists()


def test_pip_brings_uv(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.path / "bin" / "uv").unlink()
    monkeypatch.setattr(fetch, "PIP_INSTALL", [home.plays("pip", f"cp {home.path}/bin/pip {home.path}/bin/uv")])
    assert run(monkeypatch, "-r", "pins.txt", offline="/wheels") == ""
    assert (
        home.calls[0] == "pip --no-deps --no-index --find-links /wheels --only-binary :all: --constraint build.txt uv"
    )
    assert home.calls[1].endswith("--no-deps --no-index --find-links /wheels -r pins.txt")


def test_pip_installs_once_uv_has_failed(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home.plays("uv", "echo thread main panicked; exit 2")
    assert run(monkeypatch, "-r", "pins.txt") == ""
    assert capsys.readouterr().out.startswith("Note: uv does not install here (log: ")
    assert "panicked" in (home.path / ".rlcheck" / "uv.log").read_text(encoding="utf-8")
    assert run(monkeypatch, "-r", "more.txt") == ""
    assert [call.split()[0] for call in home.calls] == ["uv", "pip", "pip"]
    assert home.calls[1:] == ["pip --no-deps -r pins.txt", "pip --no-deps -r more.txt"]


def test_a_full_disk_is_no_failure_of_uv(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.plays("uv", "echo 'error: No space left on device (os error 28)'; exit 2")
    assert "the disk filled up" in run(monkeypatch, "-r", "pins.txt")
    assert len(home.calls) == 1


def test_torch_comes_from_its_own_index_only_after_the_configured_sources(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.plays("uv", f"case $* in *{INDEX}) ;; *) echo '{NO_TORCH}'; exit 1 ;; esac")
    assert run(monkeypatch, "-r", "pins.txt") == ""
    first, second = home.calls
    assert INDEX not in first
    assert second == f"{first} --extra-index-url {INDEX}"


def test_torch_that_is_nowhere_is_named_with_the_ways_out(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.plays("uv", f"echo '{NO_TORCH}'; exit 1")
    home.plays("pip", f"echo '{PIP_NO_TORCH}'; exit 1")
    said = run(monkeypatch, "-r", "pins.txt")
    assert f"{TORCH} is in none of the configured package sources, and {INDEX} is out of reach" in said
    assert "PIP_FIND_LINKS" in said
    assert [INDEX in call for call in home.calls] == [False, True, False, True]


@pytest.mark.parametrize(("stack", "offline"), [("cpu", ""), ("doctor", ""), ("cpu", "/wheels")])
def test_no_other_index_for_any_other_package(
    home: Home, monkeypatch: pytest.MonkeyPatch, stack: str, offline: str
) -> None:
    log = PIP_NO_TORCH if offline else PIP_NO_TORCH.replace(TORCH, "ray==2.60.0")
    for tool in ("uv", "pip"):
        home.plays(tool, f"echo '{log}'; exit 1")
    said = run(monkeypatch, "-r", "pins.txt", stack=stack, offline=offline)
    assert ("/wheels holds no wheel of torch" in said) == bool(offline)
    assert not [call for call in home.calls if "--extra-index-url" in call]
    assert len(home.calls) == 2


def test_uv_looks_where_pip_looks(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://mirror.example/simple\nextra-index-url =\n  https://a.example\n  file:///b\n"
        "find-links = /wheels\nconstraint = /pins.txt\ncert = /certs.pem\ntimeout = 9\n"
        "[install]\ntrusted-host = a.example\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_FIND_LINKS", "/other /more")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    home.plays("uv", f"echo cert $SSL_CERT_FILE >>{home.path}/calls")
    assert run(monkeypatch, "-r", "pins.txt") == ""
    call, cert = home.calls
    assert (
        "--default-index https://mirror.example/simple --index https://a.example --index file:///b "
        "--find-links /other --find-links /more --allow-insecure-host a.example --constraint /pins.txt --no-deps "
        "-r pins.txt"
    ) in call
    assert cert == "cert /certs.pem"
    assert run(monkeypatch, "-r", "pins.txt", offline="/wheels") == ""
    assert "mirror.example" not in home.calls[2]


def test_pip_installs_where_it_has_a_setting_that_uv_does_not_have(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PROXY", "http://proxy.example:3128")
    assert run(monkeypatch, "-r", "pins.txt") == ""
    assert home.calls == ["pip --no-deps -r pins.txt"]
    assert "configured with proxy" in (home.path / ".rlcheck" / "uv.log").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real environment with pip, as install.sh makes it, and beside it `wheels` with a wheel of acme 1.0."""
    folder = tmp_path_factory.mktemp("real")
    subprocess.run([sys.executable, "-I", "-m", "venv", str(folder / "venv")], check=True)
    (folder / "venv" / ".rlcheck").mkdir()
    (folder / "wheels").mkdir()
    info = "acme-1.0.dist-info"
    with zipfile.ZipFile(folder / "wheels" / "acme-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("acme.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\nRequires-Dist: absent\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"acme.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return folder / "venv"


def real(venv: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    wheels = venv.parent / "wheels"
    fetch_py = [str(venv / "bin" / "python"), "-I", str(fetch.__file__), "doctor", str(wheels)]
    return subprocess.run([*fetch_py, *arguments], capture_output=True, text=True, timeout=100, check=False)


def test_without_a_wheel_of_uv_pip_installs_in_earnest(venv: Path) -> None:
    done = real(venv, "--only-binary", ":all:", "acme==1.0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Note: uv does not install here")
    assert list(venv.glob("lib/python*/site-packages/acme.py"))
    done = real(venv, "acme==2.0")
    assert done.returncode == 1
    assert "holds no wheel of acme==2.0 for this Python" in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) <= 4


def test_uv_installs_in_earnest_and_leaves_nothing_outside(venv: Path, tmp_path: Path) -> None:
    """The environment that install.sh has made holds uv; in another, what pip says is as good."""
    for stale in [*venv.glob("lib/python*/site-packages/acme*"), venv / ".rlcheck" / "uv.log"]:
        subprocess.run(["rm", "-rf", str(stale)], check=True)
    uv = Path(sys.prefix) / "bin" / "uv"
    if uv.exists():
        (venv / "bin" / "uv").symlink_to(uv)
    done = real(venv, "--only-binary", ":all:", "acme==1.0")
    assert done.returncode == 0, done.stderr
    assert (done.stdout == "") == uv.exists()
    assert list(venv.glob("lib/python*/site-packages/acme.py"))
    assert not (venv / ".rlcheck" / "tmp").exists()
