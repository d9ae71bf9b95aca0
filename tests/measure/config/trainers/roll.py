"""ROLL: a YAML of its RLVR pipeline, one of its agentic pipeline, and mistakes."""

from tests.measure.config.trainers.planted import Cases, Mistake

RLVR = """\
hydra:
  run: {dir: .}
exp_name: some
output_dir: ./output
track_with: tensorboard
num_gpus_per_node: 8
max_steps: 500
save_steps: 100
eval_steps: 10
rollout_batch_size: 64
prompt_length: 2048
response_length: 4096
num_return_sequences_in_group: 8
ppo_epochs: 1
adv_estimator: grpo
norm_std_type: group
use_kl_loss: true
kl_loss_coef: 0.001
loss_agg_mode: seq-mean-token-mean
async_generation_ratio: 0
pretrain: Org/Some-1B
actor_train:
  model_args:
    disable_gradient_checkpointing: false
    dtype: bf16
  training_args:
    learning_rate: 1.0e-6
    weight_decay: 0
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 32
  data_args:
    template: qwen3
    file_name: [data/math.jsonl]
  strategy_args:
    strategy_name: megatron_train
    strategy_config:
      tensor_model_parallel_size: 2
  device_mapping: list(range(0,8))
  num_gpus_per_worker: 1
  infer_batch_size: 4
actor_infer:
  model_args:
    dtype: bf16
  generating_args:
    max_new_tokens: ${response_length}
    top_p: 0.99
    top_k: 100
    temperature: 0.99
  strategy_args:
    strategy_name: vllm
    strategy_config:
      gpu_memory_utilization: 0.8
      max_model_len: 8000
  device_mapping: list(range(0,8))
  num_gpus_per_worker: 1
reference:
  strategy_args:
    strategy_name: megatron_infer
  device_mapping: list(range(0,8))
rewards:
  math_rule:
    worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
    tag_included: [some]
    world_size: 8
"""
AGENTIC = """\
exp_name: other
rollout_batch_size: 128
sequence_length: 8192
adv_estimator: gigpo
pretrain: Org/Some-1B
actor_train:
  strategy_args:
    strategy_name: fsdp2_train
  device_mapping: list(range(0,4))
actor_infer:
  strategy_args:
    strategy_name: sglang
  device_mapping: list(range(4,8))
train_env_manager:
  max_env_num_per_worker: 16
  group_size: 8
"""
CASES = Cases(
    configs={"rlvr.yaml": RLVR, "agentic.yaml": AGENTIC},
    means={
        "rlvr.yaml": {
            "version": "0.3.0", "nodes": 1, "gpus_per_node": 8, "colocated": True, "rollout_gpus_per_node": 0,
            "actor.model.path": "Org/Some-1B", "actor.sharding.strategy": "megatron", "actor.optim.lr": 1e-6,
            "actor.sharding.tensor_parallel": 2, "actor.sharding.dtype": "bfloat16", "actor.micro_batch_size": 1,
            "actor.model.gradient_checkpointing": True, "actor.use_kl_loss": True, "actor.kl_loss_coef": 0.001,
            "rollout.name": "vllm", "rollout.n": 8, "rollout.memory_utilization": 0.8, "rollout.max_model_len": 8000,
            "data.max_prompt_length": 2048, "data.max_response_length": 4096, "data.train_batch_size": 64,
            "algorithm.adv_estimator": "grpo", "critic": None, "save_freq": 100, "test_freq": 10, "total_steps": 500,
        },
        "agentic.yaml": {
            "gpus_per_node": 4, "rollout_gpus_per_node": 4, "colocated": False, "rollout.name": "sglang",
            "rollout.multi_turn": True, "actor.sharding.strategy": "fsdp2", "data.train_batch_size": 128,
        },
    },
    mistakes=(
        Mistake("a misspelt key", "rollout_batch_size: 64", "rollout_batchsize: 64", "CFG001", "rollout_batchsize"),
        Mistake("a misspelt key of a role", "learning_rate: 1.0e-6", "learning_rates: 1.0e-6", "CFG001",
                "actor_train.training_args.learning_rates"),
        Mistake("a misspelt section", "actor_infer:", "actor_infr:", "CFG001", "actor_infr.generating_args.top_p",
                line="    top_p: 0.99"),
        Mistake("a key that nothing reads", "    template: qwen3", "    template: qwen3\n    dataset_dir: data",
                "CFG001", "actor_train.data_args.dataset_dir", line="dataset_dir: data", status="info"),
        Mistake("a wrong type", "rollout_batch_size: 64", "rollout_batch_size: many", "CFG005", "rollout_batch_size"),
        Mistake("a text that is no flag", "use_kl_loss: true", "use_kl_loss: always", "CFG005", "use_kl_loss"),
        Mistake("a wrong choice", "adv_estimator: grpo", "adv_estimator: rloo", "CFG005", "adv_estimator"),
        Mistake("a strategy that is none", "strategy_name: vllm", "strategy_name: vlm", "CFG005",
                "actor_infer.strategy_args.strategy_name"),
        Mistake("a ratio below 1", "async_generation_ratio: 0", "async_generation_ratio: 0.5", "CFG008",
                "async_generation_ratio"),
        Mistake("workers that do not fill their GPUs", "list(range(0,8))\n  num_gpus_per_worker: 1\n  infer",
                "list(range(0,8))  # eight\n  num_gpus_per_worker: 3\n  infer", "CFG008", "actor_train.device_mapping",
                line="# eight"),
        Mistake("two profilers", "max_steps: 500", "profiler_timeline: true\nprofiler_memory: true\nmax_steps: 500",
                "CFG008", "profiler_memory", line="profiler_memory"),
        Mistake("two distillations", "max_steps: 500", "is_pure_opd: true\nuse_opd: true\nmax_steps: 500", "CFG008",
                "use_opd", line="use_opd"),
        Mistake("lengths of evaluation by half", "max_steps: 500", "val_prompt_length: 512\nmax_steps: 500", "CFG008",
                "val_prompt_length"),
        Mistake("an interpolation of nothing", "${response_length}", "${response_len}", "CFG007",
                "actor_infer.generating_args.max_new_tokens", status="warn"),
        Mistake("a key given twice", "save_steps: 100", "save_steps: 100\nsave_steps: 200", "CFG009", "save_steps",
                line="save_steps: 200"),
        Mistake("a model that is not there", "Org/Some-1B", "/nowhere/model", "CFG030", "pretrain"),
        Mistake("a negative learning rate", "learning_rate: 1.0e-6", "learning_rate: -1.0e-6", "CFG048",
                "actor_train.training_args.learning_rate"),
        Mistake("a temperature of 0", "temperature: 0.99", "temperature: 0.0", "CFG059",
                "actor_infer.generating_args.temperature"),
        Mistake("more GPUs than there are", "", "", "CFG020", "actor_train.device_mapping", num_gpus=4,
                line="  device_mapping: list(range(0,8))"),
    ),
)  # fmt: skip
