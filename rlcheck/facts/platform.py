"""Which machine this is: operating system, kernel, architecture, container, cloud."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class PlatformFacts(Struct, frozen=True):
    """The machine and what it runs inside.

    `container` is "" outside one, else docker, podman, apptainer, kubernetes, enroot, lxc or container.
    `virtualization` is "" on bare metal or when it does not show, else kvm, vmware, … (hypervisor's name in lower case).
    `cloud` is aws, gcp, azure, oci or "".
    """

    os_name: str = ""
    kernel: str = ""
    machine: str = ""
    libc: str = ""
    libc_version: str = ""
    container: str = ""
    virtualization: str = ""
    cloud: str = ""
    slurm_job: str = ""
    kernel_cmdline: Fact[str] = Fact()
