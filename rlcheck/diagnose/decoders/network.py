"""Error numbers, addresses, exit codes and the codes of NCCL, InfiniBand and the GPU driver, in words."""

from __future__ import annotations

import errno as numbers
import ipaddress
import re
import signal
from collections.abc import Mapping

from rlcheck.diagnose.decode import Decoder

_ERRNO = {
    numbers.EPERM: "not permitted",
    numbers.EACCES: "access denied",
    numbers.EAGAIN: "a limit of the system is reached for now",
    numbers.ENOMEM: "no memory could be had, or the limit of locked memory is reached",
    numbers.EFAULT: "the card cannot reach that memory",
    numbers.ENODEV: "no such device",
    numbers.EINVAL: "the values given do not fit the device",
    numbers.EMFILE: "too many open files",
    numbers.ENOSPC: "no space is left",
    numbers.EPIPE: "the other side has closed the connection",
    numbers.ENODATA: "the entry is empty",
    numbers.EADDRINUSE: "the address is in use",
    numbers.EADDRNOTAVAIL: "this machine does not have that address",
    numbers.ENETDOWN: "the network interface is down",
    numbers.ENETUNREACH: "no route leads to that network",
    numbers.ECONNABORTED: "the connection was broken off",
    numbers.ECONNRESET: "the other side broke the connection off",
    numbers.ETIMEDOUT: "nothing answered in time",
    numbers.ECONNREFUSED: "the machine answers, but nobody listens on that port, or a firewall rejects it",
    numbers.EHOSTDOWN: "the host is down",
    numbers.EHOSTUNREACH: "no way to the host: a wrong interface, or a firewall that rejects",
    numbers.ESTALE: "the network file system no longer knows the file",
    numbers.EDQUOT: "the quota is used up",
}
_ERRNO_TEXT = {
    "network is unreachable": numbers.ENETUNREACH,
    "no route to host": numbers.EHOSTUNREACH,
    "connection refused": numbers.ECONNREFUSED,
    "connection timed out": numbers.ETIMEDOUT,
    "connection reset by peer": numbers.ECONNRESET,
    "software caused connection abort": numbers.ECONNABORTED,
    "broken pipe": numbers.EPIPE,
    "invalid argument": numbers.EINVAL,
    "no such device": numbers.ENODEV,
    "no data available": numbers.ENODATA,
    "cannot allocate memory": numbers.ENOMEM,
    "bad address": numbers.EFAULT,
    "address already in use": numbers.EADDRINUSE,
    "cannot assign requested address": numbers.EADDRNOTAVAIL,
}
_EXIT = {
    1: "an exception or error of the program itself, told further up",
    2: "wrong arguments, or a file that is not there",
    126: "the program may not be executed",
    127: "the program was not found",
    253: "Slurm: out of memory",
}
_SIGNAL = {
    signal.SIGHUP: "the terminal or ssh session that started it was closed (SIGHUP)",
    signal.SIGINT: "interrupted from the keyboard (SIGINT)",
    signal.SIGILL: "an instruction that this processor does not have (SIGILL)",
    signal.SIGABRT: "the program gave up by itself (SIGABRT); its reason is above",
    signal.SIGBUS: "a bus error (SIGBUS): usually /dev/shm is full, or a mapped file was cut short",
    signal.SIGFPE: "an arithmetic error (SIGFPE)",
    signal.SIGKILL: "killed from outside (SIGKILL): nearly always the kernel, because host memory ran out",
    signal.SIGSEGV: "a crash in compiled code (SIGSEGV)",
    signal.SIGPIPE: "whoever read its output has gone (SIGPIPE)",
    signal.SIGTERM: "told to stop by the launcher or the scheduler (SIGTERM); it is not the one that failed",
    signal.SIGXCPU: "the limit of processor time (SIGXCPU)",
}
_NCCL = {
    1: "a call to CUDA failed (ncclUnhandledCudaError)",
    2: "a call to the operating system failed (ncclSystemError)",
    3: "a check inside NCCL failed (ncclInternalError)",
    4: "an argument was refused (ncclInvalidArgument)",
    5: "NCCL was used in a way that it refuses (ncclInvalidUsage)",
    6: "another rank ended, or the network broke (ncclRemoteError)",
}
_COMPLETION = {
    1: "a message was longer than its buffer",
    4: "a memory region was not registered, or access to it was not allowed",
    5: "the queue had already failed; the first error of this connection is above or on the other node",
    10: "the other side did not allow the access to its memory",
    11: "the other side could not carry the operation out",
    12: "the card repeated its packets and never had an answer: the other card is unreachable, its process has ended,"
    " or packets are lost",
    13: "the other card was never ready to receive",
}
_XID = {
    8: ("the GPU stopped processing", "start the program again; the support if it repeats"),
    13: ("a fault in a kernel, often an illegal address", "start again; the same GPU every time means hardware"),
    31: (
        "a page fault on the GPU: a kernel used an illegal address",
        "start again; the same GPU every time means hardware",
    ),
    32: ("a corrupted command buffer", "start again"),
    43: ("the program's GPU channel was stopped after a fault of its own", "nothing; look for the program's error"),
    45: ("cleanup after another fault", "look for the Xid before it"),
    46: ("the GPU stopped processing", "reset the GPU"),
    48: ("a memory error that could not be corrected (double bit)", "reset the GPU"),
    62: ("the GPU's micro-controller stopped", "reset the GPU"),
    63: ("a bad memory row was retired", "reset the GPU when it is idle"),
    64: ("a bad memory row could not be retired", "reset the GPU, then replace it"),
    69: ("a fault in the graphics engine", "start again"),
    74: ("an NVLink error", "reset the GPUs of the board; look at nvidia-smi nvlink -e"),
    79: ("the GPU has fallen off the bus", "power-cycle the machine; the support if it repeats"),
    92: ("many corrected memory errors", "nothing now"),
    94: ("a memory error that hit one program only", "start that program again"),
    95: ("a memory error that may have hit every program on the GPU", "reset the GPU"),
    109: ("a context switch timed out", "reset the GPU"),
    119: ("the GPU's system processor (GSP) does not answer", "reset the GPU, or start the machine again"),
    120: ("an error in the GPU's system processor (GSP)", "reset the GPU, or start the machine again"),
    136: ("an NVLink could not be trained", "reset the GPU"),
    140: ("a memory error that could not be repaired", "reset the GPU"),
    143: ("the GPU could not be initialised", "reset the GPU"),
    154: ("the driver says what the GPU needs; the action is in its text", "do what the text says"),
}
_DOCKER = tuple(ipaddress.ip_network(net) for net in ("172.17.0.0/16", "172.18.0.0/16"))
"""What Docker gives its first two bridges; later ones share their range with real networks."""


