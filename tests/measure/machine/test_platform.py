from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.facts.base import need
from rlcheck.facts.platform import PlatformFacts
from rlcheck.measure.machine import platform
from rlcheck.measure.machine.context import ProbeContext
from tests.measure.machine.machines import tree

X86 = "processor : 0\nmodel name\t: Example CPU\nflags\t\t: fpu sse"
VENDOR, PRODUCT, TAG = (f"/sys/class/dmi/id/{name}" for name in ("sys_vendor", "product_name", "chassis_asset_tag"))
DISK = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"


def collect(root: Path, **environ: str) -> PlatformFacts:
    return platform.collect(ProbeContext(root=root, environ=environ))


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({}, {}, ""),
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/.dockerenv": "", "/proc/self/mountinfo": "1 2 0:5 / / rw - overlay overlay rw\n"}, {}, "docker"),
        (
            {"/.dockerenv": "", "/proc/self/mountinfo": "1 2 8:1 /var/lib/docker/vfs/x / rw - ext4 /dev/sda1 rw\n"},
            {},
            "docker",
        ),
        ({"/.dockerenv": "", "/proc/self/mountinfo": DISK}, {}, ""),
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({"/.singularity.d/env": "", "/.dockerenv": ""}, {}, "apptainer"),
        ({"/.dockerenv": ""}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "192.0.2.1"}, "kubernetes"),
        (
            {"/.dockerenv": "", "/proc/self/mounts": "overlay / overlay rw 0 0\n/dev/sda1 /.lock ext4 ro 0 0\n"},
            {},
            "enroot",
        ),
        ({"/run/systemd/container": "lxc\n"}, {}, "lxc"),
        ({"/run/systemd/container": "new-thing\n"}, {}, "container"),
        ({"/run/systemd/container": "docker\n"}, {}, "docker"),
        ({"/run/systemd/container": "docker\n", "/proc/self/mountinfo": DISK}, {"container": "docker"}, ""),
        ({}, {"container": "systemd-nspawn"}, "container"),
        ({"/proc/self/cgroup": "0::/kubepods.slice/pod1\n"}, {}, "kubernetes"),
        ({"/proc/1/cgroup": "5:memory:/docker/0123\n"}, {}, "docker"),
    ],
)
def test_container_kinds(tmp_path: Path, files: dict[str, str], environ: dict[str, str], kind: str) -> None:
    """F56: told apart, also when one starts the image of another."""
    facts = collect(tree(tmp_path, files), **environ)
    assert facts.container == kind
    assert bool(facts.container_evidence) == bool(kind)


@pytest.mark.parametrize(
    ("flags", "vendor", "product", "tag", "virtualization", "cloud"),
    [
        ("", "Dell Inc.", "PowerEdge XE9680", "", "", ""),
        (" hypervisor", "QEMU", "Standard PC", "", "kvm", ""),
        (" hypervisor", "", "", "", "vm", ""),
        (" hypervisor", "Amazon EC2", "p5.48xlarge", "", "kvm", "aws"),
        ("", "Amazon EC2", "c5.metal", "", "", "aws"),
        (" hypervisor", "Google", "Google Compute Engine", "", "kvm", "gcp"),
        (
            " hypervisor",
            "Microsoft Corporation",
            "Virtual Machine",
            "7783-7084-3265-9085-8269-3286-77",
            "hyperv",
            "azure",
        ),
        (" hypervisor", "Microsoft Corporation", "Virtual Machine", "", "hyperv", ""),
        ("", "Oracle Corporation", "ORACLE SERVER", "OracleCloud.com", "", "oci"),
        (" hypervisor", "VMware, Inc.", "VMware7,1", "", "vmware", ""),
    ],
)
def test_virtualization_and_cloud(
    tmp_path: Path, flags: str, vendor: str, product: str, tag: str, virtualization: str, cloud: str
) -> None:
    tree(tmp_path, {"/proc/cpuinfo": X86 + flags + "\n", VENDOR: vendor, PRODUCT: product, TAG: tag})
    facts = collect(tmp_path)
    assert (facts.virtualization, facts.cloud) == (virtualization, cloud)
    assert need(facts.cpu_model) == "Example CPU"


def test_aarch64_has_no_flag(tmp_path: Path) -> None:
    tree(tmp_path, {"/proc/cpuinfo": "processor: 0\n", VENDOR: "QEMU\n"})
    assert collect(tmp_path).virtualization == "kvm"
    tree(tmp_path, {VENDOR: "Amazon EC2\n", PRODUCT: "m7g.metal\n"})
    assert collect(tmp_path).virtualization == ""
    tree(tmp_path, {VENDOR: "", PRODUCT: "", "/proc/device-tree/hypervisor/compatible": "linux,kvm"})
    assert collect(tmp_path).virtualization == "kvm"


def test_names(tmp_path: Path) -> None:
    files = {
        "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n# note\n',
        "/proc/sys/kernel/osrelease": "5.15.0-microsoft-standard-WSL2\n",
        "/proc/sys/kernel/arch": "aarch64\n",
        "/proc/cmdline": "iommu=pt\n",
        "/lib/ld-musl-aarch64.so.1": "",
    }
    facts = collect(tree(tmp_path, files), SLURM_JOB_ID="77", SLURM_STEP_ID="0")
    assert (facts.os_name, facts.os_id, facts.os_version) == ("Ubuntu 24.04 LTS", "ubuntu", "24.04")
    assert (facts.machine, facts.libc, facts.wsl) == ("aarch64", "musl", True)
    assert (facts.slurm_job, facts.slurm_step) == ("77", "0")


@pytest.mark.parametrize("garbage", [b"", b"\xff\x00\xfe", b"=" * 9000, b"\n" * 9000])
def test_garbage(tmp_path: Path, garbage: bytes) -> None:
    paths = ("/etc/os-release", "/proc/cpuinfo", VENDOR, PRODUCT, TAG, "/proc/self/mountinfo", "/proc/self/cgroup")
    facts = collect(tree(tmp_path, dict.fromkeys(paths, garbage)))
    assert (facts.container, facts.cloud) == ("", "")
    assert facts.os_name


def test_empty_machine(tmp_path: Path) -> None:
    facts = collect(tmp_path)
    assert facts.kernel
    assert facts.machine
    assert facts.container == ""
