"""The measuring plug-in `replay`: captured steps, run again by the trainer on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from rlcheck.facts.capsule import Capsule
from rlcheck.facts.step import Replay, StepFacts
from rltrain.cluster.placement import Slot
from rltrain.cluster.runtime import Runtime, connect
from rltrain.config.resolve import replaced
from rltrain.config.schema import RunConfig
from rltrain.controller.algorithm import Algorithm
from rltrain.controller.callbacks.base import Callbacks, RunInfo
from rltrain.controller.callbacks.capsule import Capsules
from rltrain.controller.collect import Collector
from rltrain.controller.crew import Crew
from rltrain.controller.loop import Loop
from rltrain.controller.prepare import Prepared, tokenizer_of
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.roles import make_roles
from rltrain.controller.rollout import train_sampling
from rltrain.core.batch import Batch
from rltrain.core.clock import Clock
from rltrain.core.errors import RunFailure, UserError
from rltrain.core.metrics import Metrics
from rltrain.data.schema import Row
from rltrain.measure.drift.sides import print_logs
from rltrain.measure.replay.compare import compare, not_finite
from rltrain.measure.replay.read import Kept, read
from rltrain.measure.replay.start import ToldStages, config_here, has_engines, restore, start, training_alone
from rltrain.measure.replay.worker import ReplayTrainWorker
from rltrain.measure.report import Tell
from rltrain.records.run_dir import RunDir
from rltrain.workers.fsdp.rank import RankInfo


def run(request: Mapping[str, Any], tell: Tell, worker: type[ReplayTrainWorker] = ReplayTrainWorker) -> dict[str, Any]:
    """Run captured steps again.

    Args:
        request: `capsules`, directories; `checkpoint`: what the step began with, where a capsule holds a part of it
            alone, or null; `each_device`: run the first micro batch on every device of this machine in its place.
        tell: called with `{"stage": …}` before each part, and with `{"partial": …}` after each capsule.
        worker: of the training ranks.

    Returns:
        `rlcheck.facts.step.StepFacts` as plain data.

    Raises:
        UserError: a capsule that cannot be run again here.
        RunFailure: a process failed.
    """
    begun, replays = time.monotonic(), list[Replay]()
    checkpoint = None if not request.get("checkpoint") else Path(request["checkpoint"])
    for path in map(Path, request["capsules"]):
        tell({"stage": f"reading {path.name}"})
        kept = read(path.resolve())
        with tempfile.TemporaryDirectory(prefix="rltrain-replay-") as directory:
            again = _each_device if request.get("each_device") else _again
            replays += again(kept, Path(directory), checkpoint, tell, worker)
        tell({"partial": {"replays": msgspec.to_builtins(replays)}})
    return msgspec.to_builtins(StepFacts(replays=tuple(replays), seconds=round(time.monotonic() - begun, 1)))


def _again(
    kept: Kept, directory: Path, checkpoint: Path | None, tell: Tell, worker: type[ReplayTrainWorker]
) -> list[Replay]:
    """The whole step, once."""
    begun, notes, stages = time.monotonic(), list[str](), ToldStages(tell)
    config = config_here(kept, directory, checkpoint, notes)
    with _cluster(config, directory, stages) as runtime:
        crew = start(config, kept, runtime, Clock(), stages, worker)
        restore(crew, kept, checkpoint)
        with stages.stage(f"step {kept.head.step}"):
            found = step_again(kept, kept.experience(), config, crew, directory, notes)
        crew.close()
    return [_replay(kept, found, notes, begun)]


@contextmanager
def _cluster(config: RunConfig, directory: Path, stages: ToldStages) -> Generator[Runtime]:
    logs = directory / "logs"
    logs.mkdir()
    try:
        with ExitStack() as stack:
            with stages.stage("starting Ray"):
                runtime = stack.enter_context(connect(config, logs, stages.say, stages.still))
            yield runtime
    except (RunFailure, UserError):
        print_logs(logs)
        raise


def _replay(kept: Kept, found: Kept, notes: list[str], begun: float) -> Replay:
    bad, bad_now = not_finite(kept), not_finite(found)
    if bad or bad_now:
        now = "and again now" if bad == bad_now else f"now {f'in {bad_now}' if bad_now else 'nowhere'}"
        notes = [*notes, f"not finite first: {f'in {bad}' if bad else 'nowhere'}, {now}"]
    changed = _changed(kept.head, found.head)
    return Replay(
        path=str(kept.path),
        step=kept.head.step,
        links=compare(kept, found),
        changed=changed,
        notes=tuple(notes),
        seconds=round(time.monotonic() - begun, 1),
    )


def _changed(before: Capsule, now: Capsule) -> tuple[str, ...]:
    """Versions and parts of the machine that are others than in the recorded step."""
    versions = [{**one.versions, "rltrain": one.trainer_version} for one in (before, now)]
    return tuple(
        f"{name} {was[name]} -> {here.get(name, 'none')}"
        for was, here in ((before.machine, now.machine), versions)
        for name in was
        if was[name] != here.get(name)
    )


class _Recorded:
    """Gives the recorded experience in the place of a new one; engines answer the recorded prompts for comparison."""

    def __init__(self, batch: Batch, config: RunConfig, crew: Crew, notes: list[str]) -> None:
        self._batch, self._config, self._crew, self._notes = batch, config, crew, notes

    def collect(self, step: int, _rows: list[Row]) -> tuple[Batch, Metrics]:
        """The batch of the capsule."""
        if has_engines(self._crew):
            try:
                with self._crew.rollout.phase() as rollout:
                    rollout.generate(self._batch.samples, train_sampling(self._config), step)
            except RunFailure as error:  # weights that are not finite, for one: training is run again all the same
                self._notes.append(f"the engine did not answer again: {error}")
        return self._batch, {}


def step_again(kept: Kept, batch: Batch, config: RunConfig, crew: Crew, directory: Path, notes: list[str]) -> Kept:
    """One turn of the trainer's own loop over BATCH, and the capsule that it has written below DIRECTORY.

    What could not be done goes to NOTES.

    Raises:
        UserError: no capsule was written; RunFailure: a process failed.
    """
    head, clock, said, out = kept.head, Clock(), list[str](), RunDir(directory)
    algorithm = Algorithm(config.algorithm, clock)
    if head.kl_coef is not None:
        algorithm.load_state_dict({"value": head.kl_coef})
    data = SimpleNamespace(config=config, tokenizer=tokenizer_of(config), train=_NoData())
    rewards = cast("RewardManager", SimpleNamespace(witness=None))
    capsules = Capsules(cast("Prepared", data), crew, rewards, clock, said.append, None)
    with closing(capsules):
        capsules.on_run_start(RunInfo(config, out, head.total_steps, head.step - 1))
        collector = cast("Collector", _Recorded(batch, config, crew, notes))
        roles = make_roles(crew.train_group, config, clock)
        Loop(roles, collector, algorithm, Callbacks([capsules]), clock, config, nullcontext).train([(head.step, [])])
    place = out.capsules / f"step_{head.step}"
    if not place.is_dir():
        raise UserError(f"{kept.path}: {'; '.join(said) or 'the step that was run again left no capsule'}")
    return read(place)


class _NoData:
    """The data set, which is not read again."""

    files = ()

    def __len__(self) -> int:
        return 0


# Each device


def _each_device(
    kept: Kept, directory: Path, checkpoint: Path | None, tell: Tell, worker: type[ReplayTrainWorker]
) -> list[Replay]:
    """The first micro batch as a step of one rank, on every GPU of this machine, or in as many processes as ranks."""
    begun, notes, stages = time.monotonic(), list[str](), ToldStages(tell)
    config = _one_rank(config_here(kept, directory, checkpoint, notes))
    batch = _first_micro_batch(kept)
    found, names = list[Kept](), list[str]()
    with _cluster(config, directory, stages) as runtime:
        for slot in _slots(config, runtime, kept.head.world_size):
            place = directory / slot.name
            address, port = runtime.rendezvous(slot.node)
            device = "cuda:0" if slot.num_gpus else "cpu"
            info = RankInfo(rank=0, world_size=1, master_addr=address, master_port=port, device=device)
            crew = training_alone(config, (slot,), [(config, info)], kept.head.total_steps, runtime, stages, worker)
            restore(crew, kept, checkpoint)
            names.append(_device_name(crew, slot))
            with stages.stage(f"one micro batch on {names[-1]}"):
                found.append(step_again(kept, batch, config, crew, place, notes))
            crew.close()
    return _odd_ones(kept, found, names, notes, begun)


def _first_micro_batch(kept: Kept) -> Batch:
    """Its rows, and all of their prompts' answers: what estimators compare within a prompt needs them."""
    batch, minis = kept.experience(), kept.head.actor or kept.head.critic
    rows = next((micro.rows for micro in minis[0].micro_batches if micro.rows), ()) if minis else ()
    prompts = {batch.samples[row].uid for row in rows}
    return batch.select([row for row, sample in enumerate(batch.samples) if sample.uid in prompts])


