"""The cache and client checks: status and numbers, and no false alarm (F31, F58, F71)."""

import msgspec
import pytest

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.facts.base import MissingKind, known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.hub import CacheContents, HomeDirectory, Leftovers, PathSetting, TokenFile
from rlcheck.facts.platform import PlatformFacts
from tests.checks.hub.cases import (
    CASES,
    EMPTY_CACHE,
    GIB,
    LOCKS,
    NO_ENTRY,
    contents,
    directory,
    machine,
    python,
    token,
    write_test,
)

CHECKS = family_checks("HFC")

BY_ID = {check.id: check for check in CHECKS}


def judge(check_id: str, facts: Facts) -> Verdict:
    return BY_ID[check_id].judge(facts)


@pytest.mark.parametrize(
    ("check_id", "status", "words"),
    [
        ("HFC001", "fail", "Permission denied"),
        ("HFC002", "fail", "errno 37"),
        ("HFC003", "warn", "errno 95"),
        ("HFC004", "warn", "uid 1000"),
        ("HFC005", "warn", "root directory"),
        ("HFC006", "warn", "3 of uid 1234"),
        ("HFC007", "warn", "3, the oldest 25 h old"),
        ("HFC008", "warn", "4 files, 30.0 GiB, the oldest 9 days old"),
        ("HFC009", "warn", "2 links to nothing"),
        ("HFC010", "fail", "1.0 GiB"),
        ("HFC011", "warn", "taken literally"),
        ("HFC012", "warn", "transformers 5.19.0 does not read"),
        ("HFC013", "info", "nfs4"),
        ("HFC014", "warn", "cannot be written"),
        ("HFC015", "fail", "cannot be read by uid 1000"),
        ("HFC016", "warn", "mode 0644"),
        ("HFC017", "info", "no Hub token"),
        ("HFC018", "warn", "does not exist"),
        ("HFC019", "warn", "the Hub client is online"),
        ("HFC020", "fail", "mirror.example.org"),
        ("HFC021", "fail", "0.34.1"),
        ("HFC022", "fail", "'30s'"),
        ("HFC023", "warn", "1.0.3"),
    ],
)
def test_fires_with_its_numbers_and_stays_quiet(check_id: str, status: str, words: str):
    loud, quiet = (judge(check_id, facts) for facts in CASES[check_id])
    assert (loud.status, words in loud.message) == (status, True), loud.message
    assert quiet.status in ("pass", "skip"), quiet.message


def test_an_ordinary_machine_with_an_empty_cache_has_no_problem():
    facts = machine(packages=python(pip="26.0"), **EMPTY_CACHE)
    statuses = {check.id: judge(check.id, facts).status for check in CHECKS if check.id not in ("HFC006", "HFC007",
                "HFC008", "HFC009")}  # fmt: skip
    assert set(statuses.values()) <= {"pass", "skip", "info"}, statuses
    assert [check_id for check_id, status in statuses.items() if status == "info"] == ["HFC017"]


def test_a_read_only_cache_with_models_is_no_failure():
    assert judge("HFC001", machine({"HF_HUB_OFFLINE": "1"}, write_test=NO_ENTRY)).status == "pass"
    assert judge("HFC001", machine(write_test=NO_ENTRY)).status == "warn"
    assert judge("HFC001", machine(packages=python(pip="1"), write_test=NO_ENTRY, **EMPTY_CACHE)).status == "warn"


def test_a_full_quota_is_named():
    verdict = judge("HFC001", machine(write_test=write_test(failed_step="write", error="Disk quota exceeded")))
    assert "Disk quota exceeded (step: write)" in verdict.message


@pytest.mark.parametrize(("errno", "status"), [(0, "pass"), (11, "pass"), (38, "warn"), (95, "fail")])
def test_what_the_kernel_says_of_flock(errno: int, status: str):
    assert judge("HFC002", machine(write_test=write_test(lock_errno=errno, lock_error="x"))).status == status


def test_locks_and_links_are_not_judged_when_no_file_could_be_made():
    for check_id in ("HFC002", "HFC003"):
        assert judge(check_id, machine(write_test=NO_ENTRY)).status == "skip"


def test_a_shared_cache_is_only_mentioned():
    assert judge("HFC004", machine(cache=known(directory(owner_uid=7)))).status == "info"


