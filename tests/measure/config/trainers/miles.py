"""miles: a script with LoRA on Megatron, one on FSDP2, one that trains asynchronously, and mistakes."""

from tests.measure.config.trainers.planted import Cases, Mistake

LORA = """#!/bin/bash
CKPT_ARGS=(
   --hf-checkpoint Org/Some-1B
   --megatron-to-hf-mode bridge
   --save /ckpt/out
   --save-interval 20
)
LORA_ARGS=(
   --lora-rank 32
   --lora-alpha 64
   --target-modules "q_proj,v_proj"
)
ROLLOUT_ARGS=(
   --prompt-data /data/train.parquet
   --input-key messages
   --num-rollout 100
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 1024
   --global-batch-size 256
   --eval-interval 10
   --eval-prompt-data some /data/test.parquet
   --eval-num-gpus 2
   --eval-sglang-mem-fraction-static 0.8
   --no-eval-sglang-disable-radix-cache
)
PERF_ARGS=(
   --tensor-model-parallel-size 2
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
   --balance-by-flops
)
GRPO_ARGS=(
   --advantage-estimator gspo
   --disable-grpo-std-normalization
   --eps-clip 0.2
   --lr 1e-5
)
# miles takes its options from the arrays above.
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py \\
   --actor-num-nodes 1 \\
   --actor-num-gpus-per-node 4 \\
   --rollout-num-gpus 2 \\
   --rollout-num-gpus-per-engine 1 \\
   --sglang-mem-fraction-static 0.6 \\
   --sglang-lora-use-virtual-experts \\
   ${CKPT_ARGS[@]} ${LORA_ARGS[@]} ${ROLLOUT_ARGS[@]} ${PERF_ARGS[@]} ${GRPO_ARGS[@]}
"""
FSDP = """python3 train.py --train-backend fsdp --hf-checkpoint Org/Some-1B \\
   --gradient-checkpointing --lr 1e-6 --weight-decay 0.1 --no-keep-fp32-master \\
   --prompt-data /data/train.jsonl --num-rollout 3000 --rollout-batch-size 32 --n-samples-per-prompt 8 \\
   --global-batch-size 256 --use-dynamic-batch-size --max-tokens-per-gpu 9216 --colocate \\
   --use-miles-dashboard --actor-num-gpus-per-node 8
"""
ASYNC = """python3 /root/miles/train_async.py \\
   --actor-num-gpus-per-node 4 --rollout-num-gpus 4 --fully-async \\
   --hf-checkpoint Org/Some-1B --prompt-data Org/prompts --num-rollout 30 --rollout-batch-size 16 \\
   --n-samples-per-prompt 4 --num-steps-per-rollout 2 --advantage-estimator ppo --use-tis \\
   --update-weight-transfer-mode p2p
"""
CASES = Cases(
    configs={"lora.sh": LORA, "fsdp.sh": FSDP, "async.sh": ASYNC},
    means={
        "lora.sh": {
            "version": "0.1.0", "gpus_per_node": 4, "colocated": False, "rollout_gpus_per_node": 2,
            "actor.model.path": "Org/Some-1B", "actor.model.lora_rank": 32, "actor.model.lora_alpha": 64,
            "actor.model.target_modules": ("q_proj", "v_proj"), "actor.sharding.strategy": "megatron",
            "actor.sharding.tensor_parallel": 2, "actor.mini_batch_size": 32, "actor.max_tokens": 9216,
            "actor.loss_mode": "gspo", "actor.optim.lr": 1e-5, "rollout.n": 8, "rollout.memory_utilization": 0.6,
            "rollout.name": "sglang", "algorithm.adv_estimator": "grpo", "data.train_files": ("/data/train.parquet",),
            "algorithm.norm_adv_by_std_in_grpo": False, "test_freq": 10, "data.val_files": ("/data/test.parquet",),
        },
        "fsdp.sh": {
            "colocated": True, "actor.sharding.strategy": "fsdp2", "actor.sharding.dtype": "bfloat16",
            "actor.sharding.model_dtype": "bfloat16", "actor.model.gradient_checkpointing": True,
            "actor.optim.weight_decay": 0.1, "gpus_per_node": 8, "actor.model.lora_rank": 0, "rollout.sleeps": True,
        },
        "async.sh": {
            "colocated": False, "rollout_gpus_per_node": 4, "actor.mini_batch_size": 8, "rollout.n": 4,
            "algorithm.adv_estimator": "gae", "critic.sharding.strategy": "megatron", "algorithm.rollout_is": "token",
        },
    },
    without={"lora.sh": ("data.max_prompt_length",), "fsdp.sh": ("rollout.max_seqs",)},
    mistakes=(
        Mistake("a misspelt key", "--lora-alpha", "--lora-alfa", "CFG001", "lora-alfa"),
        Mistake("a misspelt option of Megatron's", "--tensor-model-parallel-size", "--tensor-model-paralel-size",
                "CFG001", "tensor-model-paralel-size"),
        Mistake("a misspelt option of engines that evaluate", "--eval-sglang-mem-fraction-static",
                "--eval-sglang-mem-fraction", "CFG001", "eval-sglang-mem-fraction"),
        Mistake("a beginning, which is not taken for the option", "--num-rollout", "--num-roll", "CFG001", "num-roll"),
        Mistake("an option of Megatron's with FSDP", "--gradient-checkpointing",
                "--gradient-checkpointing --recompute-granularity full", "CFG001", "recompute-granularity",
                file="fsdp.sh", line="--recompute-granularity"),
        Mistake("a wrong type", "--rollout-batch-size 32", "--rollout-batch-size many", "CFG005", "rollout-batch-size"),
        Mistake("a fraction of a whole number", "--lora-rank 32", "--lora-rank 0.5", "CFG005", "lora-rank"),
        Mistake("an estimator of slime's alone", "--advantage-estimator gspo", "--advantage-estimator cispo", "CFG005",
                "advantage-estimator"),
        Mistake("a flag with a value", "--balance-by-flops", "--balance-by-flops true", "CFG005", "balance-by-flops"),
        Mistake("a word that is no option", "--eps-clip 0.2", "--eps-clip 0.2 0.3", "CFG009", "0.3"),
        Mistake("a batch that a rollout does not fill", "--global-batch-size 256", "--global-batch-size 512", "CFG008",
                "global-batch-size"),
        Mistake("shards that do not divide the GPUs", "--tensor-model-parallel-size 2",
                "--tensor-model-parallel-size 3", "CFG008", "tensor-model-parallel-size"),
        Mistake("LoRA of no module", """   --target-modules "q_proj,v_proj"\n""", "", "CFG008", "lora-rank",
                line="--lora-rank"),
        Mistake("engines that do not fill their GPUs", "--eval-num-gpus 2", "--eval-num-gpus 2 "
                "--eval-num-gpus-per-engine 4", "CFG008", "eval-num-gpus"),
        Mistake("options of engines that are not there", "   --eval-num-gpus 2\n", "", "CFG008",
                "eval-sglang-mem-fraction-static", line="--eval-sglang-mem"),
        Mistake("a balance without dynamic batches", "   --use-dynamic-batch-size\n", "", "CFG008", "balance-by-flops",
                line="--balance-by-flops"),
        Mistake("PPO through the bridge", "--advantage-estimator gspo", "--advantage-estimator ppo", "CFG008",
                "megatron-to-hf-mode", line="--megatron-to-hf-mode"),
        Mistake("asynchronous PPO without a correction", "--use-tis", "--use-wandb", "CFG008", "advantage-estimator",
                file="async.sh", line="--advantage-estimator"),
        Mistake("weights by RDMA on the engines' GPUs", "--rollout-num-gpus 4", "--colocate", "CFG008",
                "update-weight-transfer-mode", file="async.sh", line="--update-weight-transfer-mode"),
        Mistake("a model that is not there", "Org/Some-1B", "/nowhere/model", "CFG030", "hf-checkpoint"),
        Mistake("data that is not there", "/data/train.parquet", "/nowhere.parquet", "CFG065", "prompt-data"),
        Mistake("a negative learning rate", "--lr 1e-5", "--lr=-1e-5", "CFG048", "lr"),
        Mistake("more GPUs than there are", "", "", "CFG020", "actor-num-gpus-per-node", num_gpus=4,
                line="--actor-num-gpus-per-node"),
    ),
)  # fmt: skip
