"""Kernel, disks, containers, tool chain and environment: where the line between the verdicts runs."""

from __future__ import annotations

import msgspec
import pytest

from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.network import DefaultRoute, Interface, NetworkFacts
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.system import ClockFacts, Device, DeviceFacts, KernelFacts, LocaleFacts
from tests.checks.system.build import (
    GIB,
    MIB,
    cpu,
    in_container,
    machine,
    nvidia,
    place,
    places,
    process,
    python,
    toolchain,
)
from tests.checks.system.cases import closed_gpu
from tests.checks.system.test_cases import judge

PROXY = {"https_proxy": "http://proxy.example.com:3128"}


def test_clock_of_a_lone_machine_is_noted() -> None:
    free = known(ClockFacts(source="adjtimex(2)"))
    assert judge("SYS021", machine(clock=free, devices=nvidia(0))).status == "info"


@pytest.mark.parametrize(
    ("packages", "status"),
    [(("linux-image-6.8.0-45-generic",), "warn"), (("nvidia-driver-580",), "warn"), (("libc6",), "info"), ((), "info")],
)
def test_pending_reboot(packages: tuple[str, ...], status: str) -> None:
    kernel = KernelFacts(release="6.8.0", modules_present=known(True), reboot_required=known(packages))
    assert judge("SYS022", machine(kernel=kernel)).status == status
    assert judge("SYS022", machine(kernel=kernel, platform=in_container())).status == "skip"


def test_kernel_without_modules_is_no_problem() -> None:
    kernel = KernelFacts(release="6.8.0", modules_present=absent("no /lib/modules"))
    assert judge("SYS022", machine(kernel=kernel)).status == "pass"
    gone = KernelFacts(release="6.8.0", modules_present=known(False), other_releases=("6.8.1",))
    no_driver = nvidia(nodes=(), nvidia_driver=False)
    assert judge("SYS022", machine(kernel=gone, devices=no_driver)).status == "fail"


@pytest.mark.parametrize(("free", "status"), [(100 * MIB, "fail"), (9 * GIB, "warn"), (11 * GIB, "pass")])
def test_temporary_space(free: int, status: str) -> None:
    tight = places(tmp=place("tmp", "/tmp", free, 12 * GIB))
    assert judge("SYS025", machine(places=tight)).status == status


def test_ray_stops_at_95_percent_of_a_large_disk() -> None:
    large = places(ray=place("ray", "/data/ray", 490 * GIB, 10_000 * GIB))
    finding = judge("SYS025", machine(places=large))
    assert finding.status == "warn"
    assert "95.1%" in finding.message


def test_place_that_did_not_answer_is_unknown() -> None:
    silent = missing(MissingKind.TIMEOUT, "no answer")
    gone = {
        name: place(name, f"/nfs/{name}", free_bytes=silent, total_bytes=silent, writable=silent)
        for name in ("tmp", "ray", "triton", "inductor", "vllm", "home")
    }
    for check_id in ("SYS025", "SYS029", "SYS031"):
        assert judge(check_id, machine(places=tuple(gone.values()))).status == "unknown"


def test_socket_path_without_ray() -> None:
    deep = places(ray=place("ray", "/scratch/" + "x" * 60 + "/ray"))
    assert judge("SYS027", machine(places=deep, python=python(torch="2.11.0"))).status == "skip"
    assert judge("SYS027", machine(places=deep, python=missing(MissingKind.ERROR, "?"))).status == "fail"
    edge = places(ray=place("ray", "/" + "x" * 42))
    assert judge("SYS027", machine(places=edge)).status == "pass"


def test_noexec_cache_stops_a_gpu_run_only() -> None:
    mounted = places(triton=place("triton", "/scratch/triton", options=("rw", "noexec")))
    assert judge("SYS028", machine(places=mounted)).status == "fail"
    assert judge("SYS028", machine(places=mounted, devices=nvidia(0))).status == "warn"


def test_missing_tmpdir_is_named() -> None:
    lost = places(tmp=place("tmp", "/scratch/tmp", setting="TMPDIR", exists=False))
    finding = judge("SYS028", machine(places=lost))
    assert finding.status == "warn"
    assert "/scratch/tmp (from TMPDIR) does not exist" in finding.message
    assert finding.fixes[0].command == "mkdir -p /var/tmp/rl-1000\nexport TMPDIR=/var/tmp/rl-1000"
    assert all("TRITON_CACHE_DIR" not in fix.command for fix in finding.fixes), "the caches are well"


def test_network_cache_without_gpus_is_noted() -> None:
    remote = places(triton=place("triton", "/nfs/triton", network=True, fs_type="lustre"))
    assert judge("SYS030", machine(places=remote, devices=nvidia(0))).status == "info"


def test_home_not_set() -> None:
    assert judge("SYS031", machine(process=process(home_set=False))).status == "warn"


def test_closed_nvidia_node_is_named() -> None:
    finding = judge("SYS033", machine(devices=closed_gpu("/dev/nvidia-uvm")))
    assert finding.status == "fail"
    assert "/dev/nvidia-uvm" in finding.message


