"""Which machine this is. Only files and the environment are asked; no command is started."""

from __future__ import annotations

import os
import re

from rlcheck.facts.base import Fact, MissingKind, missing
from rlcheck.facts.platform import PlatformFacts
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.kernel_text import fields, read_word

# In this order: Kubernetes runs its pods through runtimes that leave their own marks too, and images built from a
# Docker image keep /.dockerenv when another runtime starts them.
_CONTAINER_VARIABLES = (
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "apptainer"),
)
_CONTAINER_FILES = (
    ("/var/run/secrets/kubernetes.io", "kubernetes"),
    ("/.singularity.d", "apptainer"),
    ("/run/.containerenv", "podman"),
    ("/.dockerenv", "docker"),
    ("/dev/lxd/sock", "lxc"),
)
_LEFT_IN_IMAGES = ("docker", "podman")
_CONTAINER_NAMES = {"docker": "docker", "podman": "podman", "oci": "container", "lxc": "lxc", "lxc-libvirt": "lxc",
                    "systemd-nspawn": "container", "kubernetes": "kubernetes", "apptainer": "apptainer"}  # fmt: skip
_CGROUP_MARKS = (("kubepods", "kubernetes"), ("/docker", "docker"), ("libpod-", "podman"), ("/lxc", "lxc"))

# Firmware words (vendor, then product) to hypervisor and cloud; the first that matches counts.
_FIRMWARE = (
    ("amazon ec2", "kvm", "aws"),
    ("google", "kvm", "gcp"),
    ("oraclecloud", "kvm", "oci"),
    ("alibaba cloud", "kvm", "alibaba"),
    ("tencent cloud", "kvm", "tencent"),
    ("digitalocean", "kvm", "digitalocean"),
    ("hetzner", "kvm", "hetzner"),
    ("nebius", "kvm", "nebius"),
    ("openstack", "kvm", ""),
    ("kvm", "kvm", ""),
    ("qemu", "kvm", ""),
    ("vmware", "vmware", ""),
    ("virtualbox", "virtualbox", ""),
    ("innotek", "virtualbox", ""),
    ("xen", "xen", ""),
    ("virtual machine", "hyperv", ""),
    ("parallels", "parallels", ""),
    ("bochs", "kvm", ""),
)
# Azure's machines and any other Hyper-V guest carry the same words; this chassis tag is Azure's alone.
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
_OCI_TAG = "OracleCloud.com"


def collect(context: ProbeContext) -> PlatformFacts:
    """What the machine is."""
    release = _os_release(context)
    cpuinfo = context.read_text("/proc/cpuinfo", 8192).value or ""
    vendor = read_word(context, "/sys/class/dmi/id/sys_vendor")
    product = read_word(context, "/sys/class/dmi/id/product_name")
    kernel = read_word(context, "/proc/sys/kernel/osrelease").value or os.uname().release
    virtualization, cloud = _virtualization(context, cpuinfo, f"{vendor.value or ''} {product.value or ''}")
    container, evidence = container_kind(context)
    libc, libc_version = _libc(context)
    return PlatformFacts(
        os_name=release.get("PRETTY_NAME", "") or release.get("NAME", "") or os.uname().sysname,
        os_id=release.get("ID", ""),
        os_version=release.get("VERSION_ID", ""),
        kernel=kernel,
        machine=read_word(context, "/proc/sys/kernel/arch").value or os.uname().machine,
        libc=libc,
        libc_version=libc_version,
        container=container,
        container_evidence=evidence,
        virtualization=virtualization,
        cloud=cloud,
        sys_vendor=vendor,
        product_name=product,
        cpu_model=_cpu_model(cpuinfo),
        slurm_job=context.environ.get("SLURM_JOB_ID", ""),
        slurm_step=context.environ.get("SLURM_STEP_ID", ""),
        wsl="microsoft" in kernel.lower(),
    )