@pytest.mark.row("F58")
@pytest.mark.parametrize(
    ("home", "words"),
    [
        (HomeDirectory(path="/home/bob", source="passwd", passwd="/home/bob", exists=True), "HOME is not set"),
        (HomeDirectory(path="/nonexistent", source="HOME"), "does not exist"),
        (HomeDirectory(path="/root", source="HOME", exists=True, owner_uid=0), "cannot be written by uid 1000"),
    ],
)
def test_homes_of_containers(home: HomeDirectory, words: str):
    assert words in judge("HFC005", machine(home=known(home))).message
    assert judge("HFC005", machine(home=known(home), home_decides=False, cache_source="HF_HOME")).status == "skip"


def test_a_cut_walk_says_so():
    found = contents(locks=LOCKS, complete=False, cut_reason="took more than 0.15 s")
    assert "took more than 0.15 s" in judge("HFC006", machine(contents=found)).details[-1]
    offline = {"HF_HUB_OFFLINE": "1"}
    none = contents(num_models=0, complete=False, cut_reason="x")
    assert judge("HFC018", machine(offline, contents=none)).status == "skip"
    unseen = missing(MissingKind.TIMEOUT, "slow")
    assert judge("HFC018", machine(offline, contents=unseen)).status == "skip"


def test_small_leftovers_are_only_mentioned():
    small = Leftovers(num=1, num_bytes=5 << 20, oldest_s=7200, first=("x",))
    verdict = judge("HFC008", machine(contents=contents(incomplete=small)))
    assert (verdict.status, "5.0 MiB" in verdict.message) == ("info", True)


def test_broken_snapshots_name_the_model_to_fetch():
    assert judge("HFC009", CASES["HFC009"][0]).params == {"repo": "org/tiny"}


@pytest.mark.parametrize(
    ("free", "environ", "models", "status"),
    [
        (500 * GIB, {}, 0, "pass"),
        (5 * GIB, {}, 0, "warn"),
        (GIB, {}, 0, "fail"),
        (GIB, {}, 3, "warn"),
        (GIB, {"HF_HUB_OFFLINE": "yes"}, 3, "info"),
        (-1, {}, 0, "skip"),
    ],
)
def test_free_space(free: int, environ: dict[str, str], models: int, status: str):
    facts = machine(environ, cache=known(directory(free_bytes=free)), contents=contents(num_models=models))
    assert judge("HFC010", facts).status == status


def test_inodes_run_out_first():
    verdict = judge("HFC010", machine(cache=known(directory(free_inodes=12))))
    assert (verdict.status, "12" in verdict.found) == ("warn", True)


@pytest.mark.parametrize(
    ("setting", "hub_version", "status"),
    [
        (PathSetting(name="HF_HUB_CACHE", value="~/h", resolved="/home/b/h", has_tilde=True), "0.27.1", "warn"),
        (PathSetting(name="HF_HUB_CACHE", value="~/h", resolved="/home/b/h", has_tilde=True), "2.4.0", "pass"),
        (PathSetting(name="HF_HOME", value="cache", resolved="cache", relative=True), "2.4.0", "warn"),
        (PathSetting(name="HF_HOME", value="", resolved="", relative=True), "2.4.0", "warn"),
        (
            PathSetting(name="HF_HOME", value="$NO/h", resolved="$NO/h", relative=True, has_variable=True),
            "2.4.0",
            "warn",
        ),
        (PathSetting(name="HF_HOME", value="~/h", resolved="/home/b/h", has_tilde=True), "garbage", "pass"),
    ],
)
def test_path_settings_by_version(setting: PathSetting, hub_version: str, status: str):
    assert judge("HFC011", machine(None, python(huggingface_hub=hub_version), settings=(setting,))).status == status


@pytest.mark.parametrize(
    ("environ", "packages", "status"),
    [
        ({"TRANSFORMERS_CACHE": "/t"}, {"transformers": "4.57.6"}, "info"),
        ({"TRANSFORMERS_CACHE": "/t"}, {"transformers": "5.0.0rc1"}, "warn"),
        ({"TRANSFORMERS_CACHE": "/t"}, {}, "info"),
        ({"PYTORCH_TRANSFORMERS_CACHE": "/t"}, {"transformers": "5.2.0"}, "warn"),
        ({"TRANSFORMERS_CACHE": "/home/bob/.cache/huggingface/hub/"}, {"transformers": "5.2.0"}, "info"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, {}, "info"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, {}, "warn"),
    ],
)
def test_variables_of_the_past(environ: dict[str, str], packages: dict[str, str], status: str):
    assert judge("HFC012", machine(environ, python(**packages))).status == status


