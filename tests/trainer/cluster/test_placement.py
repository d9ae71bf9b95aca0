"""The placement plan: what every plan has to fulfil, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrain.cluster.placement import Node, Placement, Slot, nodes_as_asked, plan, plan_engines, plan_ranks
from rltrain.config.schema.actor import ActorConfig, ActorRolloutRefConfig, CriticConfig
from rltrain.config.schema.reward import RewardModelConfig
from rltrain.config.schema.rollout import RolloutConfig
from rltrain.config.schema.run import RunConfig, TrainerConfig
from rltrain.core.errors import UserError


def config(
    device: str = "cuda",
    nnodes: int = 1,
    ranks: int = 1,
    tp: int = 1,
    replicas: int | None = None,
    hybrid: bool = True,
    rollout_nodes: int = 0,
    rollout_gpus: int = 0,
) -> RunConfig:
    rollout = RolloutConfig(
        name="vllm",
        tensor_model_parallel_size=tp,
        num_replicas=replicas,
        nnodes=rollout_nodes,
        n_gpus_per_node=rollout_gpus,
    )
    return RunConfig(
        actor_rollout_ref=ActorRolloutRefConfig(hybrid_engine=hybrid, rollout=rollout),
        trainer=TrainerConfig.model_validate({"device": device, "nnodes": nnodes, "n_gpus_per_node": ranks}),
    )


def gpus_of(slot: Slot) -> set[tuple[str, int]]:
    return {(slot.node.name, device) for device in slot.devices}


@st.composite
def gpu_runs(draw: st.DrawFn) -> RunConfig:
    tp = draw(st.sampled_from([1, 2, 4]))
    hybrid = draw(st.booleans())
    ranks = draw(st.integers(tp, 8)) if hybrid else draw(st.integers(1, 8))
    return config(
        nnodes=draw(st.integers(1, 3)),
        ranks=ranks,
        tp=tp,
        hybrid=hybrid,
        rollout_nodes=draw(st.integers(0, 2)),
        rollout_gpus=draw(st.integers(tp, 8)),
    )


@given(run=gpu_runs(), spare=st.integers(0, 2))
@settings(max_examples=300)
def test_every_gpu_plan(run: RunConfig, spare: int) -> None:
    asked = nodes_as_asked(run, 64)
    nodes = [*asked, *(Node(f"spare {i}", 8, 64) for i in range(spare))]
    placed = plan(run, nodes)
    rollout = run.actor_rollout_ref.rollout
    ranks = run.trainer.n_gpus_per_node
    assert ranks is not None
    train = [gpu for slot in placed.train for gpu in gpus_of(slot)]
    engines = [gpu for slot in placed.rollout for gpu in gpus_of(slot)]
    # No device twice within a kind, and each device exists.
    assert len(train) == len({*train}) == run.trainer.nnodes * ranks
    assert len(engines) == len({*engines})
    counts = {node.name: node.num_gpus for node in nodes}
    assert all(device < counts[name] for name, device in train + engines)
    # Ranks are numbered in the order of nodes; a tensor-parallel group has its size, inside one node.
    assert [slot.rank for slot in placed.train] == list(range(len(placed.train)))
    assert [slot.rank for slot in placed.rollout] == list(range(len(placed.rollout)))
    assert all(len(slot.devices) == rollout.tensor_model_parallel_size for slot in placed.rollout)
    if run.actor_rollout_ref.hybrid_engine:
        for slot in placed.rollout:
            assert slot.num_gpus == 0
            assert set().union(*(gpus_of(placed.train[rank]) for rank in slot.shares)) == gpus_of(slot)
    else:
        assert not {*train} & {*engines}
        assert all(slot.num_gpus == len(slot.devices) and not slot.shares for slot in placed.rollout)
    # What is reserved from Ray fits each node.
    for node in nodes:
        slots = [slot for slot in (*placed.train, *placed.rollout) if slot.node is node]
        assert sum(slot.num_gpus for slot in slots) <= node.num_gpus
        assert sum(slot.num_threads for slot in slots if slot.kind == "train") <= node.num_cpus


@given(
    ranks=st.integers(1, 4),
    nnodes=st.integers(1, 3),
    tp=st.integers(1, 3),
    replicas=st.integers(1, 5),
    hybrid=st.booleans(),
)
def test_every_cpu_plan(ranks: int, nnodes: int, tp: int, replicas: int, hybrid: bool) -> None:
    run = config("cpu", nnodes, ranks, tp, replicas, hybrid)
    placed = plan(run, nodes_as_asked(run, 8))
    assert len(placed.train) == ranks * nnodes
    assert len(placed.rollout) == replicas
    engines = [gpu for slot in placed.rollout for gpu in gpus_of(slot)]
    assert len(engines) == len({*engines}) == replicas * tp
    assert not any(slot.num_gpus or slot.shares for slot in (*placed.train, *placed.rollout))
    assert all(slot.num_threads >= 1 for slot in (*placed.train, *placed.rollout))


@given(ranks=st.integers(1, 4), tp=st.integers(1, 2), replicas=st.integers(1, 4), nodes=st.integers(1, 3))
def test_engines_apart_on_cpus_share_no_slot_and_no_core_with_ranks(
    ranks: int, tp: int, replicas: int, nodes: int
) -> None:
    run = config("cpu", nodes, ranks, tp, replicas, hybrid=False)
    placed = plan(run, nodes_as_asked(run, 32))
    train = {gpu for slot in placed.train for gpu in gpus_of(slot)}
    assert not train & {gpu for slot in placed.rollout for gpu in gpus_of(slot)}
    for node in {slot.node.name: slot.node for slot in placed.train}.values():
        slots = [slot for slot in (*placed.train, *placed.rollout) if slot.node is node]
        assert sum(slot.num_threads * len(slot.devices) for slot in slots) <= node.num_cpus


def test_engines_on_cpu_nodes_of_their_own() -> None:
    run = config("cpu", 1, 2, replicas=2, hybrid=False, rollout_nodes=1)
    placed = plan(run, nodes_as_asked(run, 8))
    assert [slot.node.name for slot in (*placed.train, *placed.rollout)] == ["node 0"] * 2 + ["node 1"] * 2
    assert [slot.num_threads for slot in (*placed.train, *placed.rollout)] == [4] * 4
    assert "rollout wants 1 node, found no node" in refused(run, [Node("here", 0, 8)])


@pytest.mark.parametrize(
    ("run", "nearest"),
    [
        (config(ranks=8), "trainer.n_gpus_per_node=4"),
        (config(ranks=3, hybrid=False, rollout_gpus=2), "trainer.n_gpus_per_node=2"),
        (config(nnodes=2, ranks=4), "trainer.nnodes=1"),
        (config(ranks=4, hybrid=False, rollout_nodes=1, rollout_gpus=4), ""),
        (config(ranks=2, hybrid=False, rollout_gpus=4), ""),
    ],
)
def test_the_nearest_that_fits_is_named(run: RunConfig, nearest: str) -> None:
    said = refused(run, [Node("a", 4, 64)])
    _, _, named = said.partition("the nearest that fits is ")
    assert named == nearest


def refused(run: RunConfig, nodes: list[Node]) -> str:
    with pytest.raises(UserError) as caught:
        plan(run, nodes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.row("F12")
def test_too_few_gpus() -> None:
    nodes = [Node("a", 8, 64), Node("b", 4, 64)]
    assert refused(config(nnodes=2, ranks=8), nodes).startswith(
        "training wants 2 nodes with 8 GPUs each, found a: 8, b: 4: lower trainer.nnodes or trainer.n_gpus_per_node"
    )
    assert "found no node" in refused(config(), [])
    beside = config(ranks=4, hybrid=False, rollout_gpus=5)
    assert "wants 1 node with 9 GPUs each" in refused(beside, nodes)
    apart = config(ranks=8, hybrid=False, rollout_nodes=1, rollout_gpus=8)
    assert refused(apart, nodes).startswith("rollout wants 1 node with 8 GPUs each, found b: 4: lower actor_rollout")


def test_tensor_parallel_groups_stay_in_a_node() -> None:
    nodes = [Node("a", 2, 64), Node("b", 2, 64)]
    assert "tensor_model_parallel_size=4 does not fit into a node: rollout has 2 GPUs" in refused(
        config(nnodes=2, ranks=2, tp=4), nodes
    )


@pytest.mark.row("F12")
def test_engines_would_overlap() -> None:
    assert "num_replicas=3 of 2 GPUs each would overlap: rollout's GPUs hold 2" in refused(
        config(ranks=4, tp=2, replicas=3), [Node("a", 4, 64)]
    )


def test_rollout_without_gpus() -> None:
    assert "n_gpus_per_node is 0" in refused(config(hybrid=False), [Node("a", 4, 64)])


def test_table() -> None:
    run = config(ranks=2, tp=2)
    run = run.model_copy(
        update={
            "critic": CriticConfig(enable=True),
            "reward_model": RewardModelConfig(enable=True),
            "actor_rollout_ref": run.actor_rollout_ref.model_copy(update={"actor": ActorConfig(use_kl_loss=True)}),
        }
    )
    placed: Placement = plan(run, [Node("a", 2, 16)])
    assert placed.rows() == [
        *((role, "a", "GPU 0", "train-0") for role in ("actor", "ref", "critic", "reward model")),
        *((role, "a", "GPU 1", "train-1") for role in ("actor", "ref", "critic", "reward model")),
        ("vllm", "a", "GPU 0,1", "rollout-0"),
    ]
    assert plan(config("cpu"), [Node("a", 0, 2)]).rows() == [
        ("actor", "a", "CPU slot 0", "train-0"),
        ("vllm", "a", "CPU slot 0", "rollout-0"),
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_alone_lie_where_they_lie_beside_engines(device: str) -> None:
    asked = config(device, nnodes=2, ranks=2)
    nodes = nodes_as_asked(asked, 8)
    assert plan_ranks(asked, nodes).train == plan(asked, nodes).train
    assert plan_ranks(asked, nodes).rollout == ()


def test_engines_alone_hold_the_gpus_that_they_would_share() -> None:
    asked = config(nnodes=2, ranks=4, tp=2, replicas=4)
    nodes = nodes_as_asked(asked, 8)
    shared, alone = plan(asked, nodes).rollout, plan_engines(asked, nodes)
    assert [gpus_of(slot) for slot in alone] == [gpus_of(slot) for slot in shared]
    assert [slot.num_gpus for slot in shared] == [0] * 4
    assert [(slot.num_gpus, slot.shares) for slot in alone] == [(2, ())] * 4


def test_engines_alone_need_the_gpus_of_rollout_only() -> None:
    asked = config(ranks=6, hybrid=False, rollout_gpus=2, replicas=2)
    assert [slot.num_gpus for slot in plan_engines(asked, [Node("small", 2, 8)])] == [1, 1]
    with pytest.raises(UserError, match=r"rollout wants 1 node with 2 GPUs each, found small: 1"):
        plan_engines(asked, [Node("small", 1, 8)])
    assert [slot.devices for slot in plan_engines(config("cpu"), [Node("here", 0, 2)])] == [(0,)]