def container_kind(context: ProbeContext) -> tuple[str, str]:
    """The kind of container around this process, and what gave it away; two empty strings outside one."""
    for variable, kind in _CONTAINER_VARIABLES:
        if context.environ.get(variable):
            return kind, variable
    # enroot (and pyxis, which uses it) mounts its lock file into every container, and nothing else there.
    if " /.lock " in (context.read_text("/proc/self/mounts").value or ""):
        return "enroot", "/.lock"
    booted = _booted_from_disk(context)
    for path, kind in _CONTAINER_FILES:
        if context.exists(path) and not (booted and kind in _LEFT_IN_IMAGES):
            return kind, path
    named = read_word(context, "/run/systemd/container").value or context.environ.get("container", "")
    kind = _CONTAINER_NAMES.get(named, "container")
    if named and not (booted and kind in _LEFT_IN_IMAGES):
        return kind, "container=" + named[:40]
    for path in ("/proc/self/cgroup", "/proc/1/cgroup"):
        groups = context.read_text(path, 65536).value or ""
        for mark, kind in _CGROUP_MARKS:
            if mark in groups:
                return kind, path
    return "", ""


def _booted_from_disk(context: ProbeContext) -> bool:
    """Whether `/` is the top of a disk: a virtual machine made from a container image keeps the image's marks."""
    for line in (context.read_text("/proc/self/mountinfo").value or "").splitlines():
        before, _, after = line.partition(" - ")
        where, what = before.split(" "), after.split(" ")
        if len(where) >= 5 and where[4] == "/" and len(what) >= 2:
            return where[3] == "/" and re.match(r"/dev/(sd|vd|xvd|nvme|hd|root|disk)", what[1]) is not None
    return False


def _os_release(context: ProbeContext) -> dict[str, str]:
    text = context.read_text("/etc/os-release", 65536)
    if text.value is None:
        text = context.read_text("/usr/lib/os-release", 65536)
    pairs = (line.partition("=") for line in (text.value or "").splitlines())
    return {name.strip(): value.strip().strip("\"'") for name, equals, value in pairs if equals}


def _virtualization(context: ProbeContext, cpuinfo: str, firmware: str) -> tuple[str, str]:
    """Hypervisor and cloud. A cloud's bare-metal machine has the firmware words of its virtual ones."""
    hypervisor, cloud = _from_firmware(firmware.lower())
    tag = read_word(context, "/sys/class/dmi/id/chassis_asset_tag").value or ""
    cloud = {_AZURE_TAG: "azure", _OCI_TAG: "oci"}.get(tag, cloud)
    flags = re.search(r"^flags\s*:(.*)", cpuinfo, re.M)
    if flags is not None and "hypervisor" not in flags[1].split():
        return "", cloud
    hypervisor = hypervisor or read_word(context, "/sys/hypervisor/type").value or ""
    if flags is not None:
        return hypervisor or "vm", cloud
    # Other architectures have no such flag: the firmware, or the device tree, is all there is.
    tree = context.read_text("/proc/device-tree/hypervisor/compatible", 256).value or ""
    hypervisor = hypervisor or ("kvm" if "kvm" in tree else "xen" if "xen" in tree else "")
    return "" if "metal" in firmware.lower() else hypervisor, cloud


def _from_firmware(firmware: str) -> tuple[str, str]:
    for words, hypervisor, cloud in _FIRMWARE:
        if words in firmware:
            return hypervisor, cloud
    return "", ""


def _cpu_model(cpuinfo: str) -> Fact[str]:
    model = fields(cpuinfo).get("model name", "")
    return Fact(value=model) if model else missing(MissingKind.UNSUPPORTED, "/proc/cpuinfo names no model")


def _libc(context: ProbeContext) -> tuple[str, str]:
    if any(name.startswith("ld-musl-") for name in context.list_dir("/lib").value or ()):
        return "musl", ""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return "", ""
    return name, version
