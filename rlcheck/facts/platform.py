"""Which machine this is: operating system, kernel, architecture, container, cloud."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class PlatformFacts(Struct, frozen=True):
    """The machine and what it runs inside.

    `os_id` and `os_version` are those of os-release (ubuntu, 22.04). `libc` is glibc, musl or "".
    `container` is "" outside one, else docker, podman, apptainer, kubernetes, enroot, lxc or container;
    `container_evidence` is the file or variable that said so.
    `virtualization` is "" on bare metal or when it does not show, else kvm, vmware, hyperv, xen, … or vm when the
    hypervisor does not say which it is.
    `cloud` is aws, gcp, azure, oci, another provider's short name, or "". `sys_vendor` and `product_name` are the
    firmware's (DMI) words. `slurm_job` and `slurm_step` are IDs, "" outside a job or a step; `wsl` is Windows'
    subsystem for Linux.
    """

    os_name: str = ""
    os_id: str = ""
    os_version: str = ""
    kernel: str = ""
    machine: str = ""
    libc: str = ""
    libc_version: str = ""
    container: str = ""
    container_evidence: str = ""
    virtualization: str = ""
    cloud: str = ""
    sys_vendor: Fact[str] = Fact()
    product_name: Fact[str] = Fact()
    cpu_model: Fact[str] = Fact()
    slurm_job: str = ""
    slurm_step: str = ""
    wsl: bool = False
