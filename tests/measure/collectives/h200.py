"""A real host of eight H200 as facts: numbers of one recorded run (NVLS off), with 2, 4 and 8 GPUs and without P2P."""

from __future__ import annotations

import json
from pathlib import Path

from rlcheck.facts.base import known
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Rank, Sample, Transport
from rlcheck.facts.document import Facts

_RUNS = json.loads((Path(__file__).parents[2] / "fixtures" / "collectives" / "h200.json").read_text())
PEER, SHARED = {"P2P/CUMEM": 192}, {"SHM": 32}


def h200(gpus: int, p2p: bool = True, device: str = "NVIDIA H200", nvls: bool = False, factor: float = 1.0) -> Facts:
    """The recorded run with `gpus` GPUs; `factor` makes all its bandwidths worse."""
    run = next(r for r in _RUNS if r["gpus"] == gpus and ("NCCL_P2P_DISABLE" in r["settings"]) is not p2p)
    samples = tuple(
        _sample(run, name, int(size), value * 1e9 * factor)
        for name, rows in run["busbw_gb_s"].items()
        for size, value in rows.items()
    )
    transport = Transport(library="NCCL 2.28.9+cuda13.0", links=PEER if p2p else SHARED, rings=24, nvls=nvls)
    group = GroupRun(
        phase="node",
        nodes=("node0",),
        ranks=tuple(range(gpus)),
        init_s=known(run["init_s"]),
        samples=samples,
        transport=known(transport),
    )
    measured = CollectiveFacts(
        launcher="torchrun",
        backend="nccl",
        ranks=tuple(Rank(rank=i, node="node0", local_rank=i, device=device) for i in range(gpus)),
        settings={"node0": run["settings"]},
        groups=(group,),
    )
    return Facts(node="node0", collectives=known(measured))


def _sample(run: dict, name: str, size: int, busbw: float) -> Sample:
    gpus = run["gpus"]
    factor = {"all_reduce": 2 * (gpus - 1) / gpus, "broadcast": 1.0}.get(name, (gpus - 1) / gpus)
    algbw = busbw / factor
    seconds = run["all_reduce_us"][str(size)] / 1e6 if name == "all_reduce" else size / algbw if algbw else 1e-4
    return Sample(collective=name, num_bytes=size, seconds=seconds, algbw=algbw, busbw=busbw)
