"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import AmdDevice, RocmFacts
from rlcheck.facts.python import Distribution, PythonFacts
from rlcheck.facts.ray import AuthToken, Listener, RayFacts, RayProcess, RaySession
from tests.checks.cluster import cluster_cases, reach_cases

DAY = 86400.0
HEAD = "10.0.0.5:6379"
GCS = RayProcess(pid=10, name="gcs_server", owner_uid=1000, age_s=3 * DAY, gcs_address=HEAD, session="session_a_1")
RAYLET = RayProcess(pid=11, name="raylet", owner_uid=1000, age_s=3 * DAY, gcs_address=HEAD, session="session_a_1")
GCS_PORT = Listener(port=6379, address="::", owner_uid=1000, pid=10, process="gcs_server")


def python(version: str = "3.12.3", **versions: str) -> Fact[PythonFacts]:
    """An environment with these distributions; Ray 2.60.0 is in it unless `ray` says otherwise ("" for none)."""
    packages = {"ray": "2.60.0", **versions}
    found = tuple(
        Distribution(name=n.replace("_", "-"), version=v, location="/site-packages") for n, v in packages.items() if v
    )
    return known(PythonFacts(version=version, distributions=found))


def ray_section(**changes) -> RayFacts:
    """A machine on which no Ray runs."""
    usual = {
        "uid": 1000,
        "temp_dir": "/tmp/ray",
        "temp_dir_source": "default",
        "num_sessions": known(1),
        "sessions": known((RaySession(name="session_a_1", owner_uid=1000, age_s=DAY),)),
        "current_cluster": known(""),
        "processes": known(()),
        "listeners": known(()),
        "addresses": ("127.0.0.1", "10.0.0.5"),
        "local_port_range": known((32768, 60999)),
        "somaxconn": known(4096),
        "auth_token": absent("RAY_AUTH_MODE is not token"),
    }
    return RayFacts(**{**usual, **changes})


RUNNING = {"processes": known((GCS, RAYLET)), "listeners": known((GCS_PORT,))}


def machine(
    environ: dict[str, str] | None = None,
    packages: Fact[PythonFacts] | None = None,
    amd: bool = False,
    **changes,
) -> Facts:
    rocm = RocmFacts(devices=known((AmdDevice(node=1, gfx="gfx942"),))) if amd else None
    return Facts(
        environ=known(environ or {}),
        python=python() if packages is None else packages,
        rocm=known(rocm) if rocm else absent("no AMD GPU"),
        ray=known(ray_section(**changes)),
    )


def noset(name: str, value: str = "1") -> dict[str, str]:
    return {f"RAY_EXPERIMENTAL_NOSET_{name}": value}


def token(**changes) -> Fact[AuthToken]:
    return known(AuthToken(**{"path": "/home/bob/.ray/auth_token", "source": "default", **changes}))


def dashboard(address: str) -> Fact[tuple[Listener, ...]]:
    return known((Listener(port=8265, address=address, owner_uid=1000, pid=12, process="ray-dashboard"),))


HEALTHY = machine()
TOKEN_MODE = {"RAY_AUTH_MODE": "token"}
SPILLED = (RaySession(name="session_b_2", owner_uid=1000, age_s=9 * DAY, spilled=2),)
REDIS = known((Listener(port=6379, address="0.0.0.0", owner_uid=113, pid=77, process="redis-server"),))
STRANGER = RayProcess(pid=5, name="raylet", owner_uid=2000, age_s=60)