def _number(text: str) -> int | None:
    match = re.search(r"-?\d{1,9}", text)
    return int(match[0]) if match else None


def _errno(groups: Mapping[str, str]) -> dict[str, str]:
    """`errno`: a number (113) or the system's own words (No route to host)."""
    number = _ERRNO_TEXT.get(groups["errno"].strip().lower())
    number = _number(groups["errno"]) if number is None else number
    meaning = _ERRNO.get(abs(number)) if number is not None else None
    return {"errno_meaning": meaning} if meaning else {}


def _exit_code(groups: Mapping[str, str]) -> dict[str, str]:
    """`exit_code`: 137, -9, 0x0009 or a signal's name (SIGKILL)."""
    text = groups["exit_code"].strip()
    named, status = re.search(r"SIG[A-Z0-9]+", text), re.fullmatch(r"0x([0-9a-fA-F]{1,8})", text)
    if named and named[0] in signal.Signals.__members__:
        number = signal.Signals[named[0]].value
    elif status:
        number = int(status[1], 16) & 0x7F  # a wait status, as Slurm prints it
    else:
        code = _number(text)
        if code is None:
            return {}
        if code in _EXIT:
            return {"exit_meaning": _EXIT[code]}
        number = -code if code < 0 else code - 128
    try:
        meaning = _SIGNAL.get(signal.Signals(number))
    except ValueError:
        return {}
    return {"exit_meaning": meaning} if meaning else {}


def _ip(groups: Mapping[str, str]) -> dict[str, str]:
    """`ip`: an address that a process advertised or tried to reach."""
    try:
        address = ipaddress.ip_address(groups["ip"].strip("[]").removeprefix("::ffff:"))
    except ValueError:
        return {}
    if address.is_loopback:
        kind = "the machine's own loopback address, which no other machine can reach"
    elif address.is_unspecified:
        kind = "no address of a machine, but a server's word for all of its interfaces"
    elif address.is_link_local:
        kind = "a link-local address, which is not routed: the interface has got no address from the network"
    elif any(address in bridge for bridge in _DOCKER):
        kind = "an address of Docker's bridge, which only containers of the same machine can reach"
    elif address.is_private:
        kind = "a private address: right only if both machines are in that network"
    else:
        kind = "a public address"
    return {"ip_kind": kind}


def _nccl_result(groups: Mapping[str, str]) -> dict[str, str]:
    """`nccl_result`: ncclResult_t, 1 to 6."""
    meaning = _NCCL.get(_number(groups["nccl_result"]) or 0)
    return {"nccl_meaning": meaning} if meaning else {}


def _completion(groups: Mapping[str, str]) -> dict[str, str]:
    """`completion`: the status of an InfiniBand work completion (enum ibv_wc_status)."""
    meaning = _COMPLETION.get(_number(groups["completion"]) or 0)
    return {"completion_meaning": meaning} if meaning else {}


def _xid(groups: Mapping[str, str]) -> dict[str, str]:
    """`xid`: the driver's error number; NVIDIA's catalogue of Xid errors gives what to do."""
    known = _XID.get(_number(groups["xid"]) or 0)
    named = {"code": groups["xid"]}  # what the check of the kernel log calls it
    return {**named, "xid_meaning": known[0], "xid_action": known[1]} if known else named


DECODERS: dict[str, Decoder] = {
    "errno": _errno,
    "exit_code": _exit_code,
    "ip": _ip,
    "nccl_result": _nccl_result,
    "completion": _completion,
    "xid": _xid,
}
