"""Flight-recorder dumps of ranks that wait for each other: made here, and by torch's own recorder."""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlcheck.diagnose.hang.dumps import NoDump, read
from rlcheck.diagnose.hang.find import look
from tests.conftest import rlcheck

WORLD = (0, 1, 2, 3)


def call(number, name="all_reduce", group=("0", "default_pg"), state="scheduled", size=4, at=0, **more):
    """An entry as the recorder writes it."""
    entry = {"pg_id": 0, "process_group": group, "collective_seq_id": number, "profiling_name": f"nccl:{name}"}
    sizes = {"input_sizes": [[size]], "input_dtypes": ["Float"]}
    return {**entry, **sizes, "state": state, "time_created_ns": at or number, "is_p2p": " " in name, **more}


def dump(directory: Path, rank: int, calls, groups=None, status=None, as_json=False, name="dump_{}") -> Path:
    """A dump of RANK in DIRECTORY."""
    groups = groups or {"0": ("default_pg", WORLD)}
    config = {key: {"name": key, "desc": desc, "ranks": str(list(ranks))} for key, (desc, ranks) in groups.items()}
    data = {"version": "2.10", "pg_config": config, "pg_status": status or {}, "entries": list(calls)}
    path = directory / name.format(rank)
    path.write_bytes(json.dumps(data).encode() if as_json else pickle.dumps(data, protocol=2))
    return path


def verdict(directory: Path):
    """Culprits as `(rank, kind)`."""
    hang = look([str(directory)]).hang
    return None if hang is None else [(one.rank, one.kind) for one in hang.culprits]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", ["dump_{}", "_dump_{}", "nccl_trace_rank_{}.pkl", "trace-{}-of-4.bin"])
def test_a_rank_that_has_not_called_what_the_others_wait_in(tmp_path, as_json, name):
    done = [call(number, state="completed") for number in (1, 2)]
    for rank in WORLD:
        own = [*done, call(3)] if rank != 2 else done
        frames = [{"name": "step", "filename": "/x/train.py", "line": 88}]
        dump(tmp_path, rank, [{**one, "frames": frames} for one in own], as_json=as_json, name=name)
    hang = look([str(tmp_path)]).hang
    (culprit,) = hang.culprits
    assert (culprit.rank, culprit.kind, culprit.waited_for_by) == (2, "behind", (0, 1, 3))
    assert culprit.lacks == "all_reduce 3 of default_pg at train.py:88 in step"
    assert culprit.call == "all_reduce 2 of default_pg at train.py:88 in step"


def test_a_rank_that_is_behind_and_waits_itself_is_none(tmp_path):
    groups = {"0": ("default_pg", WORLD), "7": ("TP", (2, 3))}
    of_tp = {"group": ("7", "TP"), "name": "broadcast"}
    calls = {0: [call(5)], 1: [call(5)], 2: [call(9, **of_tp)], 3: [call(8, state="completed", **of_tp)]}
    for rank, own in calls.items():
        dump(tmp_path, rank, own, groups if rank > 1 else None)
    assert verdict(tmp_path) == [(3, "behind")]


def test_a_rank_without_a_dump_and_one_of_another_job(tmp_path):
    for rank in (0, 1, 3):
        dump(tmp_path, rank, [call(3)])
    (tmp_path / "idle").mkdir()
    for rank in WORLD:
        dump(tmp_path / "idle", rank, [call(7, state="completed")], name="engine_{}")
    found = look([str(tmp_path)])
    assert [(one.rank, one.kind) for one in found.hang.culprits] == [(2, "no dump")]
    assert any("no rank had a call open" in note for note in found.notes)


def test_many_ranks_without_a_dump_are_not_accused(tmp_path):
    groups = {"0": ("default_pg", tuple(range(8)))}
    pair = {"9": ("PP", (1, 6))}
    dump(tmp_path, 0, [call(3)], groups)
    dump(tmp_path, 1, [call(3), call(2, group=("9", "PP"))], groups | pair)
    dump(tmp_path, 2, [call(2, state="completed")], groups)
    assert verdict(tmp_path) == [(2, "behind")]


@pytest.mark.parametrize(("odd", "kind"), [({"name": "broadcast"}, "mismatch"), ({"size": 9}, "mismatch")])
def test_another_operation_or_size_at_one_number(tmp_path, odd, kind):
    for rank in WORLD:
        dump(tmp_path, rank, [call(3, **(odd if rank == 1 else {}))])
    assert verdict(tmp_path) == [(1, kind)]


