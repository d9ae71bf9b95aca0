"""Interpreter, layout, known releases, variables and import tests (F04, F05, F06, F41, F42)."""

import pytest

from rlcheck import judging
from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.python import ImportTest
from rlcheck.playbook import Library
from tests.checks.python.build import SITE, dist, gpus, machine, torch
from tests.checks.python.cases import ABI_SYMBOL, CASES, OTHER_FIRES, cuda, extension, imported

CHECKS = family_checks("ENV")

BY_ID = {check.id: check for check in CHECKS}


def judge(check_id: str, facts: Facts) -> Verdict:
    return BY_ID[check_id].judge(facts)


_REINSTALL = "python -m pip install --force-reinstall --no-deps"
_BUILD = "python -m pip install --no-build-isolation --no-binary :all: --no-cache-dir --force-reinstall --no-deps"
_OLD_ABI = cuda(
    dist("flash-attn", "2.8.3"),
    dist("xformers", "0.0.32"),
    extensions=tuple(
        extension(name, f"{name}.so", cxx11_abi="old", unresolved_symbols=(ABI_SYMBOL,))
        for name in ("flash-attn", "xformers")
    ),
)
_SWITCHES = {"PYTHONHOME": "/x", "PYTHONOPTIMIZE": "1", "CUDA_LAUNCH_BLOCKING": "1", "TORCHDYNAMO_DISABLE": "1"}


@pytest.mark.parametrize(
    ("check_id", "facts", "words"),
    [
        ("ENV006", OTHER_FIRES["ENV006"][0], ["Take /extra out of PYTHONPATH", "python -m pip install 'click>=8.2'"]),
        ("ENV007", machine(dist("verl", "0.9.1", "peft", "wandb>=0.16"), dist("torch", "2.11.0")),
         ["python -m pip install peft 'wandb>=0.16'"]),
        ("ENV012", cuda(dist("torchvision", "0.26.0+cpu"), dist("torchaudio", "2.11.0+cpu")),
         ["'torchvision==0.26.*' 'torchaudio==2.11.*' --index-url"]),
        ("ENV019", _OLD_ABI, [f"{_BUILD} flash-attn==2.8.3 xformers==0.0.32"]),
        ("ENV020", CASES["ENV020"][0], [f"{_BUILD} vllm==0.24.0"]),
        ("ENV021", CASES["ENV021"][0], ["python -m pip install nvidia-cuda-runtime-cu12"]),
        ("ENV021", OTHER_FIRES["ENV021"][0], [f"{_REINSTALL} nvidia-cuda-runtime-cu12==12.8.90"]),
        ("ENV021", OTHER_FIRES["ENV021"][1],
         [f"{_REINSTALL} torch==2.11.0+cu130 --index-url https://download.pytorch.org/whl/cu130"]),
        ("ENV025", OTHER_FIRES["ENV025"][0], [f"rm -r -- '{SITE}/~orch'\n", f"In {SITE}/mine.pth: uninstall"]),
        ("ENV038", machine(environ=_SWITCHES), ["unset PYTHONHOME PYTHONOPTIMIZE", "-e PYTHONHOME -e PYTHONOPTIMIZE"]),
        ("ENV042", machine(environ=_SWITCHES), ["grep -sn -e CUDA_LAUNCH_BLOCKING -e TORCHDYNAMO_DISABLE"]),
        ("ENV044", machine(environ={"OMP_NUM_THREADS": "x", "MKL_NUM_THREADS": "0"}),
         ["Set OMP_NUM_THREADS, MKL_NUM_THREADS to", "unset OMP_NUM_THREADS MKL_NUM_THREADS"]),
    ],
)  # fmt: skip
def test_a_fix_is_for_all_that_was_found_and_for_nothing_else(check_id: str, facts: Facts, words: list[str]) -> None:
    fixes = judging.judge(facts, (BY_ID[check_id],), Library())[0].fixes
    said = "".join(f"{fix.title}\n{fix.command}\n" for fix in fixes)
    assert [one for one in words if one not in said] == [], said
    for of_logs in ("functional_tensor", "Nothing is set:", "List the leftovers", "unset PYTHONHOME\nunset"):
        assert of_logs not in said


@pytest.mark.parametrize(
    ("version", "requires", "status"),
    [
        ("3.9.18", "", "fail"),  # F05
        ("3.10.12", ">=3.9", "pass"),
        ("3.12.3", ">=3.10,!=3.14.1", "pass"),
        ("3.14.1", ">=3.10,!=3.14.1", "fail"),
        ("3.13.0rc2", ">=3.13", "pass"),
        ("3.12.3", "<3.13,>=3.10", "pass"),
        ("3.12.3", "garbage", "pass"),
    ],
)
def test_python_version(version: str, requires: str, status: str) -> None:
    facts = machine(dist("torchvision", "0.28.0", requires_python=requires), version=version)
    assert judge("ENV001", facts).status == status


