"""Is the odd machine named wherever it stands? `rlcheck nccl --hosts` over namespaces, one fault at a time.

    python -m tests.bench.bench_placements [--num 20] [--nodes 4] [--fault hang,die,slow,wrong] [--seed 0]

Needs root, iptables and sshd. The victim (or pair) and the moment are drawn anew for each run. Prints a line for each
run and exits with 1 when the victim, and it alone, was not named by the check that is there for it.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT
from tests.multinode.debs import find, why_no_firewall, why_no_namespaces
from tests.multinode.netns import Node, network
from tests.multinode.reports import Examined, examine
from tests.multinode.ssh import sshd
from tests.multinode.strikes import WRONG_SUM, strike

STEP_S = 5
SLOW_MEGABYTES_PER_S = 4
LATEST_S = 2.5


@dataclass(frozen=True)
class Fault:
    """`id` is the check that must name the victims; `begin` brings them about before the command runs."""

    id: str
    num_victims: int
    begin: Callable[[Sequence[Node], Path, float, ExitStack], None]


def _hit(number: signal.Signals) -> Callable[[Sequence[Node], Path, float, ExitStack], None]:
    def begin(victims: Sequence[Node], root: Path, delay_s: float, stack: ExitStack) -> None:
        strike(victims[0], number, delay_s)
        stack.callback(victims[0].kill, signal.SIGKILL, sys.executable)

    return begin


def _throttle(victims: Sequence[Node], root: Path, delay_s: float, stack: ExitStack) -> None:
    first, second = victims
    stack.enter_context(first.throttle(second, SLOW_MEGABYTES_PER_S))
    stack.enter_context(second.throttle(first, SLOW_MEGABYTES_PER_S))


def _spoil(victims: Sequence[Node], root: Path, delay_s: float, stack: ExitStack) -> None:
    (root / "sitecustomize.py").write_text(WRONG_SUM)
    victims[0].environ["PYTHONPATH"] = f"{root}:{ROOT}"
    stack.callback(victims[0].environ.clear)


def _unknown_interface(victims: Sequence[Node], root: Path, delay_s: float, stack: ExitStack) -> None:
    victims[0].environ["GLOO_SOCKET_IFNAME"] = "eth9"
    stack.callback(victims[0].environ.clear)


FAULTS: Mapping[str, Fault] = {
    "hang": Fault("NCL035", 1, _hit(signal.SIGSTOP)),
    "die": Fault("NCL034", 1, _hit(signal.SIGKILL)),
    "slow": Fault("NCL043", 2, _throttle),
    "wrong": Fault("NCL037", 1, _spoil),
    "interface": Fault("NCL051", 1, _unknown_interface),
}


def run(fault: Fault, nodes: Sequence[Node], victims: Sequence[Node], delay_s: float) -> Examined:
    """One call of the command while the fault is there."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="placements")))
        fault.begin(victims, root, delay_s, stack)
        ssh = stack.enter_context(sshd(nodes[0], nodes, root))
        arguments = ("--hosts", ssh.hosts_file(nodes), "--python", sys.executable, "--backend", "gloo")
        return examine(nodes[0], "nccl", *arguments, "--quick", "--step-timeout", str(STEP_S), timeout=170)


def named(examined: Examined, nodes: Collection[Node]) -> dict[str, set[str]]:
    """The machines that each failed check of the measurement blames in what it found."""
    addresses = {node.address for node in nodes}
    found: dict[str, set[str]] = {}
    for id in sorted(examined.problems()):
        said = examined.findings[id].get("found") or ""
        blamed = said.rpartition("to blame: ")[2]
        found[id] = addresses & set(re.findall(r"[\d.]*\d", blamed))
    return found


def main() -> int:
    """Run all placements and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=20, help="placements of each fault")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--fault", default=",".join(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print everything that warns or fails")
    options = parser.parse_args()
    why_not = why_no_namespaces() or why_no_firewall() or ("" if find("sshd") else "needs sshd")
    if why_not:
        parser.error(why_not)
    places = random.Random(options.seed)
    kinds = options.fault.split(",")
    num_right = dict.fromkeys(kinds, 0)
    with network(options.nodes) as nodes:
        for _ in range(options.num):
            for kind in kinds:
                num_right[kind] += trial(kind, nodes, places, options.verbose)
    for kind, number in num_right.items():
        print(f"{kind:9} {number} of {options.num} named right")
    total = options.num * len(kinds)
    print(f"{sum(num_right.values())} of {total} named right")
    return 0 if sum(num_right.values()) == total else 1


def trial(kind: str, nodes: Sequence[Node], places: random.Random, verbose: bool) -> bool:
    """One placement: whether exactly the victims were named. Prints its line."""
    fault = FAULTS[kind]
    victims = places.sample(nodes, fault.num_victims)
    delay_s = places.uniform(0, LATEST_S)
    examined = run(fault, nodes, victims, delay_s)
    blamed = named(examined, nodes)
    right = blamed.get(fault.id) == {node.address for node in victims}
    who = "+".join(sorted(node.address for node in victims))
    said = "; ".join(f"{id} {', '.join(sorted(names)) or '-'}" for id, names in blamed.items())
    at = f"at {delay_s:.1f} s" if kind in ("hang", "die") else ""
    print(f"{kind:9} {who:19} {at:9} {'ok ' if right else 'BAD'} {examined.seconds:5.1f} s  {said}", flush=True)
    if verbose or not right:
        for id, text in examined.problems().items():
            print(f"    {id}: {text}", flush=True)
    return right


if __name__ == "__main__":
    sys.exit(main())
