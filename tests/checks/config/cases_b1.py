"""Cases of CFG001 to CFG029: keys, batches, parallelism, placement, estimators, schedule, verl's trainers."""

from __future__ import annotations

from rlcheck.facts.config import KeyProblem, RewardSpec
from rlcheck.facts.document import Facts
from tests.checks.config.build import QWEN, facts, place

HEALTHY = facts()
PER_GPU = "_micro_batch_size_per_gpu"
MICRO = {
    f"actor_rollout_ref.actor.ppo{PER_GPU}": 4,
    f"actor_rollout_ref.rollout.log_prob{PER_GPU}": 4,
    f"critic.ppo{PER_GPU}": 4,
}
SEPARATE = {
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 4,
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 8,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl",
}
NAIVE = SEPARATE | {"actor_rollout_ref.rollout.checkpoint_engine.backend": "naive"}
SECOND = {"nodes": 2}
SANDBOX = "reward.sandbox_fusion.url"


def problem(
    kind: str, key: str = "trainer.n_gpu", message: str = "no such key", *instead: str, text: str = ""
) -> Facts:
    """A config in which one key has one problem."""
    where = place(text=text) if text else place(12, 5)
    return facts(problems=(KeyProblem(kind=kind, key=key, message=message, instead=instead, place=where),))


CASES: dict[str, tuple[Facts, Facts]] = {
    "CFG001": (problem("unknown", "trainer.n_gpu", "no such key", "trainer.n_gpus_per_node"), HEALTHY),
    "CFG002": (problem("moved", "reward_model.enable", "moved in 0.8.0", "reward.reward_model.enable"), HEALTHY),
    "CFG003": (problem("deprecated", "data.val_batch_size", "has no effect"), HEALTHY),
    "CFG004": (problem("foreign", "toy.num_digits", "rltrain's alone"), HEALTHY),
    "CFG005": (problem("type", "data.train_batch_size", "expected a whole number, found 'many'"), HEALTHY),
    "CFG006": (problem("missing", "actor_rollout_ref.rollout.name", "must be given"), HEALTHY),
    "CFG007": (problem("unresolved", "trainer.project_name", "${oc.env:PROJECT} is not set"), HEALTHY),
    "CFG008": (problem("refused", "reward_model", "nothing scores the responses"), HEALTHY),
    "CFG009": (problem("syntax", "actor.optim", "occurs twice, first in line 3"), HEALTHY),
    "CFG075": (problem("off", "critic.nccl_timeout", "is read nowhere"), HEALTHY),
    "CFG010": (facts({"data.train_batch_size": 1021}), HEALTHY),
    "CFG011": (facts({"actor.mini_batch_size": 2048}), HEALTHY),
    "CFG012": (facts(values={key: MICRO[key] for key in list(MICRO)[1:]}), facts(values=MICRO)),
    "CFG013": (
        facts({"actor.dynamic_batch": True, "actor.model.remove_padding": False}),
        facts({"actor.dynamic_batch": True}, values={"actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True}),
    ),
    "CFG014": (facts({"actor.micro_batch_size": 5}), HEALTHY),
    "CFG015": (
        facts({"actor.dynamic_batch": True, "actor.max_tokens": 1000}),
        facts({"actor.dynamic_batch": True, "actor.max_tokens": 512, "actor.sharding.sequence_parallel": 2}),
    ),
    "CFG016": (
        facts({"actor.sharding.sequence_parallel": 8}, models={"actor": QWEN}),
        facts({"actor.sharding.sequence_parallel": 4}, models={"actor": QWEN}),
    ),
    "CFG017": (facts({"actor.sharding.shard_size": 3}), facts({"actor.sharding.shard_size": 4})),
    "CFG018": (facts({"rollout.tensor_parallel": 3}), facts({"nodes": 2, "rollout.tensor_parallel": 16})),
    "CFG019": (facts({"rollout.tensor_parallel": 8}, models={"actor": QWEN}), facts(models={"actor": QWEN})),
    "CFG020": (facts(num_gpus=4), facts(num_gpus=8)),
    "CFG021": (
        facts(SECOND, values={SANDBOX: "http://localhost:8080/run"}, given={SANDBOX: place(7, 3)}),
        facts(values={SANDBOX: "http://localhost:8080/run"}, given={SANDBOX: place(7, 3)}),
    ),
    "CFG022": (facts({"rollout.mode": "sync"}), HEALTHY),
    "CFG023": (facts({"rollout.expert_parallel": 4}), facts({"rollout.expert_parallel": 2})),
    "CFG024": (
        facts({"algorithm.adv_estimator": "grpo", "critic": None}),
        facts({"algorithm.adv_estimator": "grpo", "critic": None, "rollout.n": 8}),
    ),
    "CFG025": (facts({"algorithm.adv_estimator": "grpo", "rollout.n": 8}), HEALTHY),
    "CFG026": (facts({"save_freq": 500}), facts({"save_freq": 20})),
    "CFG027": (facts({"critic_warmup": 100}), facts({"critic_warmup": 10})),
    "CFG028": (facts({"data.train_max_samples": 1000}), facts({"data.train_max_samples": 1024})),
    "CFG029": (facts(values=NAIVE), facts(values=SEPARATE)),
}
ENDPOINTS = {"nodes": 2, "reward": RewardSpec(endpoints=("127.0.0.1:8000",))}
OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "CFG075": (problem("moot", "algorithm.lam", "has no effect with algorithm.adv_estimator=grpo"),),
    "CFG021": (facts(ENDPOINTS),),
    "CFG024": (facts({"critic": None}),),
    "CFG027": (facts({"critic": None, "critic_warmup": 5, "algorithm.adv_estimator": "reinforce_plus_plus"}),),
}