def test_the_old_directory_does_not_overrule_a_choice():
    left_over = {"TRANSFORMERS_CACHE": "/t"}
    assert judge("HFC012", machine(left_over, python(transformers="5.2.0"))).params["value"] == "/t"
    chosen = judge("HFC012", machine(left_over | {"HF_HOME": "/new"}, python(transformers="5.2.0")))
    assert (chosen.status, chosen.params) == ("warn", {"variable": "TRANSFORMERS_CACHE"})


def test_only_without_flock_does_a_lock_file_hold():
    for errno, status in ((11, "skip"), (37, "skip"), (38, "warn")):
        facts = machine(contents=contents(locks=LOCKS), write_test=write_test(lock_errno=errno, lock_error="x"))
        assert judge("HFC007", facts).status == status


def test_a_file_system_of_zero_bytes_does_not_say():
    assert judge("HFC010", machine(cache=known(directory(total_bytes=0, free_bytes=0)))).status == "skip"


def test_nobody_else_is_in_a_container():
    facts = msgspec.structs.replace(
        machine(tokens=token(mode=0o644)), platform=known(PlatformFacts(container="kubernetes"))
    )
    assert judge("HFC016", facts).status == "info"


def test_tokens_in_other_states():
    assert judge("HFC015", machine({"HF_TOKEN": "<set>"}, tokens=token(readable=False))).status == "skip"
    assert judge("HFC015", machine({"HF_TOKEN": ""}, tokens=token(readable=False))).status == "fail"
    assert judge("HFC015", machine(tokens=token(num_bytes=0))).status == "info"
    assert judge("HFC016", machine(tokens=token(mode=0o640))).status == "info"
    assert judge("HFC017", machine({"HF_HUB_OFFLINE": "1"})).status == "skip"
    old = known((TokenFile(path="/t"), TokenFile(path="/o", exists=True, read_by_library=False)))
    assert "/o is not read any more" in judge("HFC017", machine(tokens=old)).message
    sent = {"HF_TOKEN": "<set>", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
    assert "not sent" in judge("HFC017", machine(sent)).message


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({}, "pass"),
        ({"HF_HUB_OFFLINE": "y"}, "warn"),
        ({"HF_HUB_OFFLINE": "true", "TRANSFORMERS_OFFLINE": "1"}, "pass"),
        ({"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "1"}, "pass"),
        ({"HF_DATASETS_OFFLINE": "1"}, "warn"),
        ({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "0"}, "warn"),
    ],
)
def test_offline_flags(environ: dict[str, str], status: str):
    assert judge("HFC019", machine(environ)).status == status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("https://hf-mirror.com", "info"),
        ("http://localhost:8090", "info"),
        ("http://mirror.lan", "warn"),
        ("", "fail"),
        ("https://", "fail"),
        ("https://[bad", "fail"),
        ("https://a b", "fail"),
        ("ftp://x", "fail"),
    ],
)
def test_endpoints(value: str, status: str):
    assert judge("HFC020", machine({"HF_ENDPOINT": value})).status == status


def test_hf_transfer_with_new_clients_is_only_mentioned():
    verdict = judge("HFC021", machine({"HF_HUB_ENABLE_HF_TRANSFER": "1"}, python(huggingface_hub="1.2.0")))
    assert verdict.status == "info"


@pytest.mark.parametrize(("value", "status"), [("", "fail"), ("1.5", "fail"), (" 7 ", "pass"), ("9" * 9999, "pass")])
def test_numbers(value: str, status: str):
    assert judge("HFC022", machine({"HF_HUB_ETAG_TIMEOUT": value})).status == status


def test_xet_between_the_mended_versions_is_only_mentioned():
    assert judge("HFC023", machine(None, python(hf_xet="1.5.0"))).status == "info"
    assert judge("HFC023", machine({"HF_HUB_DISABLE_XET": "1"}, python(hf_xet="1.0.0"))).status == "skip"


def test_hostile_contents_do_not_break_a_check():
    wild = CacheContents(
        num_models=-5,
        foreign_locks=Leftovers(num=10**30),
        incomplete=Leftovers(num=1, num_bytes=10**30, oldest_s=-1e300),
        dangling=Leftovers(num=1, first=("\x1b[31m", "")),
    )
    for check in CHECKS:
        assert judge(check.id, machine(contents=known(wild))).status != "error"
