"""NeMo-RL: a YAML over another, a command line over both, a run that generates apart, and mistakes."""

from tests.measure.config.trainers.planted import Cases, Mistake

BASE = """\
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 8
  max_num_epochs: 1
  max_num_steps: 100
  normalize_rewards: true
  val_period: 10
  val_at_start: false
  adv_estimator: {name: grpo, normalize_rewards: "${grpo.normalize_rewards}"}
  async_grpo: {enabled: false}
loss_fn:
  reference_policy_kl_penalty: 0.01
  reference_policy_kl_type: k3
  ratio_clip_min: 0.2
  ratio_clip_max: 0.28
  token_level_loss: true
  use_importance_sampling_correction: false
checkpointing:
  enabled: true
  checkpoint_dir: results/run
  save_period: 20
policy:
  model_name: Org/Some-1B
  tokenizer: {name: "${policy.model_name}"}
  train_global_batch_size: 256
  train_micro_batch_size: 4
  logprob_batch_size: ${policy.train_micro_batch_size}
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg:
    enabled: true
    _v2: true
    cpu_offload: false
    sequence_parallel: false
    activation_checkpointing: true
    tensor_parallel_size: 2
    context_parallel_size: 1
    lora_cfg:
      enabled: false
      dim: 8
  megatron_cfg:
    enabled: false
    model_overrides: {anything_of_megatron: 3}
  dynamic_batching: {enabled: false}
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
    logprob_mb_tokens: 8192
    algorithm: modified_first_fit_decreasing
  make_sequence_length_divisible_by: ${policy.dtensor_cfg.tensor_parallel_size}
  max_grad_norm: 1.0
  optimizer:
    name: torch.optim.AdamW
    kwargs:
      lr: 5.0e-6
      weight_decay: 0.01
  generation:
    backend: vllm
    max_new_tokens: 512
    temperature: 1.0
    top_p: 1.0
    top_k: null
    vllm_cfg:
      async_engine: false
      precision: ${policy.precision}
      kv_cache_dtype: auto
      tensor_parallel_size: 1
      pipeline_parallel_size: 1
      expert_parallel_size: 1
      gpu_memory_utilization: 0.6
      max_model_len: ${policy.max_total_sequence_length}
      enforce_eager: false
    vllm_kwargs: {any_argument_of_vllm: true}
    colocated:
      enabled: true
      resources: {gpus_per_node: null, num_nodes: null}
data:
  max_input_seq_length: ${policy.max_total_sequence_length}
  shuffle: true
  train:
    data_path: /data/train.jsonl
    input_key: question
  validation: null
env:
  a_task_of_ours: {num_workers: 4}
logger:
  log_dir: logs
  wandb_enabled: true
  tensorboard_enabled: false
  wandb: {project: some, name: run}
cluster:
  gpus_per_node: 8
  num_nodes: 1
"""
CHILD = """\
defaults: base.yaml
grpo:
  num_prompts_per_step: 64
  async_grpo:
    enabled: true
    max_trajectory_age_steps: 1
loss_fn:
  use_importance_sampling_correction: true
policy:
  train_global_batch_size: 512
  generation:
    vllm_cfg:
      async_engine: true
    colocated:
      enabled: false
      resources:
        gpus_per_node: 4
"""
SCRIPT = """#!/bin/bash
STEPS=${STEPS:-50}
uv run python examples/run_grpo.py --config base.yaml \\
    grpo.max_num_steps=$STEPS \\
    cluster.num_nodes=2 \\
    ++policy.generation.vllm_kwargs.seed=3 \\
    policy.dtensor_cfg.lora_cfg.enabled=true policy.dtensor_cfg.lora_cfg.dim=32 \\
    logger.wandb.name=$RUN \\
    "$@"
"""
CASES = Cases(
    configs={"base.yaml": BASE, "child.yaml": CHILD, "run.sh": SCRIPT},
    means={
        "base.yaml": {
            "nodes": 1, "gpus_per_node": 8, "colocated": True, "actor.model.path": "Org/Some-1B", "rollout.n": 8,
            "data.train_batch_size": 32, "actor.mini_batch_size": 32, "actor.micro_batch_size": 4,
            "actor.dynamic_batch": True, "actor.max_tokens": 4096, "actor.sharding.strategy": "fsdp2",
            "actor.sharding.tensor_parallel": 2, "actor.sharding.dtype": "bfloat16", "actor.optim.lr": 5e-6,
            "actor.clip_ratio_high": 0.28, "rollout.name": "vllm", "rollout.memory_utilization": 0.6,
            "rollout.max_model_len": 1024, "data.max_response_length": 512, "data.train_files": ("/data/train.jsonl",),
            "algorithm.adv_estimator": "grpo", "actor.use_kl_loss": True, "actor.kl_loss_coef": 0.01, "critic": None,
            "total_steps": 100, "save_freq": 20, "test_freq": 10, "loggers": ("wandb",), "project": "some",
            "actor.loss_agg_mode": "token-mean", "actor.model.lora_rank": 0, "rollout.mode": "sync",
        },
        "child.yaml": {
            "nodes": 1, "gpus_per_node": 4, "rollout_gpus_per_node": 4, "rollout_nodes": 0, "colocated": False,
            "data.train_batch_size": 64, "actor.mini_batch_size": 64, "rollout.mode": "async",
            "algorithm.rollout_is": "token", "rollout.n": 8,
        },
        "run.sh": {
            "nodes": 2, "gpus_per_node": 8, "total_steps": 50, "actor.model.lora_rank": 32,
            "actor.model.path": "Org/Some-1B",
        },
    },
    without={"base.yaml": ("data.max_prompt_length", "rollout.max_batched_tokens"), "run.sh": ("experiment",)},
    mistakes=(
        Mistake("a misspelt key", "max_new_tokens: 512", "max_new_token: 512", "CFG001",
                "policy.generation.max_new_token"),
        Mistake("a misspelt section", "checkpointing:", "checkpoint:", "CFG001", "checkpoint.save_period",
                line="  save_period: 20"),
        Mistake("a wrong type", "num_generations_per_prompt: 8", "num_generations_per_prompt: eight", "CFG005",
                "grpo.num_generations_per_prompt"),
        Mistake("a text that is no flag", "token_level_loss: true", "token_level_loss: sometimes", "CFG005",
                "loss_fn.token_level_loss"),
        Mistake("a wrong choice", "backend: vllm", "backend: vlm", "CFG005", "policy.generation.backend"),
        Mistake("a wrong kind of penalty", "kl_type: k3", "kl_type: k4", "CFG005", "reference_policy_kl_type"),
        Mistake("a batch that does not divide", "global_batch_size: 256", "global_batch_size: 200", "CFG008",
                "policy.train_global_batch_size"),
        Mistake("two backends", "  megatron_cfg:\n    enabled: false", "  megatron_cfg:\n    enabled: true  # too",
                "CFG008", "policy.megatron_cfg.enabled", line="# too"),
        Mistake("two ways to fill batches", "dynamic_batching: {enabled: false}", "dynamic_batching: {enabled: true}",
                "CFG008", "policy.dynamic_batching.enabled"),
        Mistake("ranks that do not divide", "    tensor_parallel_size: 2", "    tensor_parallel_size: 3", "CFG008",
                "policy.dtensor_cfg.tensor_parallel_size"),
        Mistake("an interpolation of nothing", "${policy.precision}", "${policy.precison}", "CFG007",
                "policy.generation.vllm_cfg.precision", status="warn"),
        Mistake("a model that is not there", "model_name: Org/Some-1B", "model_name: /nowhere/model", "CFG030",
                "policy.model_name"),
        Mistake("data that is not there", "/data/train.jsonl", "/nowhere.jsonl", "CFG065", "data.train.data_path"),
        Mistake("a temperature of 0", "temperature: 1.0", "temperature: 0.0", "CFG059",
                "policy.generation.temperature"),
        Mistake("a key given twice", "  save_period: 20", "  save_period: 20\n  save_period: 30", "CFG009",
                "checkpointing.save_period", line="save_period: 30"),
        Mistake("no GPU that generates", "        gpus_per_node: 4", "        gpus_per_node: 8", "CFG008",
                "policy.generation.colocated.resources.gpus_per_node", file="child.yaml"),
        Mistake("asynchronous without correction", "correction: true", "correction: false", "CFG008",
                "loss_fn.use_importance_sampling_correction", file="child.yaml"),
        Mistake("asynchronous with a synchronous engine", "async_engine: true", "async_engine: false", "CFG008",
                "policy.generation.vllm_cfg.async_engine", file="child.yaml"),
        Mistake("an override of no key", "cluster.num_nodes=2", "cluster.num_node=2", "CFG001", "cluster.num_node",
                file="run.sh"),
    ),
)  # fmt: skip
