"""docs/examples/automation/slurm-prolog.sh in a real Slurm: the sick node is drained, the other one works."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import IMPORT_PATH, write_command
from tests.multinode.debs import find
from tests.slurm.cluster import Slurm
from tests.tools.test_automation import EXAMPLES, SICK, WELL

SRUN, SCONTROL, SINFO, SCANCEL = (str(find(name)) for name in ("srun", "scontrol", "sinfo", "scancel"))


@pytest.fixture
def with_prolog(cluster: Slurm, tmp_path: Path) -> Iterator[Path]:
    """The cluster with the example as its prolog; node2 has the facts of a machine without its NVSwitch fabric."""
    log = tmp_path / "syslog"
    write_command(tmp_path / "bin", "logger", f'echo "$SLURMD_NODENAME $*" >>{log}')
    write_command(tmp_path / "bin", "rlcheck", f'exec {sys.executable} -m rlcheck "$@" --facts $FACTS')
    write_command(tmp_path / "bin", "prolog", f"""
export PATH={tmp_path}/bin:/usr/bin:/bin PYTHONPATH={IMPORT_PATH} RLCHECK={tmp_path}/bin/rlcheck LIMIT_S=60 FACTS={WELL}
[ "$SLURMD_NODENAME" = node2 ] && export FACTS={SICK}
exec bash {EXAMPLES}/slurm-prolog.sh""")  # fmt: skip
    conf = cluster.root / "slurm.conf"
    shutil.copy(conf, tmp_path / "slurm.conf")
    with conf.open("a") as file:
        file.write(f"Prolog={tmp_path}/bin/prolog\n")
    assert cluster.run(SCONTROL, "reconfigure").code == 0
    try:
        yield log
    finally:
        shutil.copy(tmp_path / "slurm.conf", conf)
        cluster.run(SCANCEL, "--user=root")
        cluster.run(SCONTROL, "reconfigure")
        cluster.run(SCONTROL, "update", "NodeName=node2", "State=RESUME")


def states(cluster: Slurm) -> dict[str, str]:
    lines = cluster.run(SINFO, "--noheader", "--Node", "--format=%N %T").out.splitlines()
    return dict(line.split() for line in lines)


def test_a_sick_node_is_drained(cluster: Slurm, with_prolog: Path) -> None:
    well = cluster.run(SRUN, "--nodelist=node1", "--ntasks=1", "hostname", timeout=100)
    assert (well.code, well.out.split()) == (0, ["node1"]), well.err + cluster.logs()
    sick = cluster.run("timeout", "40", SRUN, "--nodelist=node2", "--ntasks=1", "hostname", timeout=100)
    assert sick.code != 0
    assert sick.out == ""
    until = time.monotonic() + 30
    while not states(cluster)["node2"].startswith("drain") and time.monotonic() < until:
        time.sleep(0.2)
    assert states(cluster)["node2"].startswith("drain"), cluster.logs()
    assert states(cluster)["node1"] in ("idle", "mixed", "completing")
    assert "node2 -t rlcheck -p daemon.err -- RLCHECK CRITICAL - GPU025" in with_prolog.read_text()