@pytest.mark.parametrize("odd", [0, 1])
def test_of_two_ranks_the_one_with_a_new_size_is_the_odd_one(tmp_path, odd):
    for rank in (0, 1):
        done = [call(number, state="completed") for number in (1, 2)]
        dump(tmp_path, rank, [*done, call(3, size=9 if rank == odd else 4)], {"0": ("default_pg", (0, 1))})
    assert verdict(tmp_path) == [(odd, "mismatch")]
    (culprit,) = look([str(tmp_path)]).hang.culprits
    assert (
        culprit.call
        == f"all_reduce 3 of default_pg with [9] Float; rank {1 - odd}: all_reduce 3 of default_pg with [4] Float"
    )


@pytest.mark.parametrize("odd", [0, 2])
def test_the_smaller_of_two_sizes_may_end_on_a_gpu_and_is_named_all_the_same(tmp_path, odd):
    """Who has called more waits there for good; who has called less goes on to the next call."""
    for rank in WORLD:
        small = rank == odd if odd == 2 else rank != odd
        ended = [call(3, state="completed"), call(4)] if small else [call(3, size=9)]
        dump(tmp_path, rank, [call(1, size=4 if odd == 0 else 9, state="completed"), *ended])
    assert verdict(tmp_path) == [(odd, "mismatch")]


def test_sizes_that_may_differ_are_no_mismatch(tmp_path):
    for rank in WORLD:
        dump(tmp_path, rank, [call(3, name="all_to_all", size=rank)])
    assert verdict(tmp_path) == []
    assert "does not end" in look([str(tmp_path)]).hang.said


def test_sends_and_receives_are_paired(tmp_path):
    groups = {"4": ("PP", (0, 2)), "0": ("default_pg", WORLD)}
    pipe = {"group": ("4", "PP")}
    dump(tmp_path, 0, [call(0, name="send 0->1", **pipe), call(0, name="recv 0<-1", **pipe)], groups)
    dump(tmp_path, 2, [call(0, name="recv 1<-0", **pipe)], groups)
    dump(tmp_path, 1, [call(1, state="completed")])
    dump(tmp_path, 3, [call(1, state="completed")])
    assert verdict(tmp_path) == [(2, "behind")]


def test_two_groups_in_another_order_are_a_circle(tmp_path):
    groups = {"1": ("A", (0, 1)), "2": ("B", (0, 1))}
    dump(tmp_path, 0, [call(1, group=("1", "A"))], groups)
    dump(tmp_path, 1, [call(1, group=("2", "B"))], groups)
    assert verdict(tmp_path) == [(0, "circle"), (1, "circle")]


def test_a_gpu_that_has_not_begun_what_others_have(tmp_path):
    for rank in WORLD:
        dump(tmp_path, rank, [call(3, state="scheduled" if rank == 3 else "started")])
    assert verdict(tmp_path) == [(3, "not started")]


def test_groups_without_entries_are_counted_by_their_status(tmp_path):
    """A rank that completed all of its calls has no entry of them where only open ones are dumped."""
    status = {"0": {"last_enqueued_collective": 3}}
    dump(tmp_path, 0, [call(3)], status=status)
    dump(tmp_path, 1, [call(3)], status=status)
    dump(tmp_path, 2, [], status=status)
    dump(tmp_path, 3, [], status={"0": {"last_enqueued_collective": 2}})
    assert verdict(tmp_path) == [(3, "behind")]


class Evil:
    """Runs code when it is read."""

    def __reduce__(self):
        return (print, ("read",))


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"pg_config": Evil()}, 2),
        pickle.dumps({"pg_config": {}, "pg_status": {}, "entries": [1, None, {"state": []}]}, 2)[:-9],
        b"\x80\x02pg_config" + bytes(range(256)) * 3,
        b'{"pg_config": ' + b"[" * 50_000,
        b'{"pg_config": {"0": {"ranks": "[[[", "desc": 3}}, "entries": "x"}',
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7fpg_config",
    ],
)
def test_hostile_and_damaged_dumps_are_said_and_run_nothing(tmp_path, capfd, data):
    (tmp_path / "dump_0").write_bytes(data)
    with pytest.raises(NoDump):
        read(str(tmp_path / "dump_0"))
    found = look([str(tmp_path)])
    assert found.hang is None
    assert "dump_0: this flight-recorder dump was not read" in found.notes[0]
    assert capfd.readouterr().out == ""