CASES: dict[str, tuple[Facts, Facts]] = {
    "RAY001": (machine(packages=python("3.13.1", ray="2.40.0")), HEALTHY),
    "RAY002": (machine(packages=python(ray="2.44.1", vllm="0.8.4")), machine(packages=python(vllm="0.26.0"))),
    "RAY003": (machine({"UV_RUN_RECURSION_DEPTH": "1"}), HEALTHY),
    "RAY004": (machine({"ROCR_VISIBLE_DEVICES": "0,1"}, amd=True), machine({"HIP_VISIBLE_DEVICES": "0"}, amd=True)),
    "RAY005": (machine({"RAY_DEBUG": "legacy", "RAY_DEBUG_POST_MORTEM": "1"}), machine({"RAY_DEBUG": "legacy"})),
    "RAY006": (machine({"RAY_DEBUG": "1"}), machine({"RAY_DEBUG": "1"}, python(debugpy="1.8.14"))),
    "RAY007": (machine({"RAY_DEBUG_POST_MORTEM": "1"}), machine({"RAY_DEBUG_POST_MORTEM": "0"})),
    "RAY008": (machine({"RAY_testing_rpc_failure": "a=1"}), HEALTHY),
    "RAY009": (machine({"RAY_LOG_TO_DRIVER": "0"}), machine({"RAY_DEDUP_LOGS": "1"})),
    "RAY010": (
        machine(noset("ROCR_VISIBLE_DEVICES"), amd=True),
        machine(noset("HIP_VISIBLE_DEVICES"), amd=True),
    ),
    "RAY011": (machine(noset("CUDA_VISIBLE_DEVICES", "yes")), machine(noset("CUDA_VISIBLE_DEVICES"))),
    "RAY012": (machine(noset("CUDA_VISIBLE_DEVICES")), machine(noset("CUDA_VISIBLE_DEVICES", "0"))),
    "RAY013": (machine(sessions=known(SPILLED)), HEALTHY),
    "RAY014": (machine(current_cluster=known(HEAD)), machine(current_cluster=known(HEAD), **RUNNING)),
    "RAY015": (machine(processes=known((STRANGER,))), machine(**RUNNING)),
    "RAY016": (machine(**RUNNING), HEALTHY),
    "RAY017": (machine(listeners=REDIS), machine(**RUNNING)),
    "RAY018": (machine(listeners=dashboard("0.0.0.0")), machine(listeners=dashboard("127.0.0.1"))),
    "RAY019": (
        machine(local_port_range=known((1024, 65535))),
        machine(local_port_range=known((1024, 65535)), reserved_ports="4000,10002-19999"),
    ),
    "RAY020": (machine({"RAY_ADDRESS": ":6379"}), machine({"RAY_ADDRESS": HEAD})),
    "RAY021": (machine({"RAY_ADDRESS": "127.0.0.1:6379"}), machine({"RAY_ADDRESS": "127.0.0.1:6379"}, **RUNNING)),
    "RAY022": (machine({"RAY_memory_monitor_refresh_ms": "0"}), machine({"RAY_memory_usage_threshold": "0.9"})),
    "RAY023": (machine({"RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "0"}), HEALTHY),
    "RAY024": (machine({"RAY_BACKEND": "ucx"}), machine({"RAY_BACKEND_LOG_LEVEL": "debug"})),
    "RAY025": (
        machine({"RAY_WORKER_REGISTER_TIMEOUT_SECONDS": "600"}),
        machine({"RAY_worker_register_timeout_seconds": "600", "RAY_ENABLE_OPEN_TELEMETRY": "1"}),
    ),
    "RAY026": (machine({"RAY_USE_MULTIPROCESSING_CPU_COUNT": "1"}), HEALTHY),
    "RAY027": (
        machine({"RAY_grpc_enable_http_proxy": "1", "http_proxy": "http://proxy:3128"}),
        machine({"http_proxy": "http://proxy:3128"}),
    ),
    "RAY028": (
        machine({"RAY_REDIS_PASSWORD": "<set>"}),
        machine({"RAY_REDIS_PASSWORD": "<set>", "RAY_REDIS_ADDRESS": "redis:6379"}),
    ),
    "RAY029": (machine(TOKEN_MODE, auth_token=token()), machine(TOKEN_MODE | {"RAY_AUTH_TOKEN": "<set>"})),
    "RAY030": (
        machine({"RAY_USE_TLS": "1", "RAY_TLS_SERVER_CERT": "/c.pem"}),
        machine(
            {"RAY_USE_TLS": "1", "RAY_TLS_SERVER_CERT": "/c", "RAY_TLS_SERVER_KEY": "<set>", "RAY_TLS_CA_CERT": "/a"}
        ),
    ),
}
CASES |= cluster_cases.CASES | reach_cases.CASES
OTHER_FIRES = {**reach_cases.OTHER_FIRES, "RAY006": (machine({"RAY_DEBUG": "1"}, python(ray="2.10.0")),)}
