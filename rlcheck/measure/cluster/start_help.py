"""`rlcheck ray --start-help`: the `ray start` lines for this network, each with the reason for it."""

from __future__ import annotations

import ipaddress
import shlex
import textwrap

import msgspec
from packaging.version import Version

from rlcheck.facts.base import value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.installed import version_of
from rlcheck.facts.interfaces import VIRTUAL_KINDS, usable
from rlcheck.facts.network import Interface
from rlcheck.facts.ray import WORKER_PORTS, is_reserved
from rlcheck.facts.resources import usable_cpus, whole
from rlcheck.text import GIB, gib

TOKENS_SINCE = Version("2.52.0")
_LITTLE_ROOM_BYTES = 10 * GIB
_MIN_WORKER_PORTS = 1000
_TEMP_DIR_LIMIT = 40
_BRIDGES = ("docker", "br-", "virbr", "cni", "flannel", "cali", "veth", "podman", "lxc")


_UNKNOWN_HEAD = "ADDRESS_OF_THE_HEAD"
_WIDTH = 80


class Plan(msgspec.Struct, frozen=True):
    """What the lines are made of. `head` is a shell word; `flags` hold for head and workers alike, with reasons."""

    head: str
    port: int
    interface: Interface | None
    reason: str
    flags: tuple[tuple[str, str], ...]
    several: bool
    is_head_here: bool
    is_name: bool
    in_slurm: bool


def start_help(facts: Facts, head_ip: str, port: int) -> str:
    """The commands that start a head and its workers, as a commented shell script of which one copies lines.

    Args:
        facts: of this machine: platform, environ, python, ray, network and system are looked at.
        head_ip: the head's address or name; "" takes this machine for the head.
        port: of the GCS.
    """
    plan = _plan(facts, head_ip, port)
    steps = [_address(plan), _interfaces(plan), _token(facts, plan)]
    steps += [_slurm_head(plan), _slurm_workers(plan)] if plan.in_slurm else [_head(plan), _workers(plan)]
    steps += [_after(plan)]
    lines = _intro(facts)
    for number, (title, *rest) in enumerate(filter(None, steps), 1):
        lines += ["", *_say(f"{number}. {title}"), *rest]
    return "\n".join(lines) + "\n"


def best_interface(facts: Facts, head_ip: str = "") -> tuple[Interface | None, str]:
    """The interface by which other machines should know this one, and why it is that.

    The one that has the head's address, else one of the head's network, else that of the default route, else the
    fastest. Loopback, bridges of containers and tunnels are never taken unless they have the head's address.
    """
    network = facts.network.value
    interfaces = value_or(network.interfaces, ()) if network is not None else ()
    for interface in interfaces:
        if head_ip and head_ip in (interface.ipv4, *interface.ipv6):
            return interface, "it has the head's address"
    candidates = [one for one in interfaces if usable(one) and one.ipv4 and not _is_virtual(one)]
    near = [one for one in candidates if _same_network(one.ipv4, head_ip)]
    if near:
        return max(near, key=lambda one: one.speed_mbps), "it is on the head's network"
    routes = value_or(network.default_routes, ()) if network is not None else ()
    for route in sorted((route for route in routes if route.family == 4), key=lambda route: route.metric):
        for one in candidates:
            if one.name == route.interface:
                return one, "the default route goes over it"
    if candidates:
        return max(candidates, key=lambda one: one.speed_mbps), "it is the fastest with an address"
    return None, ""


def _is_virtual(interface: Interface) -> bool:
    if interface.kind == "veth" and interface.name.startswith("eth"):
        return False  # the one side of a container's pair, which is that container's network
    return interface.kind == "loopback" or interface.kind in VIRTUAL_KINDS - {"veth"} or (
        interface.name.startswith(_BRIDGES)
    )  # fmt: skip


def _same_network(mine: str, head_ip: str) -> bool:
    """Whether two IPv4 addresses are likely neighbours: facts hold no netmask, so the first three numbers decide."""
    return bool(head_ip) and mine.count(".") == 3 and mine.rpartition(".")[0] == head_ip.rpartition(".")[0]


def _plan(facts: Facts, head_ip: str, port: int) -> Plan:
    interface, reason = best_interface(facts, head_ip)
    network, environ = facts.network.value, value_or(facts.environ, {})
    interfaces = value_or(network.interfaces, ()) if network is not None else ()
    address = head_ip or (interface.ipv4 if interface is not None else "")
    others = [one for one in interfaces if one.kind != "loopback" and one.ipv4]
    return Plan(
        head=shlex.quote(address) if address else _UNKNOWN_HEAD,
        port=port,
        interface=interface,
        reason=reason,
        flags=tuple(flag for flag in (_cpus(facts), _gpus(facts), _ports(facts), _temp_dir(facts)) if flag),
        several=len(others) > 1,
        is_head_here=not head_ip or any(head_ip in (one.ipv4, *one.ipv6) for one in interfaces),
        is_name=bool(address) and not _is_address(address),
        in_slurm="SLURM_JOB_ID" in environ,
    )


