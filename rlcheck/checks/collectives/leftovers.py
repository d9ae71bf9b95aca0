"""Settings that were set to get round a problem once and are slow or dangerous when they stay."""

from __future__ import annotations

from rlcheck.check import Verdict, check, info, passed, skip, warn
from rlcheck.checks.collectives.settings import (
    Setting,
    number_of,
    settings,
    settings_evidence,
    show,
    uses_rccl,
    value_of,
)
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.interfaces import active_fabric, connectable
from rlcheck.text import several

_MIN_BUFFER_BYTES, _MAX_BUFFER_BYTES = 1 << 19, 1 << 26
_FEW_CHANNELS, _MANY_CHANNELS = 4, 64
_GOOGLE = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHIMNET_")


def _fabric(facts: Facts) -> list[str]:
    """The InfiniBand and RoCE devices that NCCL could connect over, none when the network section is missing."""
    if facts.network.value is None:
        return []
    return list(dict.fromkeys(device.name for device, port in active_fabric(facts) if connectable(port)))


def _only_unbridged_geforce(facts: Facts) -> bool:
    devices = value_or(facts.nvidia.value.devices, ()) if facts.nvidia.value is not None else ()
    is_bridged = any(device.nvlinks.value is not None and device.nvlinks.value.num_active for device in devices)
    return bool(devices) and not is_bridged and all("GeForce" in value_or(device.name, "") for device in devices)


@check("NCL011", "GPUs of one node talk directly", needs=("environ",), playbook="nccl-no-peer-access",
       problem="Direct transports between GPUs are switched off")  # fmt: skip
def direct_transports(facts: Facts) -> Verdict:
    """Finds NCCL_P2P_DISABLE=1, NCCL_P2P_LEVEL=LOC and NCCL_SHM_DISABLE=1.

    What it does:
        Reads the three settings as NCCL does, from the environment and from its files. GeForce cards without NVLink
        have no peer access to lose, and some drivers and `accelerate` want NCCL_P2P_DISABLE=1 there: it is only told.

    Why it matters:
        They take the direct path between the GPUs of one machine away: an 8×H200 node that reaches 366 GB/s in
        all-reduce fell to 12 GB/s with NCCL_P2P_DISABLE=1. They are remedies to try for an hour, not to keep.
    """
    found = settings(facts)
    off = [found[name] for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if number_of(found, name)]
    if value_of(found, "NCCL_P2P_LEVEL").upper() in ("LOC", "0"):
        off.append(found["NCCL_P2P_LEVEL"])
    if not off:
        return passed("peer access and shared memory are on")
    if _only_unbridged_geforce(facts) and not number_of(found, "NCCL_SHM_DISABLE"):
        return info(
            f"{', '.join(show(s) for s in off)}: GeForce cards without NVLink have no peer access",
            evidence=settings_evidence(off),
        )
    return warn(
        "peer access and shared memory left on",
        ", ".join(show(setting) for setting in off),
        evidence=settings_evidence(off),
        params={"names": " ".join(setting.name for setting in off)},
    )


@check("NCL012", "NCCL may use RDMA", needs=("environ",), playbook="nccl-sockets-instead-of-rdma",
       problem="RDMA is there but switched off")  # fmt: skip
def rdma_allowed(facts: Facts) -> Verdict:
    """Finds NCCL_IB_DISABLE=1 and NCCL_NET=Socket, and says what they cost here.

    What it does:
        Where an InfiniBand or RoCE port is active the setting is a problem; where there is none it is only told,
        because it will be copied to machines that have one.

    Why it matters:
        NCCL then sends everything between nodes over TCP: tens of times slower than the cards that are idle.
    """
    found = settings(facts)
    off = [found["NCCL_IB_DISABLE"]] if number_of(found, "NCCL_IB_DISABLE") else []
    if value_of(found, "NCCL_NET").lower() == "socket":
        off.append(found["NCCL_NET"])
    if not off:
        return passed("RDMA is not switched off")
    text = ", ".join(show(setting) for setting in off)
    devices = _fabric(facts)
    if not devices:
        return info(
            f"{text}: no active RDMA port here, so nothing is lost on this machine", evidence=settings_evidence(off)
        )
    return warn(
        f"RDMA in use ({', '.join(devices[:8])} active)",
        text,
        evidence=settings_evidence(off),
        params={"names": " ".join(setting.name for setting in off)},
    )


