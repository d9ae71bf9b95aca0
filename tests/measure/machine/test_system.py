from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlcheck.facts.base import MissingKind, need
from rlcheck.facts.system import UNLIMITED, Limit, Place, SystemFacts
from rlcheck.measure.machine import system
from rlcheck.measure.machine.context import ProbeContext
from tests.measure.machine.machines import FILES, tree


def collect(root: Path, environ: dict[str, str] | None = None, python: tuple[str, ...] = ()) -> SystemFacts:
    return system.collect(ProbeContext(root=root, environ=environ or {}, python=python))


@pytest.fixture
def facts(tmp_path: Path) -> SystemFacts:
    shm = tmp_path / "dev/shm"
    shm.mkdir(parents=True)
    return collect(tree(tmp_path, FILES), {"HOME": "/home/alice", "LANG": "zh_CN.GBK"})


def by_purpose(facts: SystemFacts) -> dict[str, Place]:
    return {place.purpose: place for place in facts.places}


def test_limits(facts: SystemFacts) -> None:
    limits = need(facts.limits)
    assert need(limits.nofile) == Limit(soft=1024, hard=524288)
    assert need(limits.stack) == Limit(soft=8388608, hard=UNLIMITED)
    assert need(limits.memlock).soft == 8 << 20
    assert need(limits.nproc) == Limit(soft=4096, hard=8192)


def test_memory(facts: SystemFacts) -> None:
    memory = need(facts.memory)
    assert memory.total_bytes == 1000000 * 1024
    assert memory.available_bytes == 800000 * 1024
    assert memory.swap_total_bytes - memory.swap_free_bytes == 50000 * 1024
    assert memory.hugepages_bytes == 4 * 2048 * 1024
    assert need(memory.overcommit) == 2


def test_tightest_limits_on_the_way_up(facts: SystemFacts) -> None:
    """F15, F52: the memory limit is the parent's, the quota the step's own."""
    group = need(facts.cgroup)
    assert (group.version, group.path) == (2, "/job/step")
    assert need(group.memory_limit_bytes) == 512 << 20
    assert group.memory_limit_at == "/sys/fs/cgroup/job/memory.max"
    assert need(group.memory_used_bytes) == 400000000
    assert need(group.memory_reclaimable_bytes) == 300000000
    assert need(group.cpus) == 8.0
    assert need(group.pids_limit) == 1024
    assert need(group.pids_used) == 77
    assert need(group.oom_kills) == 5


def test_processors(facts: SystemFacts) -> None:
    assert need(facts.cpu.online) == 112
    assert need(facts.cpu.allowed) == (0, 1, 2, 3, 56)
    assert [(node.id, len(node.cpus), node.total_bytes) for node in facts.cpu.numa_nodes] == [
        (0, 56, 512000000),
        (1, 56, 512000000),
    ]
    assert need(facts.cpu.thp) == "madvise"
    assert need(facts.cpu.numa_balancing) == 1


def test_kernel(facts: SystemFacts) -> None:
    assert need(facts.kernel.modules_present) is False
    assert facts.kernel.other_releases == ("6.8.0-45-generic",)
    assert need(facts.kernel.reboot_required) == ("linux-base", "linux-image-6.8.0-45-generic")
    assert need(facts.kernel.core_pattern).startswith("|")
    assert need(facts.kernel.ptrace_scope) == 1


def test_process(facts: SystemFacts) -> None:
    process = need(facts.process)
    assert (process.uid, process.gid, process.groups) == (1000, 1000, (44, 109, 1000))
    assert need(process.capabilities) == ("ipc_lock", "sys_ptrace")
    assert need(process.umask) == 0o077
    assert need(process.seccomp) == 2
    assert process.no_new_privileges
    assert process.root_mapped
    assert need(process.user_name_from) == "/etc/passwd"
    assert process.home_set


def test_places_and_their_settings(facts: SystemFacts) -> None:
    places = by_purpose(facts)
    assert places["triton"].path == "/home/alice/.triton/cache"
    assert places["triton"].exists is False
    assert places["ray"].path == "/tmp/ray"
    assert places["home"].setting == "HOME"
    assert need(places["tmp"].total_bytes) > 0
    assert need(facts.shm).fs_type == "tmpfs"
    assert "size=65536k" in need(facts.shm).options