def test_gpus_of_other_jobs_are_noted() -> None:
    """Some sites give the nodes to the user of the job, and close the others."""
    finding = judge("SYS033", machine(devices=closed_gpu("/dev/nvidia3")))
    assert (finding.status, "7 of 8 GPUs may be opened" in finding.message) == ("info", True)
    all_closed = nvidia(nodes=tuple(Device(path=f"/dev/nvidia{n}", mode="600") for n in range(2)))
    assert judge("SYS033", machine(devices=all_closed)).status == "fail"


def test_file_system_of_zero_bytes_does_not_say() -> None:
    nothing = {name: place(name, f"/{name}", 0, 0, free_inodes=known(0)) for name in ("tmp", "ray")}
    assert judge("SYS025", machine(places=tuple(nothing.values()))).status == "unknown"
    unlimited = known(place("shm", "/dev/shm", 0, 0, fs_type="tmpfs"))
    assert judge("SYS001", machine(shm=unlimited)).status == "pass"
    assert judge("SYS001", machine(shm=known(place("shm", "/dev/shm", 0, 64 * MIB, fs_type="tmpfs")))).status == "fail"


def test_read_only_image_has_no_inodes_to_miss() -> None:
    image = place("home", "/root", 0, 10 * GIB, fs_type="squashfs", free_inodes=known(0), writable=known(False))
    assert judge("SYS026", machine(places=places(home=image))).status == "pass"


def test_closed_home_is_told_once() -> None:
    closed = {"free_inodes": known(9), "writable": known(False)}
    inside = place("triton", "/home/u/.triton/cache", exists=False, **closed)
    facts = machine(places=places(home=place("home", "/home/u", **closed), triton=inside))
    assert [judge(check_id, facts).status for check_id in ("SYS028", "SYS031")] == ["pass", "warn"]
    chosen = place("triton", "/home/u/.triton/cache", setting="TRITON_CACHE_DIR", **closed)
    assert judge("SYS028", machine(places=places(triton=chosen))).status == "warn"


def test_caches_are_put_into_a_directory_of_this_user() -> None:
    fix = judge("SYS030", machine(places=places(triton=place("triton", "/nfs/t", network=True, fs_type="nfs4")))).fixes[
        0
    ]
    assert "export TRITON_CACHE_DIR=/tmp/rl-1000/triton" in fix.command


def test_own_graphics_of_a_processor_are_no_gpu() -> None:
    """F72 concerns ROCm builds of torch only."""
    apu = DeviceFacts(nodes=(Device(path="/dev/kfd", usable=False, gid=109),), amd_driver=True)
    assert judge("SYS035", machine(devices=apu)).status == "skip"
    assert judge("SYS035", machine(devices=apu, python=python(ray="2.60.0"))).status == "skip"
    assert judge("SYS035", machine(devices=apu, python=missing(MissingKind.ERROR, "?"))).status == "warn"
    rocm = python(torch="2.11.0", hip="7.2.4")
    finding = judge("SYS035", machine(devices=apu, python=rocm))
    assert "no /dev/dri/renderD*" in finding.message


@pytest.mark.row("F72")
def test_group_of_the_node_is_in_the_fix() -> None:
    """F72: the group's number on the host."""
    nodes = tuple(Device(path=path, gid=993, mode="660") for path in ("/dev/kfd", "/dev/dri/renderD128"))
    facts = machine(devices=DeviceFacts(nodes=nodes, amd_driver=True), python=python(torch="2.11.0", hip="7.2.4"))
    assert "--group-add 993" in judge("SYS035", facts).fixes[0].command


@pytest.mark.parametrize(("torch", "status"), [("2.11.0", "fail"), ("2.13.0", "info"), ("", "info")])
def test_nameless_user_by_torch(torch: str, status: str) -> None:
    nameless = process(user_name_from=absent("not in /etc/passwd"))
    installed = python(torch=torch) if torch else python()
    assert judge("SYS036", machine(process=nameless, python=installed)).status == status
    unsure = process(user_name_from=missing(MissingKind.UNSUPPORTED, "sss was not asked"))
    assert judge("SYS036", machine(process=unsure)).status == "unknown"


def bare(**changes: object) -> Facts:
    return machine(toolchain=toolchain(compilers={}, python_h=absent("none")), **changes)


@pytest.mark.row("F07")
def test_tool_chain_matters_with_triton_and_gpus() -> None:
    """F07."""
    for check_id in ("SYS037", "SYS038"):
        assert judge(check_id, bare()).status == "fail"
        assert judge(check_id, bare(python=python(torch="2.15.0", triton="3.9.0"))).status == "warn"
        assert judge(check_id, bare(python=python())).status == "skip"
        assert judge(check_id, bare(python=missing(MissingKind.TIMEOUT, "?"))).status == "unknown"
    assert judge("SYS038", bare(devices=nvidia(0))).status == "skip"
    assert judge("SYS037", bare(devices=nvidia(0))).status == "info"


def test_cc_that_is_not_there() -> None:
    broken = toolchain(cc="/opt/gcc-13/bin/gcc", cc_found=False)
    finding = judge("SYS037", machine(toolchain=broken))
    assert finding.status == "fail"
    assert "/opt/gcc-13/bin/gcc" in finding.message


