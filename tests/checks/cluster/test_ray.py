"""The static Ray checks: status and numbers, and no false alarm (F23, F50, F51, F53, F71, F73)."""

import pytest

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.checks.cluster.variables import CXX_FLAGS
from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.ray import AuthToken, Listener, RayFacts, RaySession
from rlcheck.families import MEASURED
from tests.checks.cluster.cases import (
    CASES,
    DAY,
    GCS_PORT,
    HEAD,
    RUNNING,
    STRANGER,
    TOKEN_MODE,
    dashboard,
    machine,
    noset,
    python,
    token,
)

CHECKS = family_checks("RAY")

BY_ID = {check.id: check for check in CHECKS}
# Those on what a command of their own measures have tests of their own.
STATIC = [check for check in CHECKS if not any(need.partition(".")[0] in MEASURED for need in check.needs)]


def judge(check_id: str, facts: Facts) -> Verdict:
    return BY_ID[check_id].judge(facts)


@pytest.mark.parametrize(
    ("check_id", "status", "words"),
    [
        ("RAY001", "warn", "expected Ray >=2.45.0 with Python 3.13, found Ray 2.40.0"),
        ("RAY002", "warn", "Ray 2.44.1 with vLLM 0.8.4"),
        ("RAY003", "info", "Ray 2.60.0"),
        ("RAY004", "fail", "ROCR_VISIBLE_DEVICES=0,1 with Ray 2.60.0"),
        ("RAY005", "warn", "found both"),
        ("RAY006", "warn", "no debugpy"),
        ("RAY007", "warn", "RAY_DEBUG_POST_MORTEM=1"),
        ("RAY008", "warn", "RAY_testing_rpc_failure=a=1"),
        ("RAY009", "warn", "RAY_LOG_TO_DRIVER=0"),
        ("RAY010", "warn", "HIP_VISIBLE_DEVICES with Ray 2.60.0"),
        ("RAY011", "warn", "takes for off"),
        ("RAY012", "info", "sees all GPUs"),
        ("RAY013", "warn", "1 of 1 sessions"),
        ("RAY014", "warn", HEAD),
        ("RAY015", "warn", "1 of uid 2000"),
        ("RAY016", "info", f"cluster {HEAD}, 2 processes, 3 days old"),
        ("RAY017", "warn", "redis-server (pid 77) of uid 113"),
        ("RAY018", "warn", "0.0.0.0:8265"),
        ("RAY019", "info", "1024 – 65535"),
        ("RAY020", "fail", "without a host"),
        ("RAY021", "warn", "none on this machine"),
        ("RAY022", "warn", "switches it off"),
        ("RAY023", "warn", "'0' (any text counts as yes)"),
        ("RAY024", "warn", "RAY_BACKEND=ucx"),
        ("RAY025", "warn", "expected RAY_worker_register_timeout_seconds"),
        ("RAY026", "warn", "'1'"),
        ("RAY027", "warn", "http://proxy:3128"),
        ("RAY028", "info", "protects nothing"),
        ("RAY029", "warn", "/home/bob/.ray/auth_token is missing"),
        ("RAY030", "fail", "no RAY_TLS_SERVER_KEY, no RAY_TLS_CA_CERT"),
    ],
)
def test_fires_with_its_numbers_and_stays_quiet(check_id: str, status: str, words: str):
    loud, quiet = (judge(check_id, facts) for facts in CASES[check_id])
    assert (loud.status, words in loud.message) == (status, True), loud.message
    assert quiet.status in ("pass", "skip"), quiet.message


def test_an_ordinary_machine_without_ray_has_nothing_to_report():
    nothing = {"sessions": absent("no"), "num_sessions": absent("no")}
    facts = machine(packages=python(ray=""), **nothing)
    for check in STATIC:
        if check.id not in ("RAY004", "RAY013"):  # their facts are absent: the engine skips them
            assert judge(check.id, facts).status in ("pass", "skip"), check.id


@pytest.mark.parametrize(
    ("python_version", "ray", "status"),
    [
        ("3.9.19", "2.51.2", "pass"),
        ("3.9.19", "2.55.0", "warn"),
        ("3.14.0", "2.55.0", "pass"),
        ("3.15.0", "2.60.0", "skip"),
        ("3.8.10", "2.10.0", "warn"),
        ("garbage", "2.60.0", "skip"),
        ("3.12.1", "2.60.0rc1", "pass"),
        ("3.12.1", "not a version", "skip"),
        ("3.12.1", "", "skip"),
    ],
)
def test_wheels_by_python(python_version: str, ray: str, status: str):
    assert judge("RAY001", machine(packages=python(python_version, ray=ray))).status == status


