"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.python import ImportTest
from tests.checks.python.build import SITE, dist, extension, gpus, machine, real, torch

H200, A100 = gpus((9, 0)), gpus((8, 0))
ABI_SYMBOL = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
TORCH_211 = real("torch", "2.11.0")
LINKS_TORCH = ("libc10.so", "libtorch.so", "libtorch_cpu.so")


def cuda(*distributions, **more) -> Facts:
    """An environment with torch 2.11.0 for CUDA 13."""
    return machine(TORCH_211, *distributions, **{"torch": torch(), **more})


def imported(*tests: ImportTest) -> Facts:
    return machine(imports=known(tests))


VERL, SGLANG, VLLM_32, VLLM_24 = (
    real(*pair) for pair in (("verl", "0.9.1"), ("sglang", "0.5.12"), ("vllm", "0.32.0"), ("vllm", "0.24.0"))
)
TRITON, NCCL = dist("triton", "3.6.0"), dist("nvidia-nccl-cu13", "2.28.9")
CUDNN, TOOLKIT = dist("nvidia-cudnn-cu13", "9.19.0.56"), dist("cuda-toolkit", "13.0.2")

CASES: dict[str, tuple[Facts, Facts]] = {
    "ENV001": (
        machine(dist("torch", "2.15.0", requires_python=">=3.11"), version="3.10.12"),
        machine(dist("torch", "2.15.0", requires_python=">=3.11")),
    ),
    "ENV002": (
        machine(executable="/env/bin/python3.13t", version="3.13.1"),
        machine(executable="/env/bin/python3.13", version="3.13.1"),
    ),
    "ENV003": (
        machine(kind="system", externally_managed=True),
        machine(kind="system", container="docker"),
    ),
    "ENV004": (
        machine(
            dist("vllm", "0.24.0", "torch==2.11.0"), dist("sglang", "0.5.23", "torch==2.14.1"), dist("torch", "2.11.0")
        ),
        machine(dist("vllm", "0.20.2"), dist("sglang", "0.5.11")),
    ),
    "ENV005": (
        machine(VERL, SGLANG, dist("transformers", "5.9.0")),
        machine(VERL, VLLM_24, dist("transformers", "5.9.0")),
    ),
    "ENV006": (
        machine(VLLM_24, dist("transformers", "4.57.1"), dist("trl", "0.27.0", "transformers>=4.56.2")),
        machine(VLLM_24, dist("transformers", "5.9.0"), dist("trl", "0.27.0", "transformers>=4.56.2")),
    ),
    "ENV048": (
        machine(dist("torch", "2.11.0", damaged=("torch/lib/libtorch_python.so: cut short, 9 of 99 bytes",))),
        machine(dist("torch", "2.11.0")),
    ),
    "ENV049": (machine(kind="venv", moved_from="/old"), machine(kind="venv")),
    "ENV007": (
        machine(dist("verl", "0.9.1", "tensordict>=0.8.0,<=0.10.0,!=0.9.0"), dist("torch", "2.11.0")),
        machine(dist("verl", "0.9.1", "tensordict>=0.8.0,<=0.10.0,!=0.9.0"), dist("tensordict", "0.10.0")),
    ),
    "ENV008": (
        machine(VERL, dist("vllm", "0.26.0"), dist("transformers", "5.9.0")),
        machine(VERL, dist("vllm", "0.24.0"), dist("transformers", "5.9.0")),
    ),
    "ENV009": (machine(dist("old-thing", "1.0", "numpy>=>1")), machine(dist("new-thing", "1.0", "numpy>=1"))),
    "ENV010": (
        machine(TORCH_211, torch=torch("2.13.0")),
        machine(dist("torch", "2.13.0+cpu"), torch=torch("2.13.0+cpu", "")),
    ),
    "ENV011": (
        cuda(real("torchvision", "0.26.0"), dist("torchcodec", "0.10.0")),
        machine(
            dist("torchaudio", "2.11.0"),
            dist("torchcodec", "0.14.0"),
            dist("torchvision", "0.29.0"),
            torch=torch("2.14.1"),
        ),
    ),
    "ENV012": (
        cuda(dist("torchvision", "0.26.0+cpu")),
        cuda(dist("torchvision", "0.26.0"), extensions=(extension("torchvision", "torchvision/_C.so", cuda_major=13),)),
    ),
    "ENV013": (
        cuda(dist("flash-attn", "2.8.3+cu12torch2.8cxx11abitrue")),
        cuda(
            dist("cupy-cuda13x", "14.0.1"),
            dist("flash-attn", "2.8.3"),
            extensions=(extension("flash-attn", "flash_attn_2_cuda.so", cuda_major=13),),
        ),
    ),
    "ENV014": (
        machine(dist("torch", "2.13.0+cpu"), torch=torch("2.13.0+cpu", ""), nvidia=H200),
        cuda(nvidia=H200),
    ),
    "ENV015": (
        machine(dist("torch", "2.9.1"), torch=torch("2.9.1", ""), nvidia=H200, arch="aarch64"),
        cuda(nvidia=H200, arch="aarch64"),
    ),
    "ENV016": (cuda(dist("triton", "3.7.1")), cuda(TRITON)),
    "ENV017": (cuda(NCCL, dist("nvidia-cudnn-cu13", "9.10.2.21")), cuda(NCCL, CUDNN)),
    "ENV018": (cuda(NCCL, dist("nvidia-nccl-cu12", "2.27.5")), cuda(NCCL)),
    "ENV019": (
        cuda(
            dist("flash-attn", "2.7.4"),
            extensions=(
                extension("flash-attn", "flash_attn_2_cuda.so", cxx11_abi="old", unresolved_symbols=(ABI_SYMBOL,)),
            ),
        ),
        cuda(dist("pyarrow", "25.0.1"), extensions=(extension("pyarrow", "pyarrow/lib.so", cxx11_abi="old"),)),
    ),
    "ENV020": (
        cuda(
            dist("vllm", "0.24.0"),
            extensions=(
                extension(
                    "vllm",
                    "vllm/_C.abi3.so",
                    cxx11_abi="new",
                    unresolved_symbols=("_ZNK3c1010TensorImpl15incref_pyobjectEv",),
                ),
            ),
        ),
        cuda(dist("vllm", "0.24.0"), extensions=(extension("vllm", "vllm/_C.abi3.so", needed=LINKS_TORCH),)),
    ),
    "ENV021": (
        cuda(
            dist("flash-attn", "2.8.3"),
            extensions=(extension("flash-attn", "flash_attn_2_cuda.so", unresolved_libs=("libcudart.so.12",)),),
        ),
        cuda(dist("vllm", "0.24.0"), extensions=(extension("vllm", "vllm/_C.so", unresolved_libs=("libcuda.so.1",)),)),
    ),
    "ENV022": (
        machine(
            dist("numpy", "2.3.5"),
            dist("vllm", "0.6.3"),
            extensions=(extension("vllm", "vllm/_C.so", uses_numpy_1=True),),
        ),
        machine(dist("numpy", "1.26.4"), extensions=(extension("vllm", "vllm/_C.so", uses_numpy_1=True),)),
    ),
    "ENV023": (
        machine(dist("sglang", "0.5.12", wheel_tags=("cp312-cp312-manylinux_2_34_x86_64",)), libc_version="2.31"),
        machine(dist("ray", "2.60.0", wheel_tags=("cp312-cp312-manylinux2014_x86_64",)), libc_version="2.31"),
    ),
    "ENV024": (
        machine(dist("sgl-kernel", "0.3.21"), dist("sglang-kernel", "0.4.2")),
        machine(
            dist("nvidia-ml-py", "13.580.82"), dist("pynvml", "13.0.1"), owners={"google": ("protobuf", "google-auth")}
        ),
    ),
    "ENV025": (machine(leftovers=(f"{SITE}/~orch: pip renamed it so before removing it",)), machine()),
    "ENV026": (machine(dist("torch", "", broken="METADATA has no version")), machine(TORCH_211)),
    "ENV027": (
        machine(dist("transformers", "5.9.0"), dist("transformers", "4.57.1")),
        machine(dist("transformers", "5.9.0"), dist("transformers", "4.57.1", location="/home/bob/.local/lib")),
    ),
    "ENV028": (
        machine(dist("verl", "0.9.1", editable="/home/bob/verl"), dist("verl", "0.7.1")),
        machine(dist("my-rewards", "0.1", editable="/home/bob/rewards"), dist("verl", "0.9.1")),
    ),
    "ENV029": (
        machine(TORCH_211, kind="conda", conda_packages={"pytorch": "2.5.1", "python": "3.12.3"}),
        machine(TORCH_211, kind="conda", conda_packages={"python": "3.12.3", "openssl": "3.5.0"}),
    ),
    "ENV030": (
        machine(
            dist("transformers", "5.9.0", location="/home/bob/.local/lib"),
            kind="conda",
            user_site_enabled=True,
            user_site="/home/bob/.local/lib",
        ),
        machine(TORCH_211, kind="conda", user_site_enabled=True, user_site="/home/bob/.local/lib"),
    ),
    "ENV031": (
        machine(
            shadowed={"datasets": ("/home/bob/run/datasets.py",)}, environ={"PYTHONPATH": "/opt/own:/home/bob/run"}
        ),
        machine(shadowed={"utils": ("/home/bob/run/utils.py",)}),
    ),
    "ENV032": (
        machine(dist("vllm", "0.9.2"), nvidia=A100),
        machine(dist("vllm", "0.9.2"), nvidia=H200),
    ),
    "ENV033": (
        machine(pip_config=("/etc/pip.conf: install.user = true",)),
        machine(
            pip_config=("/etc/pip.conf: global.index-url = https://example.org/simple", "pip.conf: install.user = no")
        ),
    ),
    "ENV034": (
        machine(dist("vllm", "0.11.0"), dist("transformers", "5.1.0")),
        machine(dist("vllm", "0.24.0"), dist("peft", "0.18.0"), dist("transformers", "5.9.0")),
    ),
    "ENV035": (
        machine(dist("protobuf", "6.33.5"), environ={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}),
        machine(dist("protobuf", "7.36.2"), dist("tensorboard", "2.21.0")),
    ),
    "ENV036": (
        machine(dist("tensordict", "0.1.2"), arch="aarch64"),
        machine(dist("tensordict", "0.15.3"), arch="aarch64"),
    ),
    "ENV037": (
        machine(environ={"VIRTUAL_ENV": "/home/bob/run/.venv"}, is_doctors_own=True),
        machine(environ={"VIRTUAL_ENV": "/env/"}, is_doctors_own=True),
    ),
    "ENV038": (
        machine(environ={"PYTHONPATH": "/opt/x:/usr/lib/python3.10/site-packages"}),
        machine(environ={"PYTHONPATH": "/home/bob/rewards:/opt/lib/python3.12/site-packages", "PYTHONOPTIMIZE": "0"}),
    ),
    "ENV039": (
        machine(environ={"TORCH_CUDA_ARCH_LIST": "8.0;8.6"}, nvidia=H200),
        machine(environ={"TORCH_CUDA_ARCH_LIST": "9.0a"}, nvidia=H200),
    ),
    "ENV040": (
        cuda(environ={"CUDA_HOME": "/usr/local/cuda-12.4"}),
        cuda(environ={"CUDA_HOME": "/usr/local/cuda"}),
    ),
    "ENV041": (
        machine(dist("vllm", "0.12.0"), environ={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        machine(dist("vllm", "0.32.0"), environ={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ),
    "ENV042": (
        machine(environ={"CUDA_LAUNCH_BLOCKING": "1"}),
        machine(environ={"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "INFO"}),
    ),
    "ENV043": (
        machine(dist("vllm", "0.24.0"), environ={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
        machine(dist("vllm", "0.12.0"), environ={"VLLM_ATTENTION_BACKEND": "FLASHINFER", "VLLM_HOUSE_RULE": "1"}),
    ),
    "ENV044": (machine(environ={"OMP_NUM_THREADS": "auto"}), machine(environ={"OMP_NUM_THREADS": "16"})),
    "ENV045": (machine(environ={"TOKENIZERS_PARALLELISM": "true"}), machine()),
    "ENV046": (
        imported(
            ImportTest(module="torch", seconds=2.0, ok=True),
            ImportTest(module="vllm:LLM", seconds=1.5, ok=False, signal=11),
        ),
        imported(ImportTest(module="torch", seconds=2.0, ok=True)),
    ),
    "ENV047": (
        imported(ImportTest(module="vllm:LLM", seconds=48.2, ok=True)),
        imported(ImportTest(module="vllm:LLM", seconds=8.2, ok=True)),
    ),
}

OTHER_FIRES = {
    "ENV048": (
        machine(dist("torch", "2.11.0+cu130", damaged=("torch/lib/libc10.so: a link that points nowhere (/gone)",))),
    ),
    "ENV026": (machine(dist("torch", "2.11.0+cu130", broken="no RECORD: pip can neither upgrade nor remove it")),),
    "ENV006": (
        machine(
            dist("trl", "0.27.0", "transformers>=4.56.2", "click>=8.2"),
            dist("transformers", "4.40.0", location="/extra"),
            dist("click", "8.1.0"),
            environ={"PYTHONPATH": "/other:/extra/"},
        ),
    ),
    "ENV021": tuple(
        machine(
            dist("flash-attn", "2.8.3"),
            dist(name, version),
            torch=torch(),
            extensions=(extension("flash-attn", "flash_attn_2_cuda.so", unresolved_libs=(library,)),),
        )
        for name, version, library in (
            ("nvidia-cuda-runtime-cu12", "12.8.90", "libcudart.so.12"),
            ("torch", "2.11.0+cu130", "libtorch_cpu.so"),
        )
    ),
    "ENV025": (
        machine(
            leftovers=(
                f"{SITE}/~orch: half-removed package",
                f"{SITE}/mine.pth: points to /gone, which does not exist",
                f"{SITE}/mine.pth:2: imports gone, which is not there",
            )
        ),
    ),
}