def _cpus(facts: Facts) -> tuple[str, str] | None:
    if facts.system.value is None:
        return None
    online, cpus = facts.system.value.cpu.online.value, usable_cpus(facts)
    if online is None or cpus is None or whole(cpus) >= online:
        return None
    return f"--num-cpus={whole(cpus)}", f"this process may use {cpus:g} of {online} processors, and Ray would count all"


def _gpus(facts: Facts) -> tuple[str, str] | None:
    """The number of NVIDIA GPUs that may be used; AMD's are left to Ray, which sees integrated ones apart."""
    visible = value_or(facts.environ, {}).get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        number = len({part.strip() for part in visible.split(",")} - {"", "-1", "NoDevFiles"})
        return f"--num-gpus={number}", f"CUDA_VISIBLE_DEVICES={_comment(visible)}"
    nvidia, system = facts.nvidia.value, facts.system.value
    if nvidia is not None and nvidia.devices.value is not None:
        number = len(nvidia.devices.value)
    else:
        number = sum(one.kind == "nvidia" for one in system.devices.hardware) if system is not None else 0
    return (f"--num-gpus={number}", "the GPUs of this machine; leave it out and Ray counts them") if number else None


def _ports(facts: Facts) -> tuple[str, str] | None:
    """Other worker ports where the kernel may give away Ray's own."""
    section = facts.ray.value
    span = section.local_port_range.value if section is not None else None
    if section is None or span is None or is_reserved(section.reserved_ports):
        return None
    low, high = span
    if low > WORKER_PORTS[1] or high < WORKER_PORTS[0]:
        return None
    first, last = WORKER_PORTS[0], low - 1
    if last - first < _MIN_WORKER_PORTS:
        first, last = high + 1, min(65535, high + 10000)
    why = f"outgoing connections may use {low} to {high}, which overlaps the workers' 10002 to 19999"
    if last - first < _MIN_WORKER_PORTS:
        return "", f"{why}; as root: sysctl -w net.ipv4.ip_local_reserved_ports=10002-19999"
    return f"--min-worker-port={first} --max-worker-port={last}", why


def _temp_dir(facts: Facts) -> tuple[str, str] | None:
    """Another place for sessions where the usual one is short of room."""
    places = facts.system.value.places if facts.system.value is not None else ()
    usual = next((one for purpose in ("ray", "tmp") for one in places if one.purpose == purpose), None)
    if usual is None or usual.free_bytes.value is None or usual.free_bytes.value >= _LITTLE_ROOM_BYTES:
        return None
    roomy = [
        one for one in places
        if one.writable.value and not one.network and (one.free_bytes.value or 0) >= 2 * _LITTLE_ROOM_BYTES
        and one.purpose != "shm" and one.fs_type != "tmpfs" and len(one.path) <= _TEMP_DIR_LIMIT
        and one.path.startswith("/")
    ]  # fmt: skip
    short = f"{usual.path} has {gib(usual.free_bytes.value)} left"
    if not roomy:
        return "", f"{_comment(short)}: make room, or give --temp-dir=DIRECTORY, short and on a local disk"
    best = max(roomy, key=lambda one: one.free_bytes.value or 0)
    return f"--temp-dir={shlex.quote(best.path.rstrip('/') + '/ray')}", _comment(short)


