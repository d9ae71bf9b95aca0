"""Faults of installed packages: what `--no-deps`, a killed pip, a copy or an upgrade leaves behind; pip fixes them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.fixes.environments import Environment, user_site
from tests.fixes.scene import Case, Scene


def pins(scene: Scene) -> None:
    env = Environment(scene)
    env.have("vllm", "0.11.0", "transformers>=4.55,<5")
    env.have("transformers", "4.40.0")
    env.offer("transformers", "4.57.1")


def missing(scene: Scene) -> None:
    env = Environment(scene)
    env.have("trl", "0.20.0", "accelerate>=1.4", "peft")
    env.offer("accelerate", "1.10.0")
    env.offer("peft", "0.17.0")


def no_metadata(scene: Scene) -> None:
    env = Environment(scene)
    (env.have("peft", "0.17.0") / "METADATA").unlink()


def unreadable_requirement(scene: Scene) -> None:
    env = Environment(scene)
    record = env.have("accelerate", "1.10.0")
    with (record / "METADATA").open("a") as file:
        file.write("Requires-Dist: numpy (>=1.17,<3.*.dev0\n")


def tilde(scene: Scene) -> None:
    env = Environment(scene)
    env.have("peft", "0.17.0")
    shutil.copytree(env.site / "peft", env.site / "~eft")
    shutil.copytree(env.site / "peft-0.17.0.dist-info", env.site / "~eft-0.16.0.dist-info")


def recorded_twice(scene: Scene) -> None:
    env = Environment(scene)
    env.have("peft", "0.16.0")
    env.have("peft", "0.17.0")


def owned_twice(scene: Scene) -> None:
    env = Environment(scene)
    for name, version in (("pynvml", "11.5.3"), ("nvidia-ml-py", "13.580.82")):
        env.have(name, version, files={"pynvml.py": f"__version__ = {version!r}\n"})


def protobuf_too_old(scene: Scene) -> None:
    env = Environment(scene)
    env.have("protobuf", "7.34.0", files={"google/protobuf/__init__.py": "__version__ = '7.36.2'\n"})
    scene.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "cpp"


def transformers_5(scene: Scene) -> None:
    env = Environment(scene)
    env.have("transformers", "5.0.0")
    env.have("vllm", "0.10.0")
    env.offer("transformers", "4.57.1")


def ray_2_44(scene: Scene) -> None:
    env = Environment(scene)
    env.have("ray", "2.44.0")
    env.have("vllm", "0.8.4")
    env.offer("ray", "2.49.0")


def transfer(scene: Scene) -> None:
    env = Environment(scene)
    env.have("huggingface-hub", "0.34.0")
    env.offer("hf-transfer", "0.1.9")
    scene.environ["HF_HUB_ENABLE_HF_TRANSFER"] = "1"


def transfer_off(scene: Scene) -> None:
    transfer(scene)


def xet(scene: Scene) -> None:
    env = Environment(scene)
    env.have("huggingface-hub", "0.34.0")
    env.have("hf-xet", "1.1.0")
    env.offer("hf-xet", "1.5.3")


def user_leak(scene: Scene) -> None:
    env = Environment(scene)
    base = scene.here / ".local" / user_site()
    base.mkdir(parents=True)
    config = env.here / "pyvenv.cfg"
    config.write_text(
        config.read_text().replace("include-system-site-packages = false", "include-system-site-packages = true")
    )
    outer, env.site = env.site, base
    env.have("transformers", "4.40.0")
    env.site = outer


def target(scene: Scene) -> None:
    env = Environment(scene)
    env.pip(scene, "config", "--site", "set", "global.target", str(scene.here / "elsewhere"))


def engines(scene: Scene) -> None:
    env = Environment(scene)
    env.have("vllm", "0.11.0", "torch==2.8.0")
    env.have("sglang", "0.5.5", "torch==2.9.1")
    env.have("torch", "2.8.0")


def nccl_twice(scene: Scene) -> None:
    env = Environment(scene)
    for name in ("nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        env.have(name, "2.27.3", files={"nvidia/nccl/lib/libnccl.so.2": b"\x7fELF"})


def library_missing(scene: Scene) -> None:
    """An extension whose library another wheel brings, which `--no-deps` has left out."""
    if not (compiler := shutil.which("gcc")):
        pytest.skip("no gcc to build an extension with")
    env = Environment(scene)
    library, extension = scene.here / "libcudart.so.12", scene.here / "ops.so"
    (scene.here / "empty.c").write_text("int empty(void) { return 0; }\n")
    build = [compiler, "-shared", "-nostdlib", "-Wl,--no-as-needed", str(scene.here / "empty.c")]
    subprocess.run([*build, f"-Wl,-soname,{library.name}", "-o", library], check=True)
    runpath = "-Wl,-rpath,$ORIGIN/../nvidia/cuda_runtime/lib"
    subprocess.run([*build, str(library), runpath, "-o", extension], check=True)
    env.have("vllm", "0.11.0", files={"vllm/_C.abi3.so": extension.read_bytes(), "vllm/__init__.py": ""})
    path = f"nvidia/cuda_runtime/lib/{library.name}"
    env.offer("nvidia-cuda-runtime-cu12", "12.8.90", files={path: library.read_bytes()})


def torch_damaged(scene: Scene) -> None:
    """An upgrade of torch that broke off before version.py was written."""
    env = Environment(scene)
    files = {"torch/__init__.py": "", "torch/version.py": "__version__ = '2.8.0+cpu'\ncuda = None\n"}
    env.have("torch", "2.8.0", files=files)
    (env.site / "torch" / "version.py").unlink()


def torch_off(scene: Scene) -> None:
    """torchvision of another torch release."""
    env = Environment(scene)
    env.have("torch", "2.8.0")
    env.have("torchvision", "0.22.0", "torch==2.7.0")
    env.offer("torchvision", "0.23.0", "torch==2.8.0")


PACKAGES = (
    Case("shared library", "ENV021", "library-not-found", "pip install", library_missing),
    Case("damaged torch", "ENV010", "torch-damaged", "torch==", torch_damaged),
    Case("unfit release", "ENV011", "torch-companions", "torchvision", torch_off),
    Case("conflicting pins", "ENV006", "dependency-conflict", "pip install", pins),
    Case("missing package", "ENV007", "requirement-missing", "pip install", missing),
    Case("damaged record", "ENV026", "metadata-broken", "--ignore-installed", no_metadata),
    Case("damaged record", "ENV009", "metadata-broken", "--ignore-installed", unreadable_requirement),
    Case("left over by pip", "ENV025", "install-leftovers", "rm -r", tilde),
    Case("doubles", "ENV027", "metadata-broken", "uninstall", recorded_twice),
    Case("doubles", "ENV024", "module-owned-twice", "uninstall", owned_twice),
    Case("doubles", "NCL003", "nccl-foreign-library", "uninstall", nccl_twice),
    Case("doubles", "ENV004", "dependency-deadlock", "uninstall", engines, ("pass", "skip")),
    Case("protobuf", "ENV035", "protobuf", "unset", protobuf_too_old),
    Case("unfit release", "ENV034", "transformers-mismatch", "transformers", transformers_5, ("pass", "skip")),
    Case("unfit release", "RAY002", "known-bad-release", "ray", ray_2_44),
    Case("unfit release", "HFC023", "hf-xet-stalls", "hf-xet", xet),
    Case("hub transfer", "HFC021", "hf-transfer", "pip install", transfer),
    Case("hub transfer", "HFC021", "hf-transfer", "unset", transfer_off),
    Case("user's packages", "ENV030", "user-site-leak", "PYTHONNOUSERSITE", user_leak),
    Case("pip configuration", "ENV033", "pip-configuration", "config unset", target),
)