def test_python_3_10_hears_what_it_is_shut_out_of() -> None:
    verdict = judge("ENV001", machine(dist("torch", "2.13.0"), dist("vllm", "0.28.0"), version="3.10.12"))
    assert verdict.status == "info"
    assert verdict.details == (
        "torch 2.15 and newer require Python >=3.11",
        "vllm 0.32 and newer require Python >=3.11",
    )


def test_the_python_to_take_is_one_that_all_allow() -> None:
    facts = machine(dist("verl", "0.9.1", requires_python="<3.13,>=3.10"), version="3.13.2")
    assert judge("ENV001", facts).params["wanted"] == "3.12"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"implementation": "pypy"}, "warn"),
        ({"sys_path": ("/usr/lib/python3.13t/site-packages",)}, "warn"),
        ({"executable": "/usr/bin/python3.12-dbg"}, "warn"),
        ({"executable": "/usr/bin/python3.12d"}, "warn"),
        ({"executable": "/home/td/python3.12/bin/python3.12", "sys_path": ("/x/python3.12/test",)}, "pass"),
    ],
)
def test_builds_of_python(fields: dict, status: str) -> None:
    assert judge("ENV002", machine(**fields)).status == status


def test_namespace_packages_are_nobodys_fault() -> None:
    owners = {
        "google": ("protobuf", "google-auth"),
        "nvidia": ("nvidia-cublas", "nvidia-cudnn-cu13"),
        "tests": ("a", "b"),
    }
    assert judge("ENV024", machine(owners=owners)).status == "pass"
    assert judge("ENV024", machine(owners={"vllm": ("vllm",), "triton": ("triton", "my-triton")})).status == "pass"
    assert judge("ENV024", machine(owners={"transformers": ("transformers", "transformers-fork")})).status == "warn"


def test_pynvml_shim_is_no_second_owner() -> None:
    both = lambda version: machine(dist("nvidia-ml-py", "13.1"), dist("pynvml", version))  # noqa: E731
    assert judge("ENV024", both("13.0.1")).status == "pass"
    assert judge("ENV024", both("11.5.3")).status == "warn"


def test_the_new_name_of_the_sglang_kernels_is_kept() -> None:
    assert judge("ENV024", CASES["ENV024"][0]).params["keep"] == "sglang-kernel"


def test_conda_and_pip_agreeing_on_everything_else_is_fine() -> None:
    """conda torch mixed with pip torch (F04)."""
    facts = machine(dist("torch", "2.11.0"), kind="conda", conda_packages={"numpy": "2.3.5"})
    assert judge("ENV029", facts).status == "pass"
    assert judge("ENV029", machine(dist("torch", "2.11.0"))).status == "skip"


def test_editable_alone_is_only_mentioned() -> None:
    assert judge("ENV028", machine(dist("verl", "0.9.1", editable="/home/bob/verl"))).status == "info"


@pytest.mark.row("F42")
def test_cascade_attention_depends_on_the_gpu() -> None:
    """Rollout and training log-probabilities differ (F42)."""
    mixed = machine(dist("vllm", "0.10.2"), nvidia=gpus((9, 0), (8, 0)))
    assert judge("ENV032", mixed).status == "warn"
    assert judge("ENV032", machine(dist("vllm", "0.10.2"))).status == "pass"
    assert judge("ENV032", machine(dist("vllm", "0.11.0"), nvidia=gpus((8, 0)))).status == "pass"


def test_known_bad_combinations() -> None:
    assert judge("ENV032", machine(dist("vllm", "0.7.3"), dist("verl", "0.3.0"))).status == "warn"
    assert judge("ENV032", machine(dist("vllm", "0.7.3"))).status == "pass"
    arm = {"arch": "aarch64", "nvidia": gpus((9, 0))}
    verdict = judge("ENV032", machine(dist("nvidia-nccl-cu13", "2.28.9"), **arm))
    assert verdict.params["requirement"] == "nvidia-nccl-cu13>=2.30.7"
    assert judge("ENV032", machine(dist("nvidia-nccl-cu13", "2.28.9"), nvidia=gpus((9, 0)))).status == "pass"


@pytest.mark.parametrize(
    ("package", "version", "status"),
    [("vllm", "0.11.0", "fail"), ("verl", "0.7.0", "fail"), ("peft", "0.17.1", "fail"), ("peft", "0.14.0", "pass")],
)
def test_transformers_5(package: str, version: str, status: str) -> None:
    assert judge("ENV034", machine(dist(package, version), dist("transformers", "5.1.0"))).status == status
    assert judge("ENV034", machine(dist(package, version), dist("transformers", "4.57.1"))).status == "skip"


def test_protobuf() -> None:
    variable = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
    assert judge("ENV035", machine(dist("protobuf", "7.36.2"), environ={variable: "fast"})).status == "fail"
    assert judge("ENV035", machine(dist("protobuf", "7.36.2"), environ={variable: "upb"})).status == "pass"
    assert judge("ENV035", machine(dist("protobuf", "4.25"), dist("tensorboard", "2.8.0"))).status == "fail"
    assert judge("ENV035", machine(environ={variable: "python"})).status == "skip"