@check("NCL013", "cuMem memory is on where multi-node NVLink needs it", needs=("environ", "nccl"),
       playbook="nccl-cumem-mnnvl")  # fmt: skip
def cumem_with_mnnvl(facts: Facts) -> Verdict:
    """Finds NCCL_CUMEM_ENABLE=0 on machines of a multi-node NVLink domain (GB200 and the like).

    What it does:
        Looks for an IMEX channel device, the sign of such a domain, and for NCCL_MNNVL_ENABLE=1.

    Why it matters:
        Multi-node NVLink needs cuMem allocations: with NCCL_CUMEM_ENABLE=0 NCCL gives it up and uses the network cards,
        at a fraction of the speed. Several RL frameworks (verl among them) set it to 0 for other reasons.
    """
    found = settings(facts)
    if number_of(found, "NCCL_CUMEM_ENABLE") != 0:
        return passed("NCCL_CUMEM_ENABLE does not switch cuMem off")
    wants = number_of(found, "NCCL_MNNVL_ENABLE")
    text = show(found["NCCL_CUMEM_ENABLE"])
    if not need(facts.nccl).imex_channel and wants != 1:
        return passed(f"{text}: no multi-node NVLink on this machine that would need it")
    if wants == 0:
        return passed(f"{text}, and NCCL_MNNVL_ENABLE=0 says that multi-node NVLink is not wanted")
    return warn(
        "cuMem on, which multi-node NVLink needs",
        text,
        evidence=settings_evidence([found["NCCL_CUMEM_ENABLE"]]),
    )


@check("NCL014", "NVLink SHARP is not switched off", needs=("environ",), playbook="nccl-nvls-unused",
       problem="NVLink SHARP is switched off")  # fmt: skip
def nvls(facts: Facts) -> Verdict:
    """Reports NCCL_NVLS_ENABLE=0.

    What it does:
        Reads the setting. It is information only: partial machines and containers without the fabric devices need it.

    Why it matters:
        On eight Hopper GPUs the switch's own reduction raises all-reduce from about 368 to about 480 GB/s.
    """
    found = settings(facts)
    if number_of(found, "NCCL_NVLS_ENABLE") != 0:
        return passed("NCCL decides on NVLink SHARP by itself")
    return info(
        f"{show(found['NCCL_NVLS_ENABLE'])}: all-reduce does without the NVSwitch's own reduction",
        evidence=settings_evidence([found["NCCL_NVLS_ENABLE"]]),
    )


@check("NCL015", "NCCL chooses algorithm and protocol", needs=("environ",), playbook="nccl-tuning-left-over",
       problem="A setting fixes NCCL's algorithm or protocol")  # fmt: skip
def algorithm(facts: Facts) -> Verdict:
    """Finds NCCL_ALGO and NCCL_PROTO.

    What it does:
        A list that names LL128 is a warning; any other choice is only told, because bit-exact runs use it. Google
        Cloud's plug-ins come with such a list and insist on it, so beside their settings it is only told, too.

    Why it matters:
        One algorithm is not the best at every size, and since NCCL 2.24 an operation that the list does not cover
        fails instead of falling back to rings. LL128 on hardware that does not support it corrupts data.
    """
    found = settings(facts)
    pinned = [found[name] for name in ("NCCL_ALGO", "NCCL_PROTO") if value_of(found, name)]
    if not pinned:
        return passed("neither is set")
    text = ", ".join(show(setting) for setting in pinned)
    protocol = value_of(found, "NCCL_PROTO").lower()
    if "ll128" in protocol and not protocol.startswith("^") and not any(n.startswith(_GOOGLE) for n in found):
        return warn(
            "LL128 chosen by NCCL, which knows where it is safe",
            text,
            evidence=settings_evidence(pinned),
            params={"name": "NCCL_PROTO"},
        )
    return info(f"{text}: fixed for every size and operation", evidence=settings_evidence(pinned))


@check("NCL016", "NCCL's channels and buffers are of a usual size", needs=("environ",),
       playbook="nccl-tuning-left-over",
       problem="NCCL's channels or buffers are of an unusual size")  # fmt: skip
