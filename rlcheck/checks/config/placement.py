"""Where things run: engines on GPUs, GPUs on machines, addresses between machines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlcheck.check import Verdict, check, skip
from rlcheck.checks.config.say import Case, conclude, config_of, for_verl_alone
from rlcheck.facts.base import need
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_verl, nearest_divisor, stops, value, who, whole, world_size
from rlcheck.measure.config.engines import VERL, traits_of

_LOOPBACK = re.compile(r"(?:^|//|@)(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]|0\.0\.0\.0)(?::\d+|/|$)", re.I)


def _engine(run: ConfigFacts) -> int:
    """GPUs of one engine."""
    rollout = run.spec.rollout
    return max(1, rollout.tensor_parallel) * max(1, rollout.data_parallel) * max(1, rollout.pipeline_parallel)


def _pool(run: ConfigFacts) -> tuple[int, int, str]:
    """GPUs on which engines run, those of one node, and whose they are."""
    spec = run.spec
    if spec.colocated or not spec.rollout_gpus_per_node:
        return world_size(run), max(1, spec.gpus_per_node), "training"
    nodes = spec.rollout_nodes or spec.nodes
    return max(1, nodes) * spec.rollout_gpus_per_node, spec.rollout_gpus_per_node, "rollout"


def pool_cases(run: ConfigFacts) -> Iterator[Case]:
    """Whole engines fit on the GPUs, and none straddles two nodes."""
    if run.spec.device != "cuda" and not is_verl(run):
        return
    if value(run, "actor_rollout_ref.rollout.disaggregation.enabled", False):
        return  # prefill and decode have sizes of their own
    engine, field = _engine(run), "rollout.tensor_parallel"
    (gpus, per_node, whose), tensor = _pool(run), max(1, run.spec.rollout.tensor_parallel)
    found = f"{engine} GPUs an engine" if engine != tensor else str(tensor)
    if gpus % engine:
        words = f"engines that divide the {gpus} {whose} GPUs ({who(run)} refuses others)"
        yield Case(
            stops(run, "CFG018"), field, words, found, nearest_divisor(gpus, tensor) if engine == tensor else None
        )
    elif engine > per_node and engine % per_node:
        yield Case(stops(run, "CFG018"), field, f"engines of whole nodes, {per_node} GPUs each", found)
    elif engine < per_node and per_node % engine:
        words = f"a divisor of the {per_node} GPUs of a node, so that no engine straddles two"
        yield Case("warn", field, words, found, nearest_divisor(per_node, tensor) if engine == tensor else None)


@check("CFG018", "Engines fit on their GPUs", needs=("config",), playbook="rollout-parallel",
       problem="The engines do not fit on their GPUs")  # fmt: skip
def engines_on_gpus(facts: Facts) -> Verdict:
    """Divides the GPUs of rollout by those of one engine (tensor × data × pipeline parallel).

    What it does:
        The GPUs must be a multiple of an engine's, and an engine should stay in its node or take whole nodes. verl's
        default tensor_model_parallel_size is 2, which a run on one GPU must change.

    Why it matters:
        verl stops after the models are loaded: "rollout world_size: 1 is not divisible by infer_world_size: 2". An
        engine across two nodes talks over the network in each layer.
    """
    return conclude(run := config_of(facts), list(pool_cases(run)), "whole engines fit on the GPUs")


def _wanted(run: ConfigFacts) -> int:
    """GPUs that the run takes on each node."""
    spec, wanted = run.spec, max(0, run.spec.gpus_per_node)
    if not spec.colocated and not spec.rollout_nodes:
        wanted += spec.rollout_gpus_per_node
    return wanted


def _pools(run: ConfigFacts) -> dict[str, int]:
    """Further pools of verl, and the GPUs of each."""
    spec, distillation = run.spec, "distillation"
    teachers = whole(run, f"{distillation}.n_gpus_per_node") * whole(run, f"{distillation}.nnodes")
    own = {"a reference": spec.ref, "a critic": spec.critic, "a reward model": spec.reward_model}
    pools = {**{name: role.own_gpus for name, role in own.items() if role is not None},
             "teachers": teachers if value(run, f"{distillation}.enabled", False) is True else 0}  # fmt: skip
    return {name: gpus for name, gpus in pools.items() if gpus > 0}


def gpu_cases(run: ConfigFacts, here: int) -> Iterator[Case]:
    """A run on one node takes no more GPUs than the machine has."""
    pools = _pools(run)
    wanted = _wanted(run) + sum(pools.values())
    if wanted <= here:
        return
    parts = " + ".join([f"{run.spec.gpus_per_node} to train",
                        *([f"{run.spec.rollout_gpus_per_node} for rollout"] if not run.spec.colocated else []),
                        *(f"{gpus} for {name}" for name, gpus in pools.items())])  # fmt: skip
    yield Case("fail", "gpus_per_node", f"at most the {here} GPUs of this machine", f"{wanted} ({parts})",
               here if not pools and run.spec.colocated else None)  # fmt: skip


@check("CFG020", "The run fits on this machine's GPUs", needs=("config",), playbook="ray-run-does-not-fit",
       problem="The run wants more GPUs than this machine has")  # fmt: skip
def enough_gpus(facts: Facts) -> Verdict:
    """Compares the GPUs that a run on one node takes with those that this machine shows.

    What it does:
        Adds training GPUs, GPUs for rollout alone and pools of reward or teacher models. Says nothing of runs on
        several nodes, of a Ray cluster elsewhere, and of a machine without any GPU, where the config is only read.

    Why it matters:
        Ray waits for GPUs that never come: the run hangs at "Waiting for register center" or in a placement group that
        stays pending, without an error.
    """
    run = config_of(facts)
    if run.spec.nodes > 1 or run.spec.rollout_nodes > 0 or run.spec.ray_address:
        return skip("the run is not on this machine alone; `rlcheck ray --nodes N --gpus-per-node M` asks its cluster")
    if run.spec.device != "cuda":
        return skip(f"the run is on {run.spec.device}")
    here = need(run.num_gpus)
    return conclude(run, list(gpu_cases(run, here)), f"{_wanted(run)} of {here} GPUs")


def address_cases(run: ConfigFacts) -> Iterator[Case]:
    """Addresses that lead every node to itself."""
    nodes = run.spec.nodes + (0 if run.spec.colocated else run.spec.rollout_nodes)
    if nodes < 2:
        return
    texts = {name: found for name in run.given if isinstance(found := run.values.get(name), str)}
    for text in run.spec.reward.endpoints:
        if text not in texts.values():
            texts["reward.endpoints"] = text
    for name, text in texts.items():
        # Ray's own address is read on the head alone.
        if _LOOPBACK.search(text.strip()) and not name.startswith("ray_kwargs."):
            words = f"an address that all {nodes} nodes can reach"
            yield Case("warn", name, words, f"{text}, which on each node is that node itself")


@check("CFG021", "No address of a run on several nodes is loopback", needs=("config",), playbook="loopback-endpoint",
       problem="An address of a run on several nodes is loopback")  # fmt: skip
def loopback(facts: Facts) -> Verdict:
    """Looks for localhost and 127.0.0.1 among the addresses of a run on several nodes.

    What it does:
        Looks at every address that the config gives: reward services, sandboxes, engines.

    Why it matters:
        127.0.0.1 is another machine on every node. Workers beside the server get answers and all others "connection
        refused", so that some rewards are missing, or a rollout returns nothing.
    """
    return conclude(run := config_of(facts), list(address_cases(run)), "no address is loopback")


def engine_mode_cases(run: ConfigFacts) -> Iterator[Case]:
    """verl's rules for the rollout engine alone."""
    rollout = run.spec.rollout
    if not is_verl(run):
        return
    if rollout.mode == "sync":
        yield Case("fail", "rollout.mode", f"async ({who(run)} refuses sync, which was removed)", "sync", "async")
    elif rollout.mode != "async":
        yield Case("warn", "rollout.mode", "async, the only mode there is", rollout.mode, "async")


