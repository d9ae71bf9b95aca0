"""Symbols, libraries, import names, GPU generations and CUDA's error codes in words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rlcheck.diagnose.decode import Decoder

PACKAGES = {
    "PIL": "pillow",
    "amp_C": "apex (built with --cuda_ext)",
    "apex": "apex (NVIDIA's, from its repository)",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cuda": "cuda-python",
    "cupy": "cupy-cuda12x",
    "cv2": "opencv-python-headless",
    "deep_ep": "deep_ep (built from deepseek-ai/DeepEP)",
    "deep_gemm": "deep_gemm (built from deepseek-ai/DeepGEMM)",
    "dotenv": "python-dotenv",
    "flash_attn": "flash-attn --no-build-isolation",
    "flash_attn_2_cuda": "flash-attn --no-build-isolation",
    "flash_attn_3": "flash-attn-3 (built from the hopper directory of flash-attention)",
    "flash_attn_interface": "flash-attn-3 (built from the hopper directory of flash-attention)",
    "flashinfer": "flashinfer-python",
    "fused_layer_norm_cuda": "apex (built with --cuda_ext)",
    "git": "GitPython",
    "grpc": "grpcio",
    "liger_kernel": "liger-kernel",
    "math_verify": "math-verify",
    "megatron": "megatron-core",
    "modelopt": "nvidia-modelopt",
    "opentelemetry": "opentelemetry-sdk",
    "pkg_resources": "'setuptools<81'",
    "pynvml": "nvidia-ml-py",
    "qwen_vl_utils": "qwen-vl-utils",
    "ruamel": "ruamel.yaml",
    "sentence_transformers": "sentence-transformers",
    "sgl_kernel": "sglang-kernel (named sgl-kernel up to SGLang 0.5.9)",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "transformer_engine": "transformer-engine[pytorch] --no-build-isolation",
    "transformer_engine_torch": "transformer-engine[pytorch] --no-build-isolation",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Import names whose distribution is called otherwise, or needs more than its name to be installed."""

_SOURCES = {
    "amp_C": "git+https://github.com/NVIDIA/apex",
    "apex": "git+https://github.com/NVIDIA/apex",
    "deep_ep": "git+https://github.com/deepseek-ai/DeepEP",
    "deep_gemm": "git+https://github.com/deepseek-ai/DeepGEMM",
    "flash_attn_3": "git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper",
    "flash_attn_interface": "git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper",
    "fused_layer_norm_cuda": "git+https://github.com/NVIDIA/apex",
}
"""Import names that are built from a repository: on the index nothing, or something else, has their name."""

_EXTENSIONS = (
    ("flash_attn", "flash-attn"),
    ("flash-attn", "flash-attn"),
    ("flash_mla", "vllm"),
    ("vllm", "vllm"),
    ("sgl_kernel", "sgl-kernel"),
    ("sglang", "sglang"),
    ("flashinfer", "flashinfer-python"),
    ("xformers", "xformers"),
    ("torchvision", "torchvision"),
    ("torchaudio", "torchaudio"),
    ("torchcodec", "torchcodec"),
    ("transformer_engine", "transformer-engine"),
    ("bitsandbytes", "bitsandbytes"),
    ("deepspeed", "deepspeed"),
    ("torch_extensions", "deepspeed"),
    ("causal_conv1d", "causal-conv1d"),
    ("mamba_ssm", "mamba-ssm"),
    ("selective_scan", "mamba-ssm"),
    ("grouped_gemm", "grouped-gemm"),
    ("deep_gemm", "deep_gemm"),
    ("deep_ep", "deep_ep"),
    ("auto_gptq", "auto-gptq"),
    ("autogptq", "auto-gptq"),
    ("awq", "autoawq"),
    ("torch_scatter", "torch-scatter"),
    ("torch_sparse", "torch-sparse"),
    ("amp_C", "apex"),
    ("apex", "apex"),
    ("fused_layer_norm", "apex"),
    ("megablocks", "megablocks"),
    ("triton", "triton"),
    ("tensordict", "tensordict"),
    ("numpy", "numpy"),
)

_CUDA_LIBRARIES = {
    "cudart": ("CUDA {0} runtime", "nvidia-cuda-runtime"),
    "cublas": ("cuBLAS of CUDA {0}", "nvidia-cublas"),
    "cublasLt": ("cuBLAS of CUDA {0}", "nvidia-cublas"),
    "cusparse": ("cuSPARSE of CUDA {0}", "nvidia-cusparse"),
    "nvJitLink": ("nvJitLink of CUDA {0}", "nvidia-nvjitlink"),
    "nvrtc": ("run-time compiler (NVRTC) of CUDA {0}", "nvidia-cuda-nvrtc"),
    "nvrtc-builtins": ("run-time compiler (NVRTC) of CUDA {0}", "nvidia-cuda-nvrtc"),
    "cupti": ("profiling library (CUPTI) of CUDA {0}", "nvidia-cuda-cupti"),
}