def sizes(facts: Facts) -> Verdict:
    """Looks for extremes in NCCL_BUFFSIZE and in the limits of channels.

    What it does:
        Buffers below 512 KiB or above 64 MiB (the default is 4 MiB), at most four channels, a minimum above the
        maximum, more than 64 (RCCL has more of them, and advice of its own: see GPU048).

    Why it matters:
        Few channels or small buffers cap the bandwidth of every collective. Large buffers are allocated for every peer
        and channel, on the GPU memory that the rollout engine counts on.
    """
    found = settings(facts)
    odd: list[tuple[Setting, str]] = []
    size = number_of(found, "NCCL_BUFFSIZE")
    if size is not None and not _MIN_BUFFER_BYTES <= size <= _MAX_BUFFER_BYTES:
        odd.append((found["NCCL_BUFFSIZE"], "the default is 4194304"))
    upper = _channels(found, ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"), 1)
    lower = _channels(found, ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS"), -1)
    if upper and 0 < upper[1] <= _FEW_CHANNELS:
        odd.append((upper[0], "few channels cap the bandwidth"))
    if lower and lower[1] > _MANY_CHANNELS and not uses_rccl(facts):
        odd.append((lower[0], "NCCL has 64 at most"))
    if upper and lower and lower[1] > upper[1] > 0:
        odd.append((lower[0], f"more than {upper[0].name}={upper[1]}"))
    if not odd:
        return passed("no extreme")
    return warn(
        "usual sizes",
        "; ".join(f"{show(setting)}: {why}" for setting, why in odd),
        evidence=settings_evidence(setting for setting, _ in odd),
        params={"name": several(dict.fromkeys(setting.name for setting, _ in odd))},
    )


def _channels(found: dict[str, Setting], names: tuple[str, ...], sign: int) -> tuple[Setting, int] | None:
    """The stricter of two limits: the least for `sign` 1, the greatest for -1."""
    rows = [(found[name], number) for name in names if (number := number_of(found, name)) is not None]
    return min(rows, key=lambda row: sign * row[1]) if rows else None


@check("NCL017", "No fixed meeting point or launch mode of NCCL is set", needs=("environ",),
       playbook="nccl-bootstrap-collision",
       problem="A fixed meeting point or launch mode of NCCL is set")  # fmt: skip
def fixed_meeting_point(facts: Facts) -> Verdict:
    """Finds NCCL_COMM_ID, NCCL_HOSTID and NCCL_LAUNCH_MODE.

    What it does:
        NCCL_COMM_ID is a warning, the other two are information.

    Why it matters:
        With NCCL_COMM_ID every communicator of every process meets at one address, so the second group of an RL run
        (actor, rollout, weight sync) finds the port taken or joins the wrong group and hangs.
    """
    found = settings(facts)
    left = [found[name] for name in ("NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_LAUNCH_MODE") if value_of(found, name)]
    if not left:
        return passed("none")
    text = ", ".join(show(setting) for setting in left)
    if left[0].name != "NCCL_COMM_ID":
        return info(f"{text}: set for a special purpose?", evidence=settings_evidence(left))
    return warn("NCCL_COMM_ID unset", text, evidence=settings_evidence(left))


@check("NCL018", "NCCL may cross rails as this fabric allows", needs=("environ", "network.rdma"),
       playbook="nccl-tuning-left-over",
       problem="Rings may cross network rails")  # fmt: skip
def cross_nic(facts: Facts) -> Verdict:
    """Reports NCCL_CROSS_NIC on machines with several RDMA cards.

    What it does:
        Reads the setting: 0 keeps each ring on one rail, 1 lets it cross, 2 (the default) tries to keep it.

    Why it matters:
        On a fabric without links between rails, crossing ends in `ibv_modify_qp` timeouts; on one with them, 0 may
        leave bandwidth unused.
    """
    found = settings(facts)
    devices = _fabric(facts)
    if len(devices) < 2:
        return skip("fewer than two active RDMA devices")
    if number_of(found, "NCCL_CROSS_NIC") != 1:
        return passed("NCCL stays on one rail where it can")
    return info(f"{show(found['NCCL_CROSS_NIC'])}: wrong on a rail-only fabric ({len(devices)} RDMA devices)",
                evidence=settings_evidence([found["NCCL_CROSS_NIC"]]))  # fmt: skip
