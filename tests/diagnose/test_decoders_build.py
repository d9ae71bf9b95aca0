"""Symbols, libraries, modules, GPU generations and drivers in words."""

from __future__ import annotations

import pytest

from rlcheck.diagnose.decode import decoded, decoders

OLD = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
NEW = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


@pytest.mark.parametrize(
    ("group", "value", "wanted"),
    [
        ("symbol", OLD, {"symbol_readable": "c10::detail::torchCheckFail", "abi": "FALSE", "symbol_owner": "torch"}),
        ("symbol", NEW, {"symbol_readable": "c10::Error", "abi": "TRUE"}),
        ("symbol", "ncclMemFree", {"symbol_readable": "ncclMemFree", "symbol_owner": "NCCL"}),
        ("so_file", "/env/lib/python3.11/site-packages/flash_attn_2_cuda.so", {"name": "flash-attn"}),
        ("so_file", "/src/vllm/_C.abi3.so", {"name": "vllm"}),
        ("so_file", "/env/lib/python3.11/site-packages/some_thing/ops.so", {"name": "some-thing"}),
        ("library", "libcudart.so.12", {"library_words": "CUDA 12 runtime", "brings": "nvidia-cuda-runtime-cu12"}),
        ("library", "libcublasLt.so.13", {"library_words": "cuBLAS of CUDA 13", "brings": "nvidia-cublas"}),
        ("library", "libcudnn.so.8", {"library_words": "cuDNN 8"}),
        ("module", "cv2", {"package": "opencv-python-headless"}),
        ("module", "math_verify.metric", {"package": "math-verify", "top_module": "math_verify"}),
        ("sm", "sm_121a", {"capability": "12.1"}),
        ("sm", "compute_90", {"capability": "9.0", "gpu_generation": "Hopper (H100, H200, GH200)"}),
        ("sm", "6.1", {"capability": "6.1"}),
        ("driver_cuda", "12080", {"driver_cuda_version": "12.8", "wheels": "cu128", "floor": "580"}),
        ("driver_cuda", "11040", {"driver_cuda_version": "11.4", "wheels": "cu118", "floor": "525"}),
        ("driver_cuda", "13000", {"driver_cuda_version": "13.0", "wheels": "cu130"}),
        ("cuda_error", "802", {"cuda_error_name": "system not ready"}),
        ("toolkit", "12.8", {"toolkit_tag": "cu128"}),
    ],
)
def test_it_is_said_in_words(group: str, value: str, wanted: dict[str, str]) -> None:
    told = decoded({group: value})
    assert {name: told.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("group", "value", "unknown"),
    [
        ("symbol", "_ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv", "abi"),
        ("so_file", "/tmp/x.so", "name"),
        ("library", "libmpi.so.40", "library_words"),
        ("sm", "none", "capability"),
        ("driver_cuda", "99999", "driver_cuda_version"),
        ("cuda_error", "12345", "cuda_error_name"),
    ],
)
def test_what_cannot_be_known_is_not_said(group: str, value: str, unknown: str) -> None:
    assert unknown not in decoded({group: value})


@pytest.mark.parametrize("value", ["9" * 400, "9" * 5000, "1e999", "nan", "", "-", "0x", "7.5 GiB", "[]", "\x0b"])
def test_what_cannot_be_read_explains_nothing_and_breaks_nothing(value: str) -> None:
    for name in decoders():
        params = decoded({name: value, "heads": value, "parts": value, "oom_free": value, "oom_total": value})
        assert params[name] == value
