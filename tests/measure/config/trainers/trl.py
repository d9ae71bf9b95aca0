"""TRL: a YAML with its command line, a Python file, and mistakes in both."""

from tests.measure.config.trainers.planted import Cases, Mistake

YAML = """\
env:
  WANDB_MODE: offline
model_name_or_path: Org/Some-1B
dataset_name: /data/train.jsonl
reward_funcs:
  - accuracy_reward
output_dir: out
learning_rate: 1.0e-6
num_generations: 8
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
steps_per_generation: 8
max_completion_length: 1024
temperature: 1.0
loss_type: dapo
scale_rewards: group
beta: 0.04
use_vllm: true
vllm_mode: colocate
vllm_gpu_memory_utilization: 0.4
vllm_tensor_parallel_size: 2
use_peft: true
lora_r: 32
lora_target_modules: [q_proj, v_proj]
report_to: [wandb]
max_steps: 200
save_strategy: steps
save_steps: 50
eval_strategy: "no"
bf16: true
"""
SCRIPT = (
    "trl grpo --config grpo.yaml --accelerate_config zero2 --num_processes 4 --epsilon-high 0.28 --no_push_to_hub\n"
)
PYTHON = '''\
"""Train."""
import torch
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

LENGTH = 512
BATCH = 4


def main(args):
    config = GRPOConfig(
        output_dir="out",
        learning_rate=args.rate,
        num_generations=8,
        per_device_train_batch_size=BATCH,
        max_completion_length=LENGTH * 2,
        model_init_kwargs={"dtype": torch.bfloat16},
        temperature=1.0,
        loss_type="dr_grpo",
        max_grad_norm=1.0,
    )
    trainer = GRPOTrainer(
        model="Org/Some-1B",
        args=config,
        reward_funcs=[len],
        train_dataset=load_dataset("Org/prompts", split="train"),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj"]),
    )
    trainer.train()
'''
CASES = Cases(
    configs={"grpo.yaml": YAML, "run.sh": SCRIPT, "train.py": PYTHON},
    means={
        "grpo.yaml": {"actor.model.path": "Org/Some-1B", "rollout.n": 8, "actor.model.lora_rank": 32},
        "run.sh": {
            "version": "1.16.0", "nodes": 1, "gpus_per_node": 4, "actor.sharding.strategy": "deepspeed",
            "data.train_batch_size": 16, "actor.mini_batch_size": 8, "actor.micro_batch_size": 4, "rollout.n": 8,
            "rollout.name": "vllm", "rollout.tensor_parallel": 2, "colocated": True, "actor.clip_ratio_high": 0.28,
            "actor.model.lora_rank": 32, "actor.model.target_modules": ("q_proj", "v_proj"), "total_steps": 200,
            "save_freq": 50, "test_freq": -1, "loggers": ("wandb",), "actor.use_kl_loss": True,
            "ref.shares_actor": True,
            "data.max_response_length": 1024, "data.train_files": ("/data/train.jsonl",),
            "actor.loss_agg_mode": "token-mean", "actor.sharding.dtype": "bfloat16",
        },
        "train.py": {
            "actor.model.path": "Org/Some-1B", "actor.model.lora_rank": 16, "actor.micro_batch_size": 4, "ref": None,
            "data.max_response_length": 1024, "actor.loss_agg_mode": "seq-mean-token-sum-norm",
            "actor.sharding.model_dtype": "bfloat16", "rollout.name": "hf",
        },
    },
    without={
        "grpo.yaml": ("gpus_per_node", "data.max_prompt_length"), "run.sh": ("data.max_prompt_length",),
        "train.py": ("gpus_per_node", "actor.optim.lr", "data.train_batch_size"),
    },
    mistakes=(
        Mistake("a misspelt key", "max_completion_length:", "max_completion_lenght:", "CFG001",
                "max_completion_lenght"),
        Mistake("a key of another version", "temperature:", "max_prompt_length: 512\ntemperature:", "CFG002",
                "max_prompt_length", line="max_prompt_length"),
        Mistake("a key that was removed", "eval_strategy:", "evaluation_strategy:", "CFG001", "evaluation_strategy"),
        Mistake("a wrong type", "num_generations: 8", "num_generations: eight", "CFG005", "num_generations"),
        Mistake("a text that is no flag", "use_vllm: true", "use_vllm: vllm", "CFG005", "use_vllm"),
        Mistake("a wrong choice", "loss_type: dapo", "loss_type: dappo", "CFG005", "loss_type"),
        Mistake("a wrong mode", "vllm_mode: colocate", "vllm_mode: colocated", "CFG005", "vllm_mode"),
        Mistake("a batch that does not divide", "num_generations: 8", "num_generations: 7", "CFG008", "num_generations",
                command="run.sh"),
        Mistake("a group of one", "num_generations: 8", "num_generations: 1", "CFG024", "num_generations"),
        Mistake("contradictory settings", "steps_per_generation: 8",
                "steps_per_generation: 8\ngeneration_batch_size: 64", "CFG008",
                "steps_per_generation", line="steps_per_generation"),
        Mistake("engines that do not divide", "parallel_size: 2", "parallel_size: 3", "CFG018",
                "vllm_tensor_parallel_size", command="run.sh"),
        Mistake("a model that is not there", "Org/Some-1B", "/nowhere/model", "CFG030", "model_name_or_path"),
        Mistake("data that is not there", "/data/train.jsonl", "/nowhere.jsonl", "CFG065", "dataset_name"),
        Mistake("a temperature of 0", "temperature: 1.0", "temperature: 0.0", "CFG059", "temperature"),
        Mistake("a negative learning rate", "1.0e-6", "-1.0e-6", "CFG048", "learning_rate"),
        Mistake("a key given twice", "bf16: true", "bf16: true\nmax_steps: 100", "CFG009", "max_steps",
                line="max_steps: 100"),
        Mistake("more GPUs than there are", "", "", "CFG020", "num_processes", file="run.sh", num_gpus=2,
                line="--num_processes"),
        Mistake("an option that neither TRL nor accelerate has", "--epsilon-high", "--epsilon-top", "CFG001",
                "epsilon-top", file="run.sh"),
        Mistake("a misspelt argument", "num_generations=8", "num_generation=8", "CFG001", "num_generation",
                file="train.py"),
        Mistake("a wrong argument", '"dr_grpo"', '"dr-grpo"', "CFG005", "loss_type", file="train.py"),
        Mistake("a text for a number", "temperature=1.0", 'temperature="warm"', "CFG005", "temperature",
                file="train.py"),
    ),
)  # fmt: skip
