"""AReaL: a YAML, a command line over it, a run with a critic on shared GPUs, and mistakes."""

from tests.measure.config.trainers.planted import Cases, Mistake

TIMER = """\
  experiment_name: ${experiment_name}
  trial_name: ${trial_name}
  fileroot: ${cluster.fileroot}
"""
GRPO = f"""\
experiment_name: some
trial_name: first
total_train_epochs: 10
tokenizer_path: ${{actor.path}}
enable_offload: false
cluster:
  n_nodes: 1
  n_gpus_per_node: 8
  fileroot: /data/areal
scheduler:
  type: local
rollout:
  backend: "sglang:d4t1"
  max_concurrent_rollouts: 256
  consumer_batch_size: ${{train_dataset.batch_size}}
  max_head_offpolicyness: 2
gconfig:
  n_samples: 4
  max_new_tokens: 1024
  temperature: 1.0
actor:
  backend: "fsdp:d2c2"
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  path: Org/Some-1B
  gradient_checkpointing: true
  dtype: bfloat16
  mb_spec:
    max_tokens_per_mb: 10240
  optimizer:
    type: adam
    lr: 1.70e-5
    weight_decay: 0.017
    gradient_clipping: 1.0
  eps_clip: 0.2
  eps_clip_higher: 0.28
  kl_ctl: 0.01
  ppo_n_minibatches: 4
  use_decoupled_loss: true
  rejection_sampling:
    metric: ratio
    upper: 5.0
  reward_norm:
    mean_level: group
    std_level: group
    group_size: ${{gconfig.n_samples}}
  weight_update_mode: xccl
  scheduling_spec:
    - task_type: worker
      gpu: 1
ref:
  backend: ${{actor.backend}}
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  path: ${{actor.path}}
  scheduling_strategy:
    type: colocation
    target: actor
sglang:
  context_length: 32768
  mem_fraction_static: 0.8
train_dataset:
  batch_size: 256
  path: /data/train
  type: rl
  max_length: 512
valid_dataset:
  batch_size: 256
  path: Org/prompts
  type: rl
saver:
{TIMER}  freq_steps: 20
recover:
{TIMER}  mode: disabled
evaluator:
{TIMER}  freq_steps: 10
stats_logger:
{TIMER}  wandb:
    mode: online
    project: ours
"""
SCRIPT = """#!/bin/bash
python3 examples/math/gsm8k_rl.py --config grpo.yaml \\
    scheduler.type=ray trial_name=$TRIAL \\
    actor.backend=megatron:d2t2 rollout.backend=vllm:d2t2 \\
    gconfig.n_samples=8 +actor.c_clip=3.0
"""
CRITIC = (
    GRPO.replace("enable_offload: false", "enable_offload: true")
    .replace("weight_update_mode: xccl", "weight_update_mode: disk")
    .replace("  max_head_offpolicyness: 2\n", "  scheduling_strategy: {type: colocation, target: actor}\n")
    .replace('"fsdp:d2c2"', '"megatron:(attn:d2t2|ffn:e4)"')
    .replace("  reward_norm:\n    mean_level: group\n    std_level: group\n    group_size: ${gconfig.n_samples}\n", "")
    + "critic:\n  backend: ${actor.backend}\n  path: Org/Value-1B\n  optimizer: {lr: 5.0e-6}\n"
)
CASES = Cases(
    configs={"grpo.yaml": GRPO, "run.sh": SCRIPT, "critic.yaml": CRITIC},
    means={
        "grpo.yaml": {
            "version": "1.0.4", "nodes": 1, "gpus_per_node": 4, "rollout_gpus_per_node": 4, "colocated": False,
            "actor.model.path": "Org/Some-1B", "actor.sharding.strategy": "fsdp2", "actor.sharding.dtype": "bfloat16",
            "actor.sharding.sequence_parallel": 2, "actor.mini_batch_size": 64, "actor.max_tokens": 10240,
            "actor.dynamic_batch": True, "actor.optim.lr": 1.7e-5, "actor.clip_ratio_high": 0.28,
            "actor.model.gradient_checkpointing": True, "actor.model.lora_rank": 0, "rollout.name": "sglang",
            "rollout.n": 4, "rollout.memory_utilization": 0.8, "rollout.max_model_len": 32768,
            "data.max_prompt_length": 512, "data.max_response_length": 1024, "data.train_batch_size": 256,
            "data.train_files": ("/data/train",), "data.val_files": (), "algorithm.adv_estimator": "grpo",
            "algorithm.use_kl_in_reward": True, "algorithm.rollout_is": "token", "critic": None, "save_freq": 20,
            "test_freq": 10, "total_epochs": 10, "loggers": ("wandb",), "project": "ours", "rollout.mode": "async",
        },
        "run.sh": {
            "gpus_per_node": 4, "rollout_gpus_per_node": 4, "rollout.name": "vllm", "rollout.tensor_parallel": 2,
            "rollout.n": 8, "actor.sharding.strategy": "megatron", "actor.sharding.tensor_parallel": 2,
            "actor.clip_ratio_c": 3.0, "actor.model.path": "Org/Some-1B",
        },
        "critic.yaml": {
            "colocated": True, "rollout_gpus_per_node": 0, "rollout.sleeps": True, "critic.model.path": "Org/Value-1B",
            "critic.optim.lr": 5e-6, "actor.sharding.strategy": "megatron", "actor.sharding.expert_parallel": 4,
            "algorithm.adv_estimator": "gae",
        },
    },
    without={"grpo.yaml": ("rollout.max_seqs", "rollout.multi_turn")},
    mistakes=(
        Mistake("a misspelt key", "max_new_tokens: 1024", "max_new_token: 1024", "CFG001", "gconfig.max_new_token"),
        Mistake("a key of no section", "  eps_clip: 0.2", "  clip_ratio: 0.2", "CFG001", "actor.clip_ratio"),
        Mistake("a misspelt section", "gconfig:", "gconfg:", "CFG001", "gconfg.n_samples", line="  n_samples: 4"),
        Mistake("a key that only a program of one's own has", "scheduler:", "turns_of_ours: 3\nscheduler:", "CFG001",
                "turns_of_ours", status="info"),
        Mistake("a wrong type", "n_samples: 4", "n_samples: four", "CFG005", "gconfig.n_samples"),
        Mistake("a text that is no flag", "gradient_checkpointing: true", "gradient_checkpointing: always", "CFG005",
                "actor.gradient_checkpointing"),
        Mistake("a wrong choice", "type: adam", "type: adamw", "CFG005", "actor.optimizer.type"),
        Mistake("a size of no training", '"fsdp:d2c2"', '"fsdp:d2x2"', "CFG008", "actor.backend"),
        Mistake("no backend in front of the sizes", '"fsdp:d2c2"', '"d4"', "CFG008", "actor.backend"),
        Mistake("an engine that cannot train", '"fsdp:d2c2"', '"vllm:d4"', "CFG008", "actor.backend"),
        Mistake("a pipeline of FSDP", '"fsdp:d2c2"', '"fsdp:d2p2"', "CFG008", "actor.backend"),
        Mistake("a level of no norm", "std_level: group", "std_level: token", "CFG005", "actor.reward_norm.std_level"),
        Mistake("a bound of ratios below 1", "upper: 5.0", "upper: 0.5", "CFG008", "actor.rejection_sampling.upper"),
        Mistake("contradictory settings", "use_decoupled_loss: true", "use_decoupled_loss: true  # and\n"
                "  use_sapo_loss: true", "CFG008", "actor.use_decoupled_loss", line="# and"),
        Mistake("an interpolation of nothing", "${gconfig.n_samples}", "${gconfig.samples}", "CFG007",
                "actor.reward_norm.group_size", status="warn"),
        Mistake("a key given twice", "  max_head_offpolicyness: 2", "  max_head_offpolicyness: 2\n"
                "  max_head_offpolicyness: 3", "CFG009", "rollout.max_head_offpolicyness",
                line="max_head_offpolicyness: 3"),
        Mistake("a model that is not there", "Org/Some-1B", "/nowhere/model", "CFG030", "actor.path"),
        Mistake("a negative learning rate", "lr: 1.70e-5", "lr: -1.70e-5", "CFG048", "actor.optimizer.lr"),
        Mistake("a temperature of 0", "temperature: 1.0", "temperature: 0.0", "CFG059", "gconfig.temperature"),
        Mistake("weights over the network on shared GPUs", "weight_update_mode: disk", "weight_update_mode: xccl",
                "CFG008", "actor.weight_update_mode", file="critic.yaml"),
        Mistake("shared GPUs without offload", "enable_offload: true", "enable_offload: false", "CFG008",
                "enable_offload", file="critic.yaml"),
        Mistake("an override of no key", "gconfig.n_samples=8", "gconfig.n_sample=8", "CFG001", "gconfig.n_sample",
                file="run.sh"),
    ),
)  # fmt: skip
