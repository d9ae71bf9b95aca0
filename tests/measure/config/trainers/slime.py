"""slime: a script with the model's arguments in a file of their own, one that trains asynchronously, and mistakes."""

from tests.measure.config.trainers.planted import Cases, Mistake

MODEL = """MODEL_ARGS=(
   --num-layers 28
   --hidden-size 2048
   --swiglu
   --disable-bias-linear
   --normalization "RMSNorm"
)
"""
SCRIPT = """#!/bin/bash
set -ex
HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${HERE}/model.sh"

CKPT_ARGS=(
   --hf-checkpoint Org/Some-1B
   --ref-load /ckpt/ref
   --save /ckpt/out
   --save-interval 20
)
ROLLOUT_ARGS=(
   --prompt-data /data/train.jsonl
   --input-key question
   --apply-chat-template
   --rm-type math
   --num-rollout 300
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 4096
   --rollout-temperature 1.0
   --global-batch-size 128
   --balance-data
)
EVAL_ARGS=(
   --eval-interval 20
   --eval-prompt-data aime /data/aime.jsonl
   --n-samples-per-eval-prompt 16
)
PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216   # a GPU's
)
GRPO_ARGS=(
   --advantage-estimator grpo
   --use-kl-loss
   --kl-loss-coef 0.001
   --kl-loss-type low_var_kl
   --eps-clip 0.2
   --eps-clip-high 0.28
)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 2
   --sglang-mem-fraction-static 0.7
   --sglang-cuda-graph-bs 1 2 4 $(seq 8 8 64)
)
ray job submit --address="http://127.0.0.1:8265" \\
   --runtime-env-json="{\\"env_vars\\": {\\"PYTHONPATH\\": \\"/root/Megatron-LM/\\"}}" \\
   -- python3 train.py \\
   --actor-num-nodes 1 \\
   --actor-num-gpus-per-node 8 \\
   --colocate \\
   --no-offload-rollout \\
   ${MODEL_ARGS[@]} \\
   ${CKPT_ARGS[@]} \\
   ${ROLLOUT_ARGS[@]} \\
   ${EVAL_ARGS[@]} \\
   ${PERF_ARGS[@]} \\
   ${GRPO_ARGS[@]} \\
   ${SGLANG_ARGS[@]} \\
   --optimizer adam --lr 2e-6 --weight-decay 0.1
"""
ASYNC = """python3 /root/slime/train_async.py \\
   --actor-num-nodes 1 --actor-num-gpus-per-node 4 --rollout-num-gpus 4 --rollout-num-gpus-per-engine 1 \\
   --hf-checkpoint Org/Some-1B --prompt-data Org/prompts --num-epoch 3 --rollout-batch-size 16 \\
   --n-samples-per-prompt 4 --num-steps-per-rollout 2 --advantage-estimator ppo --kl-coef 0.01 --micro-batch-size 2 \\
   --disable-grpo-std-normalization
"""
CASES = Cases(
    configs={"run.sh": SCRIPT, "async.sh": ASYNC},
    beside={"model.sh": MODEL},
    means={
        "run.sh": {
            "version": "0.3.1", "nodes": 1, "gpus_per_node": 8, "colocated": True, "actor.model.path": "Org/Some-1B",
            "rollout.name": "sglang", "rollout.n": 8, "rollout.tensor_parallel": 2, "rollout.sleeps": False,
            "rollout.memory_utilization": 0.7, "actor.sharding.strategy": "megatron",
            "actor.sharding.tensor_parallel": 2, "actor.sharding.dtype": "bfloat16", "actor.mini_batch_size": 16,
            "actor.dynamic_batch": True, "actor.max_tokens": 9216, "actor.clip_ratio_high": 0.28,
            "actor.model.gradient_checkpointing": True, "actor.use_kl_loss": True, "actor.optim.lr": 2e-6,
            "data.train_batch_size": 32, "data.max_response_length": 4096, "data.prompt_key": "question",
            "data.train_files": ("/data/train.jsonl",), "data.val_files": ("/data/aime.jsonl",), "critic": None,
            "algorithm.adv_estimator": "grpo", "save_freq": 20, "test_freq": 20, "total_steps": 300,
            "reward_model": None, "run_dir": "/ckpt/out",
        },
        "async.sh": {
            "colocated": False, "rollout_gpus_per_node": 4, "gpus_per_node": 4, "actor.mini_batch_size": 8,
            "algorithm.adv_estimator": "gae", "algorithm.use_kl_in_reward": True, "total_epochs": 3,
            "algorithm.norm_adv_by_std_in_grpo": False,
            "actor.micro_batch_size": 2, "critic.sharding.strategy": "megatron", "save_freq": -1,
        },
    },
    without={"run.sh": ("data.max_prompt_length", "rollout.max_seqs"), "async.sh": ("actor.max_tokens",)},
    mistakes=(
        Mistake("a misspelt key", "--rollout-max-response-len", "--rollout-max-response-length", "CFG001",
                "rollout-max-response-length"),
        Mistake("a misspelt option of Megatron's", "--recompute-granularity", "--recompute-granularty", "CFG001",
                "recompute-granularty"),
        Mistake("a misspelt option of SGLang's", "--sglang-mem-fraction-static", "--sglang-mem-fraction", "CFG001",
                "sglang-mem-fraction"),
        Mistake("a beginning, which slime does not take for the option", "--num-rollout", "--num-roll", "CFG001",
                "num-roll"),
        Mistake("a wrong type", "--rollout-batch-size 32", "--rollout-batch-size many", "CFG005", "rollout-batch-size"),
        Mistake("a fraction of a whole number", "per-prompt 8", "per-prompt 8.5", "CFG005", "n-samples-per-prompt"),
        Mistake("a wrong choice", "--advantage-estimator grpo", "--advantage-estimator rloo", "CFG005",
                "advantage-estimator"),
        Mistake("a flag with a value", "--balance-data", "--balance-data true", "CFG005", "balance-data"),
        Mistake("a word that is no option", "--eps-clip 0.2", "--eps-clip 0.2 0.3", "CFG009", "0.3"),
        Mistake("a batch that a rollout does not fill", "--global-batch-size 128", "--global-batch-size 512", "CFG008",
                "global-batch-size"),
        Mistake("shards that do not divide the GPUs", "--tensor-model-parallel-size 2",
                "--tensor-model-parallel-size 3", "CFG008", "tensor-model-parallel-size"),
        Mistake("an evaluation without data", "   --eval-prompt-data aime /data/aime.jsonl\n", "", "CFG008",
                "eval-interval", line="--eval-interval"),
        Mistake("a dynamic batch without a limit", "   --max-tokens-per-gpu 9216   # a GPU's\n", "", "CFG008",
                "use-dynamic-batch-size", line="--use-dynamic-batch-size"),
        Mistake("contradictory settings", "--kl-loss-coef 0.001", "--kl-loss-coef 0.001 --kl-coef 0.1", "CFG008",
                "kl-loss-coef"),
        Mistake("an estimator that needs another option", "estimator grpo", "estimator reinforce_plus_plus", "CFG008",
                "advantage-estimator"),
        Mistake("a model that is not there", "Org/Some-1B", "/nowhere/model", "CFG030", "hf-checkpoint"),
        Mistake("data that is not there", "/data/train.jsonl", "/nowhere.jsonl", "CFG065", "prompt-data"),
        Mistake("a temperature of 0", "--rollout-temperature 1.0", "--rollout-temperature 0", "CFG008",
                "rollout-temperature"),
        Mistake("a negative learning rate", "--lr 2e-6", "--lr=-2e-6", "CFG048", "lr"),
        Mistake("more GPUs than there are", "", "", "CFG020", "actor-num-gpus-per-node", num_gpus=4,
                line="--actor-num-gpus-per-node"),
        Mistake("asynchronous training on the engines' GPUs", "--rollout-num-gpus 4", "--colocate", "CFG008",
                "colocate", file="async.sh"),
    ),
)  # fmt: skip