def _one_rank(config: RunConfig) -> RunConfig:
    return replaced(config, trainer=replaced(config.trainer, nnodes=1, n_gpus_per_node=1, num_cpu_ranks=1))


def _slots(config: RunConfig, runtime: Runtime, world_size: int) -> list[Slot]:
    node, on_gpu = runtime.home, config.trainer.device == "cuda"
    count = node.num_gpus if on_gpu else max(world_size, 2)
    if on_gpu and count < 2:
        raise UserError(f"this machine shows {count} GPU: there is nothing to compare it with; rlcheck step --again")
    threads = max(node.num_cpus // count, 1)
    return [Slot("train", number, ("actor",), node, (number,), int(on_gpu), (), threads) for number in range(count)]


def _device_name(crew: Crew, slot: Slot) -> str:
    gpus = crew.train_group.workers.gpus[0]
    kind = crew.facts["training"][0]["device_name"]
    return f"GPU {','.join(gpus)} ({kind})" if gpus else f"process {slot.rank}"


def _odd_ones(kept: Kept, found: list[Kept], names: list[str], notes: list[str], begun: float) -> list[Replay]:
    """Every device against the first of the largest group that agree to the bit."""
    groups: list[list[int]] = []
    for number, one in enumerate(found):
        like = next((group for group in groups if _same(found[group[0]], one)), None)
        if like is None:
            groups.append([number])
        else:
            like.append(number)
    most = max(groups, key=len)
    if len(groups) > 1 and 2 * len(most) <= len(found):
        notes = [*notes, "no result is that of most devices: which of them compute wrongly is not known"]
    seconds = round((time.monotonic() - begun) / len(found), 1)
    return [
        Replay(
            path=str(kept.path),
            step=kept.head.step,
            links=compare(found[most[0]], one),
            device=names[number],
            against=names[most[0]],
            notes=tuple(notes),
            seconds=seconds,
        )
        for number, one in enumerate(found)
    ]


def _same(one: Kept, other: Kept) -> bool:
    return all(link.status == "same" for link in compare(one, other))