def test_the_command_names_the_rank_in_each_format(tmp_path):
    for rank in WORLD:
        dump(tmp_path, rank, [call(1, state="completed"), *([call(2)] if rank != 1 else [])])
    (tmp_path / "train.log").write_text("step 1\nstep 2\n")
    outs = {}
    for kind in ("text", "json", "markdown", "junit", "sarif"):
        done = rlcheck("diagnose", tmp_path, "--format", kind)
        assert (done.code, done.err) == (1, "")
        outs[kind] = done.out
        assert "rank 1" in done.out
    hang = json.loads(outs["json"])["hang"]
    assert [one["rank"] for one in hang["culprits"]] == [1]
    assert {wait["rank"]: wait["waits_for"] for wait in hang["waits"]} == {0: [1], 2: [1], 3: [1]}
    assert "1 log, 2 lines" in outs["text"]
    assert "4 dumps of ranks; exit code 1: the job stands still" in outs["text"]


def test_dumps_of_a_job_that_goes_on_are_no_hang(tmp_path):
    for rank in WORLD:
        dump(tmp_path, rank, [call(1, state="completed")])
    done = rlcheck("diagnose", tmp_path)
    assert done.code == 0
    assert "No error in what was read: 4 dumps of ranks" in done.out
    assert "no rank had a call open" in " ".join(done.out.split())


RANK = """
import datetime, faulthandler, os, sys, threading, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
rank, directory = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(directory + "/store", 3)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=datetime.timedelta(seconds=100))
for _ in range(3):
    dist.all_reduce(torch.ones(4))
open(f"{directory}/ready.{rank}", "w")
def leave():
    while not os.path.exists(directory + "/dump"):
        time.sleep(0.05)
    open(f"{directory}/dump_{rank}", "wb").write(_dump_fr_trace())
    faulthandler.dump_traceback(open(f"{directory}/stacks/trainer-{rank}.stacks", "w"), all_threads=True)
    open(f"{directory}/dumped.{rank}", "w")
    while not all(os.path.exists(f"{directory}/dumped.{one}") for one in range(3)):
        time.sleep(0.05)
    os._exit(0)
threading.Thread(target=leave).start()
if rank == 1:
    time.sleep(1000)
dist.all_reduce(torch.ones(4))
"""


def test_torch_s_own_recorder_on_three_gloo_ranks(tmp_path):
    environ = {**os.environ, "TORCH_FR_BUFFER_SIZE": "200"}
    (tmp_path / "stacks").mkdir()
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path)], env=environ, stderr=subprocess.DEVNULL)
        for rank in range(3)
    ]
    try:
        deadline = time.monotonic() + 90
        while len(list(tmp_path.glob("ready.*"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)  # the other two get into their fourth call
        (tmp_path / "dump").touch()
        for process in ranks:
            process.wait(60)
    finally:
        for process in ranks:
            process.kill()
    hang = look([str(tmp_path)]).hang
    assert [(one.rank, one.kind) for one in hang.culprits] == [(1, "behind")]
    assert hang.culprits[0].lacks.startswith("all_reduce 4 of default_pg")
    assert hang.culprits[0].stack[0] == "<string>:23 in <module>"
    # The stacks alone tell it as well.
    (culprit,) = look([str(tmp_path / "stacks")]).hang.culprits
    assert (culprit.rank, culprit.role, culprit.waited_for_by) == (1, "trainer", (0, 2))


PY_SPY = """Process {pid}: python -u train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread {pid} (idle): "MainThread"
    {inner}
    step (train.py:88)
    <module> (train.py:120)
Thread {pid}7 (idle): "watchdog"
    wait (threading.py:359)
"""


def test_stacks_of_py_spy(tmp_path):
    within = "all_reduce (torch/distributed/distributed_c10d.py:2810)"
    for rank in range(4):
        text = PY_SPY.format(pid=700 + rank, inner="get (queue.py:171)" if rank == 3 else within)
        (tmp_path / f"py-spy-rank{rank}.txt").write_text(text)
    done = rlcheck("diagnose", tmp_path)
    assert done.code == 1
    assert "3 of 4 ranks are in a collective, rank 3 in work of its own" in " ".join(done.out.split())
    assert "queue.py:171 in get" in done.out


def test_a_crash_s_stack_in_a_log_is_no_hang(tmp_path):
    fatal = "step 3\nFatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
    (tmp_path / "rank1.log").write_text(fatal + '  File "/x/a.py", line 3 in go\n')
    (tmp_path / "rank0.log").write_text("step 3\n")
    assert look([str(tmp_path)]).hang is None