_ERRORS = {
    2: ("out of memory", "the GPU had no memory left"),
    3: ("initialization error", "CUDA was used in a forked process, or the driver is not in order"),
    34: ("stub library", "a stub for linking was loaded instead of the driver's libcuda"),
    35: ("insufficient driver", "the driver is older than the CUDA of the program"),
    46: ("devices unavailable", "the GPU is held by another program, or its compute mode lets in only one"),
    98: ("invalid device function", "the kernel was not compiled for this GPU"),
    100: ("no device", "no GPU is visible to this process"),
    101: ("invalid device ordinal", "the process asks for a GPU number that is not there"),
    209: ("no kernel image for device", "the code was not compiled for this GPU generation"),
    214: ("uncorrectable ECC error", "the GPU's memory failed: hardware"),
    218: ("invalid PTX", "the driver cannot compile the PTX"),
    220: ("NVLink uncorrectable error", "an NVLink connection failed: hardware"),
    222: ("unsupported PTX version", "the code was made by a newer CUDA than the driver knows"),
    226: ("contained error", "a hardware error that is limited to this process"),
    304: ("operating system error", "the driver was refused something by the system"),
    700: ("illegal address", "a kernel read or wrote outside of its memory"),
    710: ("assert", "a check inside of a kernel failed, mostly an index out of range"),
    715: ("illegal instruction", "a kernel met an instruction that this GPU does not know"),
    716: ("misaligned address", "a kernel used an address that is not aligned"),
    719: ("launch failure", "a kernel died: bad address, or hardware"),
    801: ("not supported", "this GPU, driver or virtual machine lacks the operation"),
    802: ("system not ready", "the NVSwitch fabric is not up"),
    803: ("system driver mismatch", "the loaded libcuda and the kernel driver are of different releases"),
    804: ("compat not supported on device", "a forward-compatibility libcuda is used on a GPU that does not allow it"),
    999: ("unknown error", "the driver is in a bad state, mostly after suspend or without its uvm module"),
}

_STATUSES = {
    "NOT_INITIALIZED": "the library could not start on the GPU, mostly because the GPU's memory is used up",
    "ALLOC_FAILED": "the GPU had no memory left",
    "BAD_PARAM": "an argument of the call was refused",
    "INVALID_VALUE": "an argument of the call was refused",
    "ARCH_MISMATCH": "this GPU lacks what the call needs",
    "MAPPING_ERROR": "the library could not reach the GPU's memory",
    "EXECUTION_FAILED": "the library's program failed on the GPU",
    "INTERNAL_ERROR": "a call inside of the library failed",
    "NOT_SUPPORTED": "the library does not have the operation for these types and shapes",
}

_GENERATIONS = {
    3: "Kepler",
    5: "Maxwell",
    6: "Pascal (P100, P40, GTX 10)",
    7: "Volta or Turing (V100, T4, RTX 20)",
    8: "Ampere or Ada (A100, A10, L40, RTX 30 and 40)",
    9: "Hopper (H100, H200, GH200)",
    10: "Blackwell (B200, GB200, B300)",
    11: "Blackwell (Jetson Thor)",
    12: "Blackwell (RTX 50, RTX PRO 6000, GB10)",
}

_DRIVERS = {11: "450", 12: "525", 13: "580"}
"""Oldest driver branch of each CUDA major version (minor-version compatibility)."""

_WHEELS = {11: {8: "cu118"}, 12: {1: "cu121", 4: "cu124", 6: "cu126", 8: "cu128", 9: "cu129"}}
"""The directories of PyTorch's wheel index, by the CUDA version they are built for."""


def symbol_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """Whose symbol it is, for which C++ ABI, and its name in readable form as far as that needs no demangler."""
    symbol = groups["symbol"]
    found = {"symbol_readable": readable(symbol) or symbol}
    if "__cxx11" in symbol:
        found |= {"symbol_abi": "the new C++ ABI (cxx11abiTRUE)", "abi": "TRUE", "other_abi": "FALSE"}
    elif re.search(r"(?<=[EKj_])Ss(?=$|[A-Z\d])", symbol):
        found |= {"symbol_abi": "the old C++ ABI (cxx11abiFALSE)", "abi": "FALSE", "other_abi": "TRUE"}
    if re.search(r"\d(c10|at|torch|caffe2)|THP|aoti_torch|torch_", symbol):
        found["symbol_owner"] = "torch"
    elif symbol.startswith(("nccl", "pnccl")):
        found["symbol_owner"] = "NCCL"
    elif re.match(r"_*(cublas|cusparse|cusolver|nvJitLink|cudnn|cuda|nvrtc)", symbol):
        found["symbol_owner"] = "a CUDA library"
    return found