def test_stub_in_the_library_path() -> None:
    stub = toolchain(libcuda_stubs=("/opt/cuda/stubs/libcuda.so",))
    assert judge("SYS039", machine(toolchain=stub)).status == "warn"
    usual = toolchain(libcuda_stubs=("/usr/local/cuda/lib64/stubs/libcuda.so",))
    assert judge("SYS039", machine(toolchain=usual)).status == "pass"


@pytest.mark.row("F71")
def test_proxy_covers_the_head() -> None:
    """F71."""
    local = PROXY | {"no_proxy": "localhost,127.0.0.1", "RAY_ADDRESS": "ray://head.example.com:10001"}
    finding = judge("SYS040", machine(environ=known(local)))
    assert "head.example.com not in no_proxy" in finding.message
    assert "export no_proxy=localhost,127.0.0.1,head.example.com" in finding.fixes[0].command
    covered = local | {"no_proxy": "localhost,127.0.0.1,.example.com"}
    assert judge("SYS040", machine(environ=known(covered))).status == "pass"
    assert judge("SYS040", machine(environ=known(PROXY | {"NO_PROXY": "*"}))).status == "pass"
    assert judge("SYS040", machine()).status == "skip"


def test_odd_no_proxy_is_mended() -> None:
    """Both spellings keep what either had."""
    odd = known(PROXY | {"no_proxy": "localhost,127.0.0.1,10.0.0.0/8,*.example.com,10.*", "NO_PROXY": "wiki.local"})
    finding = judge("SYS041", machine(environ=odd))
    assert len(finding.details) == 3
    assert "export no_proxy=localhost,127.0.0.1,10.0.0.0/8,.example.com,wiki.local\n" in finding.fixes[0].command


def test_a_range_beside_the_addresses_is_noted() -> None:
    both = known(PROXY | {"no_proxy": "localhost,127.0.0.1,192.0.2.7,192.0.2.0/24"})
    assert judge("SYS041", machine(environ=both, own_addresses=("192.0.2.7",))).status == "info"
    assert judge("SYS041", machine(environ=both, own_addresses=("192.0.2.8",))).status == "warn"


def test_nobody_calls_the_bridge_of_docker() -> None:
    own = msgspec.structs.replace(
        machine(
            environ=known(PROXY | {"no_proxy": "localhost,127.0.0.1,192.0.2.7", "RAY_ADDRESS": "local"}),
            own_addresses=("172.17.0.1", "192.0.2.7"),
        ),
        network=known(
            NetworkFacts(
                interfaces=known((Interface(name="docker0", kind="bridge", ipv4="172.17.0.1"),)),
                default_routes=known((DefaultRoute(interface="eth0"),)),
            )
        ),
    )
    assert judge("SYS040", own).status == "pass"


def test_clock_with_a_small_error_is_disciplined() -> None:
    """chrony clears the kernel's flag only with rtcsync."""
    for error, status in ((1200, "pass"), (16_000_000, "warn"), (0, "warn")):
        free = ClockFacts(synchronized=False, max_error_us=error, source="adjtimex(2)")
        assert judge("SYS021", machine(clock=known(free))).status == status


def test_kernel_of_wsl_is_windows_business() -> None:
    headers_only = KernelFacts(release="5.15.167.4-microsoft-standard-WSL2", modules_present=known(False))
    wsl = known(PlatformFacts(wsl=True))
    assert judge("SYS022", machine(kernel=headers_only, platform=wsl)).status == "skip"


def test_container_without_a_filter_needs_no_right_for_numa() -> None:
    held = known(("sys_ptrace",))
    for seccomp, status in ((0, "pass"), (2, "info")):
        facts = machine(platform=in_container(), process=process(capabilities=held, seccomp=known(seccomp)))
        assert judge("SYS032", facts).status == status


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        (LocaleFacts(), "pass"),
        (LocaleFacts(lc_all="C"), "pass"),
        (LocaleFacts(lang="en_US.UTF-8"), "pass"),
        (LocaleFacts(lang="de_DE.utf8@euro"), "pass"),
        (LocaleFacts(lang="en_US.ISO-8859-1"), "warn"),
        (LocaleFacts(lang="en_US.UTF-8", lc_all="ja_JP.eucJP"), "warn"),
        (LocaleFacts(lang="en_US.ISO-8859-1", pythonutf8="1"), "pass"),
        (LocaleFacts(pythonutf8="0"), "warn"),
        (LocaleFacts(lang="C.UTF-8", pythonioencoding="ascii:strict"), "warn"),
    ],
)
def test_locale(settings: LocaleFacts, status: str) -> None:
    assert judge("SYS042", machine(locale=settings)).status == status


def test_umask_of_root_is_its_own_affair() -> None:
    assert judge("SYS034", machine(process=process(uid=0, umask=known(0o077)))).status == "pass"


def test_page_size_of_4_kib() -> None:
    assert judge("SYS023", machine(cpu=cpu(page_size_bytes=known(4096)))).status == "pass"