def test_variables_choose_the_places(tmp_path: Path) -> None:
    environ = {
        "TMPDIR": "/scratch/job",
        "TRITON_CACHE_DIR": "/mnt/with space/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/inductor",
        "VLLM_CACHE_ROOT": "/vllm",
    }
    places = by_purpose(collect(tree(tmp_path, FILES), environ))
    assert (places["ray"].path, places["ray"].setting) == ("/scratch/job/ray", "TMPDIR")
    assert (places["tmp"].path, places["tmp"].exists) == ("/scratch/job", False)
    assert places["inductor"].setting == "TORCHINDUCTOR_CACHE_DIR"
    assert "noexec" in places["triton"].options
    assert places["home"].path == "/home/alice"
    short = by_purpose(collect(tmp_path, environ | {"RAY_TMPDIR": "/tmp"}))
    assert (short["ray"].path, short["ray"].setting) == ("/tmp/ray", "RAY_TMPDIR")


def test_network_file_system_goes_through_the_child(tmp_path: Path) -> None:
    tree(tmp_path, FILES)
    (tmp_path / "nfs/home").mkdir(parents=True)
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home/alice").symlink_to("/nfs/home")
    places = by_purpose(collect(tmp_path, {"HOME": "/home/alice"}))
    home = places["home"]
    assert (home.network, home.fs_type, home.mount_point, home.exists) == (True, "nfs4", "/nfs", True)
    assert need(home.total_bytes) > 0
    assert places["triton"].network
    assert places["triton"].exists is False


def test_network_file_system_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProbeContext, "child", lambda *args, **more: [])
    places = by_purpose(collect(tree(tmp_path, FILES), {"HOME": "/nfs/home"}))
    missing = places["home"].free_bytes.missing
    assert missing is not None
    assert missing.kind is MissingKind.TIMEOUT
    assert need(places["tmp"].free_bytes) > 0


def test_links_in_a_circle(tmp_path: Path) -> None:
    tree(tmp_path, FILES)
    (tmp_path / "a").symlink_to("/b")
    (tmp_path / "b").symlink_to("/a")
    assert by_purpose(collect(tmp_path, {"HOME": "/a/deep"}))["home"].path == "/a/deep"


