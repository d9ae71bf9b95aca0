"""Machines on which the GPUs are well and something around them is not: limits, network, caches, environment."""

from __future__ import annotations

from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import NvLinks
from rlcheck.facts.hub import CacheContents, Directory, Leftovers, PathSetting, WriteTest
from rlcheck.facts.network import Gid, Interface, RdmaPort
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.system import Limit
from tests.machines.parts import (
    GIB,
    LO,
    MIB,
    UPLINK,
    card,
    changed,
    cpus,
    device_facts,
    ethernet,
    gpu_server,
    ib_port,
    nvidia,
    places,
    platform,
    python,
    recorded,
    shm,
)
from tests.machines.registry import machine

NEW = python("2.11.0+cu130")


@machine("l4-container-small-shm", "huggingface/text-generation-inference/issues/2838", "vllm-project/vllm/issues/789",
         "vllm-project/production-stack/pull/973")  # fmt: skip
def l4(name: str) -> Facts:
    """A pod with two L4, the default 64 MB of /dev/shm, 16 GiB of memory and four processors' worth of time."""
    environ = {"KUBERNETES_SERVICE_HOST": "198.51.100.1", "NVIDIA_VISIBLE_DEVICES": "all",
               "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}  # fmt: skip
    eth0 = Interface(name="eth0", index=3, up=True, operstate="up", kind="veth", mtu=1450, ipv4="198.51.100.17")
    return gpu_server(
        name, "l4", 2, "560.35.03", 12060, python("2.6.0+cu124"), environ,
        platform=platform(kernel="6.1.112", container="kubernetes", cloud="gcp", virtualization="kvm",
                          container_evidence="KUBERNETES_SERVICE_HOST"),
        nvidia__nodes__can_create=False,
        network__interfaces=(LO, eth0),
        network__default_routes=(changed(recorded("h200-host").network.value.default_routes.value[0],
                                         {"interface": "eth0", "gateway": "198.51.100.2"}),),
        network__hosts_addresses=("198.51.100.17",),
        network__gpudirect__kernel="6.1.112",
        system__shm=shm(64 * MIB, used=20 * MIB),
        system__places=places(77 * GIB, 296 * GIB, fs_type="overlay"),
        system__memory__total_bytes=53 * GIB,
        system__memory__available_bytes=49 * GIB,
        system__cgroup__path="/",
        system__cgroup__memory_limit_bytes=16 * GIB,
        system__cgroup__memory_limit_at="/sys/fs/cgroup/memory.max",
        system__cgroup__memory_used_bytes=1 * GIB,
        system__cgroup__cpus=4.0,
        system__cgroup__cpus_at="/sys/fs/cgroup",
        system__cpu=cpus(24, nodes=1),
        system__kernel__release="6.1.112",
        system__kernel__modules_present=absent("there is no /lib/modules"),
        system__process__seccomp=2,
        system__own_addresses=("198.51.100.17",),
    )  # fmt: skip


@machine("slurm-step-4-of-112-cpus", "ray-project/ray/issues/30012", "verl-project/verl/issues/523")
def slurm(name: str) -> Facts:
    """A Slurm step that got four of a job's 112 processors, since srun was not told --cpus-per-task."""
    environ = {"SLURM_JOB_ID": "243927", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1",
               "SLURM_JOB_CPUS_PER_NODE": "112", "SLURM_CPUS_ON_NODE": "112", "SLURM_CPUS_PER_TASK": "112",
               "SLURM_NTASKS": "1", "SLURM_JOB_GPUS": "0,1,2,3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}  # fmt: skip
    return gpu_server(
        name, "a100", 4, "580.95.05", 13000, NEW, environ,
        platform__slurm_job="243927",
        platform__slurm_step="0",
        system__cpu=cpus(112, allowed=(0, 1, 2, 3)),
        system__cgroup__path="/system.slice/slurmstepd.scope/job_243927/step_0/user/task_0",
    )  # fmt: skip


def ib_cards(*broken: RdmaPort) -> tuple:
    ports = [ib_port(987 + n) for n in range(8 - len(broken))] + list(broken)
    return tuple(card(f"mlx5_{n}", n, port) for n, port in enumerate(ports))


@machine("h100-ib-healthy", "NVIDIA/nccl/issues/1591", "vllm-project/vllm/issues/22372")
def h100(name: str) -> Facts:
    """One of four H100 nodes with eight InfiniBand ports, in a Slurm job, as it should be."""
    environ = {"SLURM_JOB_ID": "5001", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": "4", "SLURM_NNODES": "4",
               "SLURM_NTASKS": "4", "SLURM_CPUS_ON_NODE": "224", "SLURM_JOB_CPUS_PER_NODE": "224(x4)",
               "SLURM_CPUS_PER_TASK": "224", "MASTER_ADDR": "192.0.2.10", "MASTER_PORT": "29500",
               "NCCL_SOCKET_IFNAME": "=eno1"}  # fmt: skip
    cards = ib_cards()
    return gpu_server(
        name, "h100", 8, "580.95.05", 13000, NEW, environ,
        platform__slurm_job="5001",
        platform__slurm_step="0",
        network__rdma=cards,
        network__hosts_addresses=("192.0.2.10",),
        system__cpu=cpus(224),
        system__devices=device_facts(8, *(device.name for device in cards)),
        system__cgroup__path="/system.slice/slurmstepd.scope/job_5001/step_0/user/task_0",
    )  # fmt: skip


@machine("h100-ib-port-init", "NVIDIA/nccl/issues/1591", "openucx/ucx/issues/5970")
def h100_init(name: str) -> Facts:
    """The same with one port that no subnet manager has brought up, and locked memory limited to 64 KiB."""
    cards = ib_cards(ib_port(0, state="INIT", sm_lid=0))
    limit = Limit(soft=65536, hard=65536)
    return changed(h100(name), {"network.rdma": cards, "system.limits.memlock": limit})


@machine("roce-wrong-gid-index", "NVIDIA/nccl/issues/769", "NVIDIA/nccl/issues/1131")
def roce(name: str) -> Facts:
    """Two A100 nodes over RoCE with NCCL_IB_GID_INDEX=1, which is a link-local address."""
    link, v4 = "fe80:0000:0000:0000:0ac0:ebff:feda:1c{n:02x}", "0000:0000:0000:0000:0000:ffff:cb00:71{n:02x}"
    netdevs = [f"ens{n}f0np0" for n in range(4)]
    cards = []
    for n, netdev in enumerate(netdevs):
        kinds = ("IB/RoCE v1", "RoCE v2")
        gids = tuple(Gid(index=i, gid=(link if i < 2 else v4).format(n=n + 6), type=kinds[i % 2], netdev=netdev)
                     for i in range(4))  # fmt: skip
        port = RdmaPort(number=1, state="ACTIVE", phys_state="LinkUp", link_layer="Ethernet", rate_gbps=200.0,
                        width="4X HDR", gids=gids, gids_read_to=20)  # fmt: skip
        cards.append(card(f"mlx5_{n}", n, port, model="MT4123 MT_0000000359", netdevs=(netdev,)))
    interfaces = [ethernet(netdev, 10 + n, f"203.0.113.{n + 6}", mtu=9000, speed_mbps=200_000)
                  for n, netdev in enumerate(netdevs)]  # fmt: skip
    environ = {"NCCL_IB_GID_INDEX": "1", "NCCL_SOCKET_IFNAME": "=eno1", "WORLD_SIZE": "16", "RANK": "0",
               "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "192.0.2.10", "MASTER_PORT": "29500"}  # fmt: skip
    return gpu_server(
        name, "a100", 8, "580.95.05", 13000, NEW, environ,
        network__rdma=tuple(cards),
        network__interfaces=(LO, UPLINK, *interfaces),
        network__hosts_addresses=("192.0.2.10",),
        system__devices=device_facts(8, *(device.name for device in cards)),
    )  # fmt: skip


@machine("shared-hf-cache", "huggingface/huggingface_hub/issues/2580", "huggingface/huggingface_hub/pull/3714",
         "huggingface/transformers/pull/37395")  # fmt: skip
def shared_cache(name: str) -> Facts:
    """A model cache of another user with his lock files and 1 GiB of room; transformers 5 and TRANSFORMERS_CACHE."""
    path = "/data/hf/hub"
    cache = Directory(path=path, exists=True, nearest=path, real_path=path, owner_uid=1007, mode=0o775, writable=True,
                      total_bytes=2000 * GIB, free_bytes=1 * GIB, free_inodes=9_000_000)  # fmt: skip
    locks = Leftovers(num=214, oldest_s=5_400_000.0, first=(".locks/models--org--model/6e2501.lock",))
    contents = CacheContents(num_models=31, models=("org/model",), locks=locks, foreign_locks=locks,
                             foreign_lock_uids=(1007,), num_entries=5210)  # fmt: skip
    settings = (PathSetting(name="HF_HUB_CACHE", value=path, resolved=path),
                PathSetting(name="TRANSFORMERS_CACHE", value="/data/hf/transformers",
                            resolved="/data/hf/transformers"))  # fmt: skip
    return gpu_server(
        name, "a100", 8, "580.95.05", 13000, NEW,
        {"HF_HUB_CACHE": path, "TRANSFORMERS_CACHE": "/data/hf/transformers"},
        hub__cache_dir=path,
        hub__cache_source="HF_HUB_CACHE",
        hub__home_decides=False,
        hub__settings=settings,
        hub__cache=cache,
        hub__contents=contents,
        hub__write_test=WriteTest(directory=path),
        hub__fs_point="/data",
        system__cpu=cpus(256),
    )  # fmt: skip


@machine("conda-pip-mixture", "vllm-project/vllm/issues/16959", "facebookresearch/pytorch3d/issues/1246")
def conda(name: str) -> Facts:
    """An old workstation with three A10: CentOS 7, torch from conda and again from pip, leftovers in ~/.local."""
    kernel = "3.10.0-1160.95.1.el7.x86_64"
    site = "~/miniconda3/envs/vllm/lib/python3.10/site-packages"
    environment = python("2.6.0+cu124", version="3.10.16", libc="glibc 2.17")
    twice = {"pytorch": "2.4.0", "numpy": "2.0.1", "libstdcxx-ng": "11.2.0", "python": "3.10.16"}
    user_site = "~/.local/lib/python3.10/site-packages"
    dists = tuple(changed(d, {"location": user_site if d.name == "transformers" else site,
                              "installer": "conda" if d.name == "numpy" else "pip"})
                  for d in environment.distributions)  # fmt: skip
    environment = changed(environment, {
        "executable": "~/miniconda3/envs/vllm/bin/python", "prefix": "~/miniconda3/envs/vllm",
        "base_prefix": "~/miniconda3/envs/vllm", "kind": "conda", "sys_path": (user_site, site), "distributions": dists,
        "user_site": user_site, "user_site_enabled": True, "torch.location": f"{site}/torch", "conda_packages": twice,
    })  # fmt: skip
    environ = {
        "CONDA_PREFIX": "~/miniconda3/envs/vllm",
        "CONDA_DEFAULT_ENV": "vllm",
        "PYTHONPATH": "~/tools/lib/python3.8/site-packages",
    }
    return gpu_server(
        name, "a10", 3, "535.129.03", 12020, environment, environ,
        platform=PlatformFacts(os_name="CentOS Linux 7 (Core)", os_id="centos", os_version="7", kernel=kernel,
                               machine="x86_64", libc="glibc", libc_version="2.17",
                               sys_vendor=known("Dell Inc."), cpu_model=known("x86-64 processor")),
        nvidia=nvidia("a10", 3, "535.129.03", 12020, "proprietary", each={"persistence": False, "nvlinks": NvLinks()}),
        network__gpudirect=absent("no NVIDIA GPU with a loaded driver on this machine"),
        system__limits__nofile=Limit(soft=1024, hard=4096),
        system__limits__nproc=Limit(soft=4096, hard=514840),
        system__cgroup__version=1,
        system__memory__total_bytes=125 * GIB,
        system__memory__available_bytes=110 * GIB,
        system__memory__max_map_count=65530,
        system__shm=shm(62 * GIB),
        system__cpu=cpus(64, thp=known("always")),
        system__kernel__release=kernel,
        system__kernel__ptrace_scope=absent("/proc/sys/kernel/yama/ptrace_scope: No such file or directory"),
    )  # fmt: skip