def readable(symbol: str) -> str:
    """The names in a mangled C++ symbol, without its arguments; empty when there are none.

    >>> readable("_ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv")
    'c10::StorageImpl::throw_data_ptr_access_error'
    """
    start = re.match(r"_Z(?:TI|TV|TS)?(?:N[rVK]*)?", symbol)
    at = start.end() if start else len(symbol)
    names: list[str] = []
    while number := re.compile(r"\d{1,3}").match(symbol, at):
        length = int(number[0])
        names.append(symbol[number.end() : number.end() + length])
        at = number.end() + length
    return "::".join(names)


def extension_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """The package that a compiled file belongs to, from its path."""
    path = groups["so_file"]
    tail = re.split(r"(?:site|dist)-packages/", path)[-1]
    for part, package in _EXTENSIONS:
        if part.lower() in tail.lower():
            return {"name": package}
    directory = re.match(r"([A-Za-z]\w+)/", tail)
    return {"name": directory[1].replace("_", "-")} if directory and tail != path else {}


def library_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """What a missing shared library is, of which CUDA, and the wheel that brings it."""
    match = re.match(r"lib([\w-]+?)\.so(?:\.(\d+))?", groups["library"])
    if match is None:
        return {}
    name, major = match[1], match[2] or ""
    if name == "cudnn" or name.startswith("cudnn_"):
        return {"library_words": f"cuDNN {major}".strip(), "brings": f"'nvidia-cudnn-cu12=={major or 9}.*'"}
    if name == "nccl":
        return {"library_words": f"NCCL {major}".strip(), "brings": "nvidia-nccl-cu12"}
    if name == "cusparseLt":
        return {"library_words": "cuSPARSELt", "brings": "nvidia-cusparselt-cu12"}
    if name not in _CUDA_LIBRARIES or not major:
        return {}
    words, wheel = _CUDA_LIBRARIES[name]
    suffix = f"-cu{major}" if int(major) < 13 else ""
    return {"library_words": words.format(major), "cuda_major": major, "brings": wheel + suffix}


def module_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """The distribution that an import name belongs to."""
    top = groups["module"].split(".", 1)[0]
    package = PACKAGES.get(top, top.replace("_", "-"))
    plain = re.split(r" \(| --", package)[0].strip("'")
    return {"package": package, "requirement": _SOURCES.get(top, plain), "top_module": top}


def generation_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """The GPU generation of `sm_120`, `compute_90a` or `8.6`."""
    match = re.search(r"(?:sm_?|compute_)(\d{2,3})[af]?|(\d{1,2})\.(\d)", groups["sm"])
    if match is None:
        return {}
    capability = (int(match[1]) // 10, int(match[1]) % 10) if match[1] else (int(match[2]), int(match[3]))
    found = {"capability": f"{capability[0]}.{capability[1]}"}
    name = _GENERATIONS.get(capability[0])
    return found | ({"gpu_generation": name} if name else {})


def driver_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """The CUDA version that the number stands for: 1000 x major + 10 x minor. Which torch build and driver follow."""
    number = int(groups["driver_cuda"])
    major, minor = number // 1000, number % 1000 // 10
    if not 8 <= major <= 20:
        return {}
    found = {"driver_cuda_version": f"{major}.{minor}"}
    if major + 1 in _DRIVERS:
        found |= {"cuda_major": str(major + 1), "floor": _DRIVERS[major + 1]}
    wheels = _WHEELS.get(major, {0: "cu130"})
    # Any build of the same major version runs (minor-version compatibility): without an older one, the oldest does.
    tag = wheels[max((known for known in wheels if known <= minor), default=min(wheels))]
    return found | {"wheels": tag}


def cuda_error_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """The name of a CUDA error code and what it means."""
    known = _ERRORS.get(int(groups["cuda_error"]))
    return {"cuda_error_name": known[0], "cuda_error_meaning": known[1]} if known else {}


def status_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """What the status of a GPU library means: `CUBLAS_STATUS_ALLOC_FAILED`, `hipErrorIllegalAddress`."""
    status = groups["status"]
    words = " ".join(re.findall(r"[A-Z][a-z]+", status.removeprefix("hipError").removeprefix("cudaError"))).lower()
    known = dict(_ERRORS.values()) | _STATUSES
    meaning = known.get(status.partition("_STATUS_")[2]) or known.get(words)
    return {"status_meaning": meaning} if meaning else {}


def toolkit_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """The tag of PyTorch's wheel index for a CUDA version: `12.8` is `cu128`."""
    match = re.match(r"(\d{2})\.(\d)", groups["toolkit"])
    return {"toolkit_tag": f"cu{match[1]}{match[2]}"} if match else {}


DECODERS: dict[str, Decoder] = {
    "symbol": symbol_in_words,
    "so_file": extension_in_words,
    "library": library_in_words,
    "module": module_in_words,
    "sm": generation_in_words,
    "driver_cuda": driver_in_words,
    "cuda_error": cuda_error_in_words,
    "status": status_in_words,
    "toolkit": toolkit_in_words,
}
