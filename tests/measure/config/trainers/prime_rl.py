"""prime-rl: a TOML file, one over another with options behind it, and mistakes."""

from tests.measure.config.trainers.planted import Cases, Mistake

TOML = """\
max_steps = 200
seq_len = 4096
output_dir = "runs"

[model]
name = "Org/Some-1B"

[ckpt]
interval = 50

[monitors.wandb]
project = "sums"

[deployment]
num_train_gpus = 4
num_infer_gpus = 4

[weight_broadcast]
type = "nccl"

[trainer.model]
impl = "auto"
dp_replicate = 2
fused_lm_head_token_chunk_size = 2048

[trainer.model.compile]

[trainer.optim]
lr = 3e-6
weight_decay = 0.0

[trainer.scheduler]
type = "linear"
warmup_steps = 10
decay_steps = 20

[orchestrator]
batch_size = 256
group_size = 16

[orchestrator.concurrency]
max_inflight = 512

[orchestrator.train.sampling]
temperature = 1.0
max_completion_tokens = 1024

[[orchestrator.train.source]]
name = "sums"
ratio = 3

[orchestrator.train.source.env.taskset]
id = "sums"

[[orchestrator.train.source]]
name = "words"
group_size = 8

[orchestrator.train.source.env.taskset]
id = "words"

[orchestrator.eval]
interval = 25

[inference.vllm]
tensor_parallel_size = 2
gpu_memory_utilization = 0.8
max_num_seqs = 256
max_model_len = "None"
"""
OVER = """\
[trainer.model.lora]
rank = 32
target_modules = ["q_proj", "v_proj"]

[weight_broadcast]
type = "filesystem"
"""
SCRIPT = """#!/bin/bash
export WANDB_MODE=online
uv run rl @ rl.toml @ lora.toml --run.name first \\
    --max-steps 100 \\
    --trainer.optim.weight-decay 0.1 --no-trainer.model.compile \\
    --orchestrator.group-size 8
"""
CASES = Cases(
    configs={"rl.toml": TOML, "run.sh": SCRIPT},
    beside={"lora.toml": OVER},
    means={
        "rl.toml": {
            "version": "0.8.1.dev67", "nodes": 1, "gpus_per_node": 4, "rollout_gpus_per_node": 4, "colocated": False,
            "actor.model.path": "Org/Some-1B", "actor.optim.lr": 3e-6, "actor.optim.lr_scheduler_type": "linear",
            "actor.optim.lr_warmup_steps": 10, "actor.sharding.strategy": "fsdp2", "actor.sharding.shard_size": 2,
            "actor.model.gradient_checkpointing": True, "actor.model.lora_rank": 0, "actor.torch_compile": True,
            "actor.chunk_tokens": 2048, "actor.max_tokens": 4096, "data.train_batch_size": 16, "rollout.n": 16,
            "rollout.tensor_parallel": 2, "rollout.memory_utilization": 0.8, "data.max_response_length": 1024,
            "total_steps": 200, "save_freq": 50, "test_freq": 25, "loggers": ("wandb",), "project": "sums",
            "critic": None, "run_dir": "runs", "algorithm.adv_estimator": "grpo",
        },
        "run.sh": {
            "total_steps": 100, "actor.optim.weight_decay": 0.1, "actor.model.lora_rank": 32, "rollout.n": 8,
            "actor.model.target_modules": ("q_proj", "v_proj"), "experiment": "first", "actor.torch_compile": False,
            "data.train_batch_size": 32,
        },
    },
    without={"rl.toml": ("data.max_prompt_length", "rollout.max_seqs", "actor.loss_mode"), "run.sh": ()},
    mistakes=(
        Mistake("a misspelt key", "max_completion_tokens", "max_completion_token", "CFG001",
                "orchestrator.train.sampling.max_completion_token"),
        Mistake("a misspelt section", "[trainer.scheduler]", "[trainer.schedule]", "CFG001", "trainer.schedule",
                line="type = \"linear\""),
        Mistake("a misspelt key of a list's item", "ratio = 3", "ration = 3", "CFG001",
                "orchestrator.train.source.0.ration"),
        Mistake("a misspelt option", "--run.name", "--run.title", "CFG001", "run.title", file="run.sh"),
        Mistake("a wrong type", "seq_len = 4096", "seq_len = \"long\"", "CFG005", "seq_len"),
        Mistake("a text for a number in a list's item", "group_size = 8", "group_size = \"8\"", "CFG005",
                "orchestrator.train.source.1.group_size"),
        Mistake("a fraction of a whole number", "num_infer_gpus = 4", "num_infer_gpus = 1.5", "CFG005",
                "deployment.num_infer_gpus"),
        Mistake("a wrong choice", "type = \"nccl\"", "type = \"ncc\"", "CFG005", "weight_broadcast.type"),
        Mistake("a batch that does not divide", "batch_size = 256", "batch_size = 250", "CFG008",
                "orchestrator.batch_size"),
        Mistake("more GPUs than a node has", "num_train_gpus = 4", "num_train_gpus = 6", "CFG008",
                "deployment.num_train_gpus"),
        Mistake("fewer samples under way than a group", "max_inflight = 512", "max_inflight = 8", "CFG008",
                "orchestrator.concurrency.max_inflight"),
        Mistake("a schedule longer than the run", "warmup_steps = 10", "warmup_steps = 190", "CFG008",
                "trainer.scheduler.warmup_steps"),
        Mistake("two names of the model", "impl = \"auto\"", "impl = \"auto\"\nname = \"Org/Other\"", "CFG008",
                "trainer.model.name", line="Org/Other"),
        Mistake("LoRA over NCCL", "[trainer.model.compile]", "[trainer.model.lora]", "CFG008", "weight_broadcast.type",
                line="type = \"nccl\""),
        Mistake("several nodes without Slurm", "[deployment]", "[deployment]\ntype = \"multi_node\"", "CFG008",
                "deployment.type", line="multi_node"),
        Mistake("contradictory settings", "group_size = 16", "group_size = 16\ntoken_batch_size = 4096", "CFG008",
                "orchestrator.token_batch_size", line="token_batch_size"),
        Mistake("a model that is not there", "Org/Some-1B", "/nowhere/model", "CFG030", "model.name"),
        Mistake("a negative learning rate", "lr = 3e-6", "lr = -3e-6", "CFG048", "trainer.optim.lr"),
        Mistake("a word for a number in an option", "--max-steps 100", "--max-steps ten", "CFG005", "max_steps",
                file="run.sh"),
        Mistake("more GPUs than there are", "", "", "CFG020", "deployment.num_train_gpus", num_gpus=2,
                line="num_train_gpus"),
    ),
)  # fmt: skip
