"""What the ENV checks share: the environment, its versions, and short lists for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlcheck.check import Verdict, fail, info, warn
from rlcheck.checks.python.compat import TorchRelease, compat, stack_rank
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.python import Distribution, PythonFacts, TorchFacts
from rlcheck.requirements import admits, installed_by_name, version

_DETAILS = 12
_INSTINCT = ("gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950", "gfx1250")


def environment(facts: Facts) -> PythonFacts:
    """The examined Python environment."""
    return need(facts.python)


def installed(facts: Facts) -> dict[str, Distribution]:
    """The distribution that counts for each normalized name."""
    return installed_by_name(environment(facts))


def torch_build(facts: Facts) -> TorchFacts:
    """What torch's files say of its build."""
    return need(environment(facts).torch)


def in_stack(name: str) -> bool:
    """Whether a distribution belongs to the training and rollout stack itself."""
    return name in stack_rank()


def by_importance(names: Iterable[str]) -> list[str]:
    """Names with those of the stack first, in its order."""
    rank = stack_rank()
    return sorted(set(names), key=lambda name: (rank.get(name, len(rank)), name))


def shortened(items: Sequence[str], limit: int = _DETAILS) -> tuple[str, ...]:
    """At most `limit` items and how many more there are."""
    more = len(items) - limit
    return tuple(items) if more <= 0 else (*items[:limit], f"… and {more} more")


def named(distribution: Distribution) -> str:
    """`torch 2.11.0`."""
    return f"{distribution.name} {distribution.version}"


def major(text: str) -> int:
    """The first number of a version like `13.0`; 0 when there is none."""
    head = text.partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() and len(head) < 6 else 0


def minor(text: str) -> str:
    """`2.13` of `2.13.0+cpu`; "" when it is no version."""
    parsed = version(text)
    return "" if parsed is None else f"{parsed.major}.{parsed.minor}"


def torch_release(text: str) -> TorchRelease | None:
    """The row of the table for a torch version."""
    return next((row for row in compat().torch if row.release == minor(text)), None)


def is_truthy(text: str) -> bool:
    """Whether a variable's value switches something on."""
    return text.strip().lower() in ("1", "true", "yes", "on", "y", "t")


def has_nvidia(facts: Facts) -> bool:
    """Whether an NVIDIA GPU was seen, by its driver or on the PCI bus."""
    nvidia = facts.nvidia.value
    return nvidia is not None and bool(nvidia.devices.value or nvidia.proc_gpus.value)


def has_amd(facts: Facts) -> bool:
    """Whether an AMD Instinct GPU was seen by its driver; graphics cards and APUs may be there for the screen."""
    devices = facts.rocm.value.devices.value if facts.rocm.value is not None else None
    return any(device.gfx in _INSTINCT for device in devices or ())


def capability_majors(facts: Facts) -> set[int]:
    """The major compute capabilities of the NVIDIA GPUs; empty when they are not known."""
    devices = facts.nvidia.value.devices.value if facts.nvidia.value is not None else None
    known = [device.compute_capability.value for device in devices or ()]
    return {capability[0] for capability in known if capability is not None}


def capabilities(facts: Facts) -> set[tuple[int, int]]:
    """The compute capabilities of the NVIDIA GPUs that told theirs."""
    devices = facts.nvidia.value.devices.value if facts.nvidia.value is not None else None
    return {d.compute_capability.value for d in devices or () if d.compute_capability.value is not None}


def pip_params(facts: Facts, **params: str) -> dict[str, str]:
    """Parameters of a playbook that installs something: the interpreter to install into, and whatever else."""
    return {"python": environment(facts).executable or "python", **params}


def reinstall_params(facts: Facts, name: str) -> dict[str, str]:
    """Parameters of fixes that install the same version of a package again, from where it came from.

    `exact` is the requirement; builds of torch for one CUDA (`+cu126`, `+cpu`) are on PyTorch's own index alone, and
    have `build` and `index` instead.
    """
    have = installed(facts).get(name)
    if have is None or not have.version:
        return pip_params(facts, exact=name)
    _, plus, local = have.version.partition("+")
    if plus and name in ("torch", "torchvision", "torchaudio"):
        return pip_params(facts, build=f"{name}=={have.version}", index=f"https://download.pytorch.org/whl/{local}")
    return pip_params(facts, exact=f"{name}=={have.version}")


def worst(severities: Iterable[str], expected: str, found: str, **more: object) -> Verdict:
    """The verdict of several cases: that of the worst of them."""
    have = set(severities)
    if "fail" in have:
        return fail(expected, found, **more)
    if "warn" in have:
        return warn(expected, found, **more)
    return info(f"expected {expected}, found {found}", **more)


def is_at(distribution: Distribution | None, versions: str) -> bool:
    """Whether a distribution is installed in a version range ("" for any)."""
    return (
        distribution is not None
        and version(distribution.version) is not None
        and admits(versions, distribution.version)
    )