@pytest.mark.row("F06")
def test_tensordict_on_arm() -> None:
    """`does not support membership checks with the in keyword` (F06)."""
    assert judge("ENV036", CASES["ENV036"][0]).found.startswith("tensordict 0.1.2: pip falls back")
    assert judge("ENV036", machine(dist("tensordict", "0.1.2"))).status == "skip"


@pytest.mark.parametrize(
    ("text", "capability", "status"),
    [
        ("9.0a", (9, 0), "pass"),
        ("8.0+PTX", (9, 0), "pass"),
        ("8.0", (8, 6), "pass"),
        ("8.6", (8, 0), "warn"),
        ("9.0a", (10, 0), "warn"),
        ("Hopper", (9, 0), "pass"),
        ("7.5 8.0 9.0", (9, 0), "pass"),
        ("90", (9, 0), "warn"),
        ("Grace", (9, 0), "pass"),
        ("", (9, 0), "pass"),
    ],
)
def test_arch_list(text: str, capability: tuple[int, int], status: str) -> None:
    facts = machine(environ={"TORCH_CUDA_ARCH_LIST": text}, nvidia=gpus(capability))
    assert judge("ENV039", facts).status == status


@pytest.mark.parametrize(
    ("vllm", "environ", "status"),
    [
        ("0.7.3", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "warn"),
        ("0.20.0", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True"}, "warn"),
        ("0.24.0", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "pass"),
        ("0.24.0", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "warn"),
        ("0.31.0", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "pass"),
        ("0.12.0", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, "pass"),
        ("0.12.0", {"PYTORCH_CUDA_ALLOC_CONF": "not_expandable_segments:True"}, "pass"),
    ],
)
def test_expandable_segments(vllm: str, environ: dict[str, str], status: str) -> None:
    assert judge("ENV041", machine(dist("vllm", vllm), environ=environ)).status == status


def test_the_new_name_under_an_old_torch() -> None:
    environ = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}
    assert judge("ENV041", machine(dist("torch", "2.8.0"), environ=environ)).status == "info"
    assert judge("ENV041", machine(dist("torch", "2.13.0"), environ=environ)).status == "pass"


def test_vllm_variables() -> None:
    def found(version: str, **environ: str) -> Verdict:
        return judge("ENV043", machine(dist("vllm", version), environ=environ))

    assert found("0.11.0", VLLM_USE_V1="0").status == "pass"
    assert "since vLLM 0.11.1" in found("0.11.1", VLLM_USE_V1="0").found
    assert "did you mean VLLM_LOGGING_LEVEL" in found("0.32.0", VLLM_LOGING_LEVEL="DEBUG").found
    assert found("0.32.0", VLLM_LOGGING_LEVEL="DEBUG", VLLM_MY_PLUGIN_PATH="/x").status == "pass"
    assert judge("ENV043", machine(environ={"VLLM_USE_V1": "0"})).status == "skip"


def test_variables_that_hold() -> None:
    assert judge("ENV044", machine(environ={"OMP_NUM_THREADS": "1"})).status == "info"
    assert judge("ENV044", machine(environ={"OMP_NUM_THREADS": "4,2"})).status == "pass"
    assert judge("ENV044", machine(environ={"MKL_NUM_THREADS": "-1"})).status == "warn"
    assert judge("ENV045", machine(environ={"TOKENIZERS_PARALLELISM": "False"})).status == "pass"
    assert judge("ENV042", machine(environ={"TORCH_DISTRIBUTED_DEBUG": "detail"})).status == "warn"
    assert judge("ENV038", machine(environ={"PYTHONHOME": "/opt/python"})).status == "warn"
    assert (
        judge("ENV040", machine(environ={"CUDA_HOME": "/usr/local/cuda-12.4"}, torch=torch("2.13.0+cpu", ""))).status
        == "skip"
    )


def test_the_named_interpreter_is_not_questioned() -> None:
    facts = machine(environ={"VIRTUAL_ENV": "/home/bob/.venv"}, is_doctors_own=False)
    assert judge("ENV037", facts).status == "skip"


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (ImportTest(module="vllm", seconds=1, ok=False, signal=4), "vllm was killed by SIGILL"),
        (ImportTest(module="vllm", seconds=1, ok=False, signal=9999), "vllm was killed by signal 9999"),
        (ImportTest(module="vllm", seconds=60, ok=False, timed_out=True), "vllm was not done after 60 s"),
        (ImportTest(module="vllm", seconds=1, ok=False, last_line="ImportError: x"), "vllm: ImportError: x"),
    ],
)
def test_what_an_import_ended_in(test: ImportTest, words: str) -> None:
    assert words in judge("ENV046", imported(test)).found


def test_imports_of_nothing() -> None:
    assert judge("ENV046", machine(imports=known(()))).status == "pass"
    assert judge("ENV047", machine(imports=known(()))).status == "pass"