@check("CFG022", "The rollout mode still exists", needs=("config",), playbook="rollout-mode",
       problem="The rollout mode no longer exists")  # fmt: skip
def rollout_mode(facts: Facts) -> Verdict:
    """Looks at rollout.mode.

    What it does:
        verl 0.7 and later know async alone.

    Why it matters:
        Scripts of 2025 set mode=sync, and verl now refuses it: "Rollout mode 'sync' has been removed".
    """
    for_verl_alone(run := config_of(facts))
    return conclude(run, list(engine_mode_cases(run)), f"rollout.mode={run.spec.rollout.mode}")


def split_cases(run: ConfigFacts) -> Iterator[Case]:
    """Expert, pipeline and MoE-tensor parallel sizes of the engine that verl takes."""
    rollout, expert = run.spec.rollout, run.spec.rollout.expert_parallel
    if not is_verl(run):
        return
    engine = traits_of(rollout.name)
    product = max(1, rollout.tensor_parallel) * max(1, rollout.data_parallel)
    if not engine.splits_experts and expert > 1 and expert != product:
        words = f"tensor × data parallel = {product}, or 1 ({who(run)} refuses other sizes)"
        yield Case("fail", "rollout.expert_parallel", words, str(expert), product)
    if rollout.pipeline_parallel > 1 and rollout.name in VERL:
        words = f"1 with {rollout.name} ({who(run)} has no pipeline parallel rollout)"
        yield Case("fail", "rollout.pipeline_parallel", words, str(rollout.pipeline_parallel), 1)
    experts = "actor_rollout_ref.rollout.moe_tensor_parallel_size"
    if whole(run, experts, 1) > 1 and not engine.splits_experts:
        yield Case(
            "fail", experts, f"1 with {rollout.name} ({who(run)} has it for trtllm)", str(whole(run, experts)), 1
        )


@check("CFG023", "The engine's other parallel sizes are possible", needs=("config",), playbook="rollout-parallel",
       problem="A parallel size of the engine is not possible")  # fmt: skip
def other_sizes(facts: Facts) -> Verdict:
    """Looks at expert and pipeline parallel of rollout.

    What it does:
        verl takes an expert parallel size of 1 or of tensor × data parallel, no pipeline parallel, and a separate
        tensor parallel of experts for TensorRT-LLM alone.

    Why it matters:
        Workers stop with an assertion when the rollout is built, after the actor has been loaded.
    """
    for_verl_alone(run := config_of(facts))
    return conclude(run, list(split_cases(run)), "the engine's sizes are possible")