def test_cgroup_version_1_and_a_path_from_outside(tmp_path: Path) -> None:
    files = FILES | {
        "/proc/self/mounts": "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
        "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
        "/proc/self/cgroup": "5:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n0::/\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
        "/sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    group = need(collect(tree(tmp_path, files)).cgroup)
    assert (group.version, need(group.memory_limit_bytes), need(group.cpus)) == (1, 1 << 30, 1.5)
    assert need(group.oom_kills) == 2


def test_cgroup_version_1_without_a_limit(tmp_path: Path) -> None:
    files = FILES | {
        "/proc/self/mounts": "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n",
        "/proc/self/cgroup": "5:memory:/\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    missing = need(collect(tree(tmp_path, files)).cgroup).memory_limit_bytes.missing
    assert missing is not None
    assert missing.kind is MissingKind.ABSENT


@pytest.mark.parametrize(
    ("services", "kind"), [("files", MissingKind.ABSENT), ("files [NOTFOUND=return] sss", MissingKind.UNSUPPORTED)]
)
def test_user_without_a_name(tmp_path: Path, services: str, kind: MissingKind) -> None:
    files = FILES | {"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "/etc/nsswitch.conf": f"passwd: {services}\n"}
    nameless = need(collect(tree(tmp_path, files)).process)
    assert nameless.user_name_from.missing is not None
    assert nameless.user_name_from.missing.kind is kind
    assert need(need(collect(tmp_path, {"USER": "x"}).process).user_name_from) == "USER"


def test_devices_with_groups_and_hardware(tmp_path: Path) -> None:
    """F56, F72."""
    files = {f"/dev/{name}": "" for name in ("nvidia0", "nvidia1", "nvidiactl", "kfd", "dri/renderD128", "dri/card0")}
    files |= {
        "/dev/infiniband/uverbs0": "",
        "/sys/class/infiniband/mlx5_0/node_guid": "",
        "/proc/driver/nvidia/version": "",
    }
    device = "/sys/bus/pci/devices/0000:01:00.0"
    files |= {f"{device}/vendor": "0x10de\n", f"{device}/class": "0x030200\n", f"{device}/numa_node": "1\n"}
    audio = "/sys/bus/pci/devices/0000:01:00.1"
    files |= {f"{audio}/vendor": "0x10de\n", f"{audio}/class": "0x040300\n"}
    (tree(tmp_path, FILES, files) / "dev/nvidia1").chmod(0)
    devices = collect(tmp_path).devices
    assert [node.path for node in devices.nodes] == [
        "/dev/kfd", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/dri/renderD128", "/dev/infiniband/uverbs0",
    ]  # fmt: skip
    assert [(item.kind, item.numa_node) for item in devices.hardware] == [("nvidia", 1)]
    assert devices.infiniband == ("mlx5_0",)
    assert devices.nvidia_driver
    assert not devices.amd_driver
    if os.geteuid() != 0:
        assert [node.path for node in devices.nodes if not node.usable] == ["/dev/nvidia1"]


def test_toolchain_of_another_interpreter(tmp_path: Path) -> None:
    """F07."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gcc").write_text("#!/bin/sh\n")
    (tools / "gcc").chmod(0o755)
    files = {
        "/venv/pyvenv.cfg": "home = /usr/bin\nversion = 3.12.3\n",
        "/usr/include/python3.12/Python.h": "",
        "/etc/ld.so.cache": b"glibc-ld.so.cache1.1\x00\xff/usr/lib/x86_64-linux-gnu/libcuda.so.1\x00other\x00",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1": "",
        "/opt/stubs/libcuda.so": "",
        "/sbin/ldconfig": "",
    }
    root = tree(tmp_path / "root", FILES, files)
    environ = {"PATH": str(tools), "CC": "clang-18 -O2", "LD_LIBRARY_PATH": "/opt/stubs:/nfs/lib:relative"}
    found = collect(root, environ, ("/venv/bin/python",)).toolchain
    assert found.compilers == {"gcc": str(tools / "gcc")}
    assert (found.cc, found.cc_found) == ("clang-18 -O2", False)
    assert need(found.python_h) == "/usr/include/python3.12/Python.h"
    assert found.libcuda == ("/usr/lib/x86_64-linux-gnu/libcuda.so.1",)
    assert found.libcuda_stubs == ("/opt/stubs/libcuda.so",)
    assert found.ldconfig


def test_headers_behind_a_link(tmp_path: Path) -> None:
    """A module system or a distribution links `python` to where it really is."""
    root = tree(tmp_path / "root", FILES, {"/opt/py/bin/python3.11": "", "/opt/py/include/python3.11/Python.h": ""})
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "usr/local/bin/python").symlink_to("/opt/py/bin/python3.11")
    found = collect(root, {"PATH": "/bin"}, ("/usr/local/bin/python",)).toolchain
    assert need(found.python_h) == "/opt/py/include/python3.11/Python.h"
    shim = tree(tmp_path / "shim", FILES, {"/home/u/.pyenv/shims/python": "#!/bin/sh"})
    lost = collect(shim, {"PATH": "/bin"}, ("/home/u/.pyenv/shims/python",)).toolchain.python_h
    assert lost.missing is not None
    assert lost.missing.kind is MissingKind.UNSUPPORTED


def test_addresses_and_locale(facts: SystemFacts) -> None:
    assert facts.own_addresses == ("192.0.2.7",)
    assert facts.locale.lang == "zh_CN.GBK"


def test_clock_of_a_made_up_root(tmp_path: Path) -> None:
    assert collect(tmp_path).clock.value is None
    tree(tmp_path, {"/run/systemd/timesync/synchronized": ""})
    assert need(collect(tmp_path).clock).synchronized


def test_empty_machine(tmp_path: Path) -> None:
    facts = collect(tmp_path)
    for section in (facts.limits, facts.shm, facts.memory, facts.cgroup, facts.process, facts.cpu.online):
        assert section.missing is not None
        assert section.missing.kind is MissingKind.ABSENT
    assert facts.devices.nodes == ()


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\xfe\x00garbage", b"9" * 5000, b"-1\n", b"Max open files  a  b\n", b"0-99999999999999\n"]
)
def test_garbage_everywhere(tmp_path: Path, garbage: bytes) -> None:
    root = tree(tmp_path, dict.fromkeys(FILES, garbage), {"/dev/nvidia0": garbage})
    facts = collect(root, {"HOME": "\0", "TMPDIR": "relative", "LD_LIBRARY_PATH": "\0:/x\0y", "CC": " "})
    assert facts.cpu.allowed.value is None
    assert facts.memory.value is None


def test_files_that_are_directories(tmp_path: Path) -> None:
    """Reading gives EISDIR, as sysfs gives EINVAL: a reason, never an exception."""
    for path in FILES:
        (tmp_path / path.lstrip("/")).mkdir(parents=True)
    facts = collect(tmp_path)
    assert facts.limits.missing is not None
    assert facts.limits.missing.kind is MissingKind.ERROR


def test_this_machine() -> None:
    facts = system.collect(ProbeContext())
    assert need(facts.cpu.online) >= 1
    assert need(facts.memory).total_bytes > 0
    assert facts.clock.value is not None or facts.clock.missing is not None


def test_headers_of_an_interpreter_elsewhere_are_not_judged(tmp_path: Path) -> None:
    header = collect(tmp_path, python=("docker", "exec", "box", "python3")).toolchain.python_h
    assert header.missing is not None
    assert header.missing.kind is MissingKind.UNSUPPORTED