def _comment(text: str) -> str:
    """`text` as a part of one line of comment."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))


def _say(text: str, below: str = "#    ") -> list[str]:
    """Lines of comment, all but the first beginning with `below`."""
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent=below, break_on_hyphens=False)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _intro(facts: Facts) -> list[str]:
    version = version_of(facts, "ray")
    ray = f"Ray {version}" if version is not None else "no Ray in the examined Python"
    return [
        *_say(f"How to start Ray here, worked out on {_comment(facts.node or 'this machine')} ({ray})."),
        *_say("Copy the lines to the machines that they are for. Every node needs the same Ray and the same Python, to"
              " the patch version. What follows from this machine's processors, GPUs and disks fits nodes like it.",
              "# "),
    ]  # fmt: skip


def _address(plan: Plan) -> list[str]:
    lines = ["On every node: the head's address, and this node's own address towards it."]
    if plan.interface is not None:
        likely = "is" if plan.is_head_here else "is likely to be"
        lines += _say(f"   On this machine that {likely} {plan.interface.name} ({plan.interface.ipv4}): {plan.reason}.")
    if plan.head == _UNKNOWN_HEAD:
        lines += _say("   No interface of this machine is fit for it: fill in the address.")
    if plan.is_name:
        lines.append(f"HEAD=$(getent ahostsv4 {plan.head} | awk 'NR == 1 {{ print $1 }}')")
    else:
        lines.append(f"HEAD={plan.head}")
    return [*lines, f"NODE_IP=$({_own_address(plan, 'HEAD')})"]


def _own_address(plan: Plan, variable: str) -> str:
    """A pipeline that prints the address that a node has on its way to the one in `variable`."""
    family = "-6" if ":" in plan.head else "-4"
    return f'ip {family} -o route get "${variable}" | sed "s/.* src \\([^ ]*\\).*/\\1/"'


def _interfaces(plan: Plan) -> list[str]:
    if not plan.several:
        return []
    return [
        "On every node, before `ray start`, since workers inherit it: there are several interfaces, and NCCL and Gloo"
        " must take the one that leads to the other nodes. Its name may differ from node to node.",
        "IFACE=$(ip -o address show |",
        '  awk -v ip="$NODE_IP" \'{ split($4, a, "/"); if (a[1] == ip) { print $2; exit } }\')',
        'export NCCL_SOCKET_IFNAME="=$IFACE" GLOO_SOCKET_IFNAME="$IFACE"',
    ]


def _token(facts: Facts, plan: Plan) -> list[str]:
    version = version_of(facts, "ray")
    if version is not None and version < TOKENS_SINCE:
        return [
            f"Ray {version} knows no token: whoever reaches these ports can run programs as you. Keep the network"
            " closed, or use Ray 2.52 or later."
        ]
    if plan.in_slurm:
        return [
            "In the job script: a token for this job, without which nobody can run programs in it (Ray 2.52 or later).",
            "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN",
            "RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
        ]
    return [
        "On every node: nobody without the token can run programs in this cluster (Ray 2.52 or later).",
        "export RAY_AUTH_MODE=token",
        *_say("   Once, on the head; then copy ~/.ray/auth_token to the same place on every node, mode 0600."),
        "ray get-auth-token --generate > /dev/null",
    ]


def _reasons(plan: Plan) -> list[str]:
    return [line for flag, why in plan.flags for line in _say(f"   {flag.partition('=')[0] or 'Note'}: {why}.")]


def _flags(plan: Plan) -> str:
    return "".join(f" {flag}" for flag, _ in plan.flags if flag)


def _head(plan: Plan) -> list[str]:
    return [
        "On the head alone. --node-ip-address is the address that it tells the others.",
        *_reasons(plan),
        f'ray start --head --node-ip-address="$HEAD" --port={plan.port}{_flags(plan)}',
    ]


def _workers(plan: Plan) -> list[str]:
    return [
        "On every other node. --node-ip-address is its address towards the head, not that of docker0 or lo.",
        f'ray start --address="{_place(plan)}" --node-ip-address="$NODE_IP"{_flags(plan)}',
    ]


def _place(plan: Plan) -> str:
    return f"[$HEAD]:{plan.port}" if ":" in plan.head else f"$HEAD:{plan.port}"


def _step_flags(plan: Plan) -> str:
    """The flags in a step of Slurm, which has the processors that it is given."""
    others = [flag for flag, _ in plan.flags if flag and not flag.startswith("--num-cpus=")]
    return "".join(f" {flag}" for flag in [*others, '--num-cpus="$CPUS"'])


def _slurm_head(plan: Plan) -> list[str]:
    return [
        "In the job script, on the head; it ends with the job. srun does not take over --cpus-per-task from sbatch, so"
        " the step is given its processors here, and Ray their number.",
        *_reasons(plan),
        'read -r HEAD_NODE < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "CPUS=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}",
        'srun --overlap --nodes=1 --ntasks=1 --nodelist="$HEAD_NODE" --cpus-per-task="$CPUS" \\',
        f'  ray start --head --node-ip-address="$HEAD" --port={plan.port}{_step_flags(plan)} --block &',
        f'export RAY_ADDRESS="{_place(plan)}"',
        "for _ in {1..30}; do ray status >/dev/null 2>&1 && break; sleep 2; done",
    ]


def _slurm_workers(plan: Plan) -> list[str]:
    return [
        "In the job script, the workers: only if the job has more than one node.",
        "WORKERS=$((SLURM_JOB_NUM_NODES - 1))",
        'srun --overlap --nodes="$WORKERS" --ntasks="$WORKERS" --exclude="$HEAD_NODE" --cpus-per-task="$CPUS" \\',
        "  bash -c '",
        f"    NODE_IP=$({_own_address(plan, '1')})",
        '    exec ray start --node-ip-address="$NODE_IP" "${@:2}" --block\' \\',
        f'  worker "$HEAD" --address="$RAY_ADDRESS"{_step_flags(plan)} &',
    ]


def _after(plan: Plan) -> list[str]:
    return [
        "From any of them: does everything reach everything?",
        f"rlcheck ray --head-ip {plan.head} --port {plan.port}",
    ]
