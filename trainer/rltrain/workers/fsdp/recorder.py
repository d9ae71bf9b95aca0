"""The flight recorder of a training rank: on from the start, and given to who asks while the rank hangs.

`rlcheck hang` asks at a socket in Linux's abstract namespace, so that nothing is left on a disk. Names of variables as
in torch 2.11 to 2.14 (torch/csrc/distributed/c10d/FlightRecorder.hpp and ProcessGroupNCCL.hpp).
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rltrain.core import work

ADDRESS = "\0torch-flight-recorder-{pid}"
"""Where the process with that number answers whoever connects: each recorder's pickle after its length, 8 bytes."""
_ENTRIES = "2000"
_WITHIN_S = 10.0


def turn_on(device_type: str) -> None:
    """Have torch record the last calls of every process group, write them beside the logs when one times out, and
    answer who asks. What the environment says already stays as it is.
    """
    entries = os.environ.get("TORCH_FR_BUFFER_SIZE") or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or _ENTRIES
    os.environ["TORCH_FR_BUFFER_SIZE"] = entries
    if device_type == "cuda":  # NCCL's watchdog reads the older name alone
        os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = entries
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    place = os.environ.get(work.PLACE)
    if place is not None and "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in os.environ:
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(Path(place).with_name("flight_")))
    with suppress(OSError):  # of another machine's kernel, or answering already
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(ADDRESS.format(pid=os.getpid()))
        listener.listen(4)
        threading.Thread(target=_answer, args=(listener,), name="flight-recorder", daemon=True).start()


def _answer(listener: socket.socket) -> None:
    while True:
        with suppress(OSError):
            asker, _ = listener.accept()
            with asker:
                asker.settimeout(_WITHIN_S)
                if _user_of(asker) in (0, os.getuid()):
                    asker.sendall(b"".join(struct.pack("<Q", len(data)) + data for data in records()))


def _user_of(asker: socket.socket) -> int:
    return struct.unpack("iII", asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]


def records() -> list[bytes]:
    """What NCCL's recorder and that of the other backends hold, without stacks: torch would load its compiler."""
    module: Any = sys.modules[
        "torch._C._distributed_c10d"
    ]  # torch.distributed, without which no rank is, has loaded it
    found: list[Callable[..., bytes] | None] = [
        getattr(module, name, None) for name in ("_dump_nccl_trace", "_dump_fr_trace")
    ]
    return [dump(True, False, False) for dump in found if dump is not None]
