"""Kernel, disks, containers, tool chain and environment: where the line between the verdicts runs."""

from __future__ import annotations

import pytest

from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.system import ClockFacts, Device, DeviceFacts, KernelFacts, LocaleFacts
from tests.checks.sys.build import (
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
from tests.checks.sys.cases import closed_gpu
from tests.checks.sys.test_cases import judge

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


def test_network_cache_without_gpus_is_noted() -> None:
    remote = places(triton=place("triton", "/nfs/triton", network=True, fs_type="lustre"))
    assert judge("SYS030", machine(places=remote, devices=nvidia(0))).status == "info"


def test_home_not_set() -> None:
    assert judge("SYS031", machine(process=process(home_set=False))).status == "warn"


def test_closed_nvidia_node_is_named() -> None:
    finding = judge("SYS033", machine(devices=closed_gpu("/dev/nvidia3")))
    assert finding.status == "fail"
    assert "/dev/nvidia3" in finding.message


def test_own_graphics_of_a_processor_are_no_gpu() -> None:
    """F72 concerns ROCm builds of torch only."""
    apu = DeviceFacts(nodes=(Device(path="/dev/kfd", usable=False, gid=109),), amd_driver=True)
    assert judge("SYS035", machine(devices=apu)).status == "skip"
    assert judge("SYS035", machine(devices=apu, python=missing(MissingKind.ERROR, "?"))).status == "warn"
    rocm = python(torch="2.11.0", hip="7.2.4")
    finding = judge("SYS035", machine(devices=apu, python=rocm))
    assert "no /dev/dri/renderD*" in finding.message


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
    odd = known(PROXY | {"no_proxy": "localhost,127.0.0.1,10.0.0.0/8,*.example.com,10.*", "NO_PROXY": "localhost"})
    finding = judge("SYS041", machine(environ=odd))
    assert len(finding.details) == 3
    assert "export no_proxy=localhost,127.0.0.1,.example.com\n" in finding.fixes[0].command


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