@pytest.mark.parametrize(
    ("ray", "environ", "status"),
    [
        ("2.44.1", {"ROCR_VISIBLE_DEVICES": "0"}, "pass"),
        ("2.46.0", {"CUDA_VISIBLE_DEVICES": "0"}, "fail"),
        ("2.48.0", {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}, "fail"),
        ("2.49.0", {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}, "pass"),
        ("2.54.0", {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, "fail"),
        ("2.60.0", {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, "pass"),
        ("2.60.0", {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}, "pass"),
    ],
)
def test_amd_variables_by_version(ray: str, environ: dict[str, str], status: str):
    assert judge("RAY004", machine(environ, python(ray=ray), amd=True)).status == status


@pytest.mark.parametrize(
    ("environ", "packages", "status"),
    [
        ({"RAY_DEBUG": "legacy"}, {}, "info"),
        ({"RAY_DEBUG": "true"}, {}, "info"),
        ({"RAY_DEBUG": "1"}, {"ray": "2.10.0", "debugpy": "1.8.0"}, "warn"),
        ({"RAY_DEBUG_POST_MORTEM": "1"}, {"debugpy": "1.8.0"}, "pass"),
        ({"RAY_DEBUG_POST_MORTEM": "1"}, {}, "pass"),  # RAY007 takes it away: nothing is to be installed for it
        ({"RAY_DEBUG": "1"}, {"ray": ""}, "skip"),
    ],
)
def test_debuggers(environ: dict[str, str], packages: dict[str, str], status: str):
    assert judge("RAY006", machine(environ, python(**packages))).status == status


def test_uv_run_can_be_switched_off():
    under = {"UV_RUN_RECURSION_DEPTH": "1"}
    assert judge("RAY003", machine({**under, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"})).status == "pass"
    assert judge("RAY003", machine(under, python(ray="2.46.0"))).status == "pass"


def test_recording_switches_are_only_mentioned():
    assert judge("RAY008", machine({"RAY_record_ref_creation_sites": "1"})).status == "info"


@pytest.mark.parametrize(
    ("environ", "ray", "amd", "status"),
    [
        (noset("CUDA_VISIBLE_DEVICE"), "2.60.0", False, "warn"),
        (noset("ROCR_VISIBLE_DEVICES"), "2.60.0", False, "pass"),
        (noset("HIP_VISIBLE_DEVICES"), "2.40.0", True, "warn"),
        (noset("HIP_VISIBLE_DEVICES") | noset("ROCR_VISIBLE_DEVICES"), "2.40.0", True, "pass"),
    ],
)
def test_noset_names(environ: dict[str, str], ray: str, amd: bool, status: str):
    assert judge("RAY010", machine(environ, python(ray=ray), amd=amd)).status == status


@pytest.mark.parametrize(
    ("value", "ray", "status"),
    [
        ("0", "2.51.0", "warn"),
        ("0", "2.54.0", "pass"),
        ("on", "2.54.0", "warn"),
        ("1", "2.40.0", "pass"),
        ("", "2.4", "pass"),
    ],
)
def test_noset_values(value: str, ray: str, status: str):
    assert judge("RAY011", machine(noset("CUDA_VISIBLE_DEVICES", value), python(ray=ray))).status == status


def test_many_sessions_are_mentioned_and_live_ones_left_alone():
    many = tuple(RaySession(name=f"session_{n}", age_s=DAY) for n in range(25))
    assert judge("RAY013", machine(sessions=known(many), num_sessions=known(40))).status == "info"
    live = (RaySession(name="session_x", age_s=DAY, live=True, spilled=3),)
    assert judge("RAY013", machine(sessions=known(live))).status == "pass"
    young = (RaySession(name="session_x", age_s=60, spilled=3),)
    assert judge("RAY013", machine(sessions=known(young))).status == "pass"


def test_the_default_cluster():
    gone = known(HEAD)
    assert judge("RAY014", machine({"RAY_ADDRESS": "auto"}, current_cluster=gone)).status == "skip"
    assert judge("RAY014", machine(current_cluster=gone, num_unseen_raylets=1)).status == "pass"
    assert judge("RAY014", machine(current_cluster=gone, listeners=known((GCS_PORT,)))).status == "pass"


def test_ray_in_another_container_is_mentioned():
    assert "out of sight" in judge("RAY016", machine(num_unseen_raylets=1)).message


def test_port_6379():
    hidden = known((Listener(port=6379, address="::", owner_uid=0),))
    assert judge("RAY017", machine(listeners=hidden)).status == "warn"
    assert judge("RAY017", machine(listeners=hidden, num_unseen_raylets=1)).status == "unknown"
    assert judge("RAY017", machine(packages=python(ray=""), listeners=hidden)).status == "skip"


@pytest.mark.parametrize(
    ("address", "status"), [("::1", "pass"), ("::", "warn"), ("10.0.0.5", "warn"), ("127.0.0.2", "pass")]
)
def test_dashboards(address: str, status: str):
    assert judge("RAY018", machine(listeners=dashboard(address))).status == status
    assert judge("RAY018", machine(TOKEN_MODE, listeners=dashboard(address))).status == "pass"


@pytest.mark.parametrize("reserved", ["", "junk", "10002", "10002-15000", "-", "9-8-7", "1-99999999999999999999"])
def test_reserved_ports_that_do_not_cover(reserved: str):
    facts = machine(local_port_range=known((10000, 65535)), reserved_ports=reserved)
    assert judge("RAY019", facts).status == "info"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("", "pass"),
        ("auto", "pass"),
        ("local", "pass"),
        ("ray://head:10001", "info"),
        ("http://head:8265", "warn"),
        ("tcp://head:6379", "fail"),
        ("head", "fail"),
        ("head:", "fail"),
        ("head:80", "fail"),
        ("head:70000", "fail"),
        ("head:8265", "fail"),
        ("head:10001", "fail"),
        ("[fd00::1]:6379", "pass"),
        ("head:6380", "pass"),
        ("head:\u0663\u0663\u0663\u0663", "pass"),
    ],
)
def test_forms_of_ray_address(value: str, status: str):
    assert judge("RAY020", machine({"RAY_ADDRESS": value})).status == status


@pytest.mark.parametrize(
    ("value", "running", "status"),
    [
        ("auto", False, "warn"),
        ("auto", True, "pass"),
        ("local", False, "pass"),
        ("10.0.0.9:6379", False, "pass"),
        ("head:6379", False, "pass"),
        ("10.0.0.5:6380", True, "warn"),
        ("localhost:6379", True, "pass"),
        ("ray://127.0.0.1:10001", False, "warn"),
        ("nonsense", False, "pass"),
    ],
)
def test_what_is_behind_ray_address(value: str, running: bool, status: str):
    assert judge("RAY021", machine({"RAY_ADDRESS": value}, **(RUNNING if running else {}))).status == status


@pytest.mark.parametrize(
    ("value", "status"),
    [("0.95", "pass"), ("1.0", "warn"), ("95", "warn"), ("0.1", "warn"), ("x", "warn"), ("nan", "warn")],
)
def test_memory_threshold(value: str, status: str):
    assert judge("RAY022", machine({"RAY_memory_usage_threshold": value})).status == status


def test_renamed_settings_only_with_a_ray_that_was_looked_into():
    old = {"RAY_num_heartbeats_timeout": "300"}
    assert judge("RAY024", machine(old)).status == "warn"
    assert judge("RAY024", machine(old, python(ray="2.0.0"))).status == "pass"


def test_flag_list_is_the_real_one():
    assert {"worker_register_timeout_seconds", "memory_usage_threshold", "enable_timeline"} <= CXX_FLAGS
    assert "RAY_BACKEND" not in CXX_FLAGS


def test_a_proxy_that_spares_the_cluster_is_only_mentioned():
    environ = {"RAY_grpc_enable_http_proxy": "true", "https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}
    assert judge("RAY027", machine(environ)).status == "info"


@pytest.mark.parametrize(
    ("found", "ray", "status"),
    [
        (token(exists=True, readable=True, num_bytes=64), "2.60.0", "pass"),
        (token(exists=True, readable=True), "2.60.0", "warn"),
        (token(exists=True), "2.60.0", "warn"),
        (token(source="RAY_AUTH_TOKEN_PATH"), "2.60.0", "fail"),
        (token(), "2.51.0", "warn"),
        (missing(MissingKind.UNSUPPORTED, "on nfs"), "2.60.0", "unknown"),
    ],
)
def test_auth_tokens(found, ray: str, status: str):
    assert judge("RAY029", machine(TOKEN_MODE, python(ray=ray), auth_token=found)).status == status


def test_hostile_facts_do_not_break_a_check():
    wild = RayFacts(
        uid=-7,
        num_sessions=known(10**30),
        sessions=known((RaySession(name="\x1b[31m", age_s=float("inf"), spilled=10**20),)),
        current_cluster=known("\x00:::::"),
        processes=known((STRANGER,)),
        listeners=known((Listener(port=-1, address=""), Listener(port=6379, address="x"))),
        local_port_range=known((-5, 10**30)),
    )
    odd = {
        "RAY_ADDRESS": "://:",
        "RAY_memory_usage_threshold": "1e999",
        "RAY_": "",
        "RAY_EXPERIMENTAL_NOSET_": "\ufffd",
    }
    for check in STATIC:
        facts = machine(odd, amd=True)
        assert (
            judge(check.id, Facts(environ=facts.environ, python=facts.python, rocm=facts.rocm, ray=known(wild))).status
            != "error"
        )


def _fresh_token():
    return known(
        AuthToken(path="/home/bob/.ray/auth_token", source="default", exists=True, readable=True, num_bytes=64)
    )


@pytest.mark.parametrize(
    ("environ", "ray", "status"),
    [
        ({}, "2.60.0", "info"),
        ({}, "2.58.0", "pass"),
        ({}, "2.61.0", "pass"),
        ({"RAY_AUTH_MODE": "disabled"}, "2.60.0", "pass"),
    ],
)
def test_a_token_that_ray_uses_by_itself(environ: dict[str, str], ray: str, status: str):
    finding = judge("RAY029", machine(environ, python(ray=ray), auth_token=_fresh_token()))
    assert finding.status == status, finding.message


@pytest.mark.parametrize(("ray", "status"), [("2.60.0", "pass"), ("2.58.0", "warn")])
def test_an_open_dashboard_that_asks_for_a_token(ray: str, status: str):
    public = known((Listener(port=8265, address="0.0.0.0", process="ray-dashboard"),))
    assert judge("RAY018", machine({}, python(ray=ray), listeners=public, auth_token=_fresh_token())).status == status
