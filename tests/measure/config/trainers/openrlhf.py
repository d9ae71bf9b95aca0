"""OpenRLHF: a script of 0.11, one of 0.9, DeepSpeed's launchers of the program without Ray, and mistakes."""

from tests.measure.config.trainers.planted import Cases, Mistake

SCRIPT = """#!/usr/bin/env bash
set -euo pipefail
NODES=${NODES:-1}
GPUS=8
MODEL=Org/Some-1B
PLACES=(
    --actor.num_nodes $NODES --actor.num_gpus_per_node $GPUS
    --ref.num_nodes $NODES --ref.num_gpus_per_node $GPUS
    --vllm.num_engines 4   # of two GPUs
    --vllm.tensor_parallel_size 2
    --train.colocate_all
    --vllm.enable_sleep
)
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray "${PLACES[@]}" \\
    --vllm.gpu_memory_utilization 0.6 \\
    --actor.model_name_or_path "$MODEL" \\
    --reward.remote_url http://rewards:5000/score \\
    --algo.advantage.estimator group_norm \\
    --algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.init_coef 1e-3 \\
    --actor.eps_clip_low_high 0.2 0.28 \\
    --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --rollout.temperature 1.0 \\
    --rollout.max_new_tokens=1024 \\
    --train.batch_size 256 --train.micro_batch_size 4 \\
    --actor.adam.lr 5e-7 \\
    --data.max_len 2048 \\
    --data.prompt_dataset /data/train.jsonl --data.input_key question \\
    --ds.param_dtype bf16 --ds.zero_stage 3 \\
    --ckpt.output_dir $OUT \\
    "$@"
"""
OLD = """python3 -m openrlhf.cli.train_ppo_ray \\
    --actor_num_nodes 1 --actor_num_gpus_per_node 4 --ref_num_nodes 1 --ref_num_gpus_per_node 4 \\
    --vllm_num_engines 2 --vllm_tensor_parallel_size 1 --colocate_actor_ref \\
    --pretrain Org/Some-1B --remote_rm_url http://rewards:5000/score \\
    --advantage_estimator rloo --n_samples_per_prompt 4 --init_kl_coef 0.01 \\
    --rollout_batch_size 64 --train_batch_size 64 --micro_train_batch_size 2 --micro_rollout_batch_size 4 \\
    --prompt_max_len 512 --generate_max_len 512 --actor_learning_rate 1e-6 \\
    --prompt_data Org/prompts --input_key question --apply_chat_template --packing_samples
"""
SHARED = """set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo \\
    --pretrain Org/Some-1B --reward_pretrain Org/Some-1B --zero_stage 2 --bf16 \\
    --micro_train_batch_size 2 --train_batch_size 128 --micro_rollout_batch_size 4 --rollout_batch_size 1024 \\
    --prompt_max_len 1024 --generate_max_len 512 --init_kl_coef 0.01 --gradient_checkpointing
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --include localhost:0,1,3 --module $training_commands
fi
"""
FILE = """CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed train_ppo.py --pretrain Org/Some-1B --reward_pretrain Org/Some-1B \\
    --zero_stage 3 --train_batch_size 128 --prompt_max_len 512 --generate_max_len 512
"""
CASES = Cases(
    configs={"run.sh": SCRIPT, "old.sh": OLD, "shared.sh": SHARED, "file.sh": FILE},
    means={
        "run.sh": {
            "version": "0.11.0", "nodes": 1, "gpus_per_node": 8, "colocated": True, "actor.model.path": "Org/Some-1B",
            "rollout.n": 8, "rollout.tensor_parallel": 2, "rollout.sleeps": True, "rollout.memory_utilization": 0.6,
            "actor.clip_ratio_high": 0.28, "actor.mini_batch_size": 32, "data.max_response_length": 1024,
            "data.train_files": ("/data/train.jsonl",), "data.prompt_key": "question", "actor.use_kl_loss": True,
            "algorithm.adv_estimator": "grpo", "algorithm.use_kl_in_reward": False, "actor.sharding.dtype": "bfloat16",
            "critic": None, "reward_model": None,
        },
        "old.sh": {
            "version": "0.9.0", "gpus_per_node": 4, "colocated": False, "rollout_gpus_per_node": 2, "rollout.n": 4,
            "actor.micro_batch_size": 2, "data.max_prompt_length": 512, "actor.model.path": "Org/Some-1B",
            "algorithm.adv_estimator": "rloo", "actor.optim.lr": 1e-6,
        },
        "shared.sh": {
            "version": "0.6.1.post1", "nodes": 1, "gpus_per_node": 3, "colocated": True, "actor.micro_batch_size": 2,
            "actor.model.path": "Org/Some-1B", "rollout.in_process": True, "rollout.name": "hf",
            "rollout.max_seqs": 4, "data.max_prompt_length": 1024, "critic.own_gpus": 0, "ref.own_gpus": 0,
            "actor.dynamic_batch": False, "actor.sharding.zero_stage": 2, "expandable_segments": False,
        },
        "file.sh": {"gpus_per_node": 4, "actor.sharding.zero_stage": 3},
    },
    without={
        "run.sh": ("data.max_prompt_length", "rollout.max_batched_tokens", "run_dir"),
        "old.sh": (), "shared.sh": (), "file.sh": (),
    },
    mistakes=(
        Mistake("a misspelt key", "--actor.adam.lr", "--actor.adam.rl", "CFG001", "actor.adam.rl"),
        Mistake("a key of another version", "--train.colocate_all", "--colocate_all_models", "CFG002",
                "colocate_all_models"),
        Mistake("a wrong type", "--train.micro_batch_size 4", "--train.micro_batch_size four", "CFG005",
                "train.micro_batch_size"),
        Mistake("a fraction of a whole number", "num_engines 4", "num_engines 4.5", "CFG005", "vllm.num_engines"),
        Mistake("a wrong choice", "estimator group_norm", "estimator grpo", "CFG005", "algo.advantage.estimator"),
        Mistake("a flag with a value", "--vllm.enable_sleep", "--vllm.enable_sleep true", "CFG005",
                "vllm.enable_sleep"),
        Mistake("one value of two", "low_high 0.2 0.28", "low_high 0.2", "CFG005", "actor.eps_clip_low_high"),
        Mistake("a word that is no option", "--ds.zero_stage 3", "--ds.zero_stage 3 stage", "CFG009", "stage"),
        Mistake("a batch that does not divide", "batch_size 256", "batch_size 250", "CFG008", "train.batch_size"),
        Mistake("engines beside the actor's GPUs", "num_engines 4", "num_engines 3", "CFG008", "vllm.num_engines"),
        Mistake("a group of one", "prompt 8", "prompt 1", "CFG024", "rollout.n_samples_per_prompt"),
        Mistake("a model that is not there", "MODEL=Org/Some-1B", "MODEL=/nowhere/model", "CFG030",
                "actor.model_name_or_path", line='"$MODEL"'),
        Mistake("data that is not there", "/data/train.jsonl", "/nowhere.jsonl", "CFG065", "data.prompt_dataset"),
        Mistake("contradictory settings", "--train.colocate_all\n", "--train.partial_rollout_enable\n", "CFG008",
                "train.partial_rollout_enable"),
        Mistake("a temperature of 0", "temperature 1.0", "temperature 0", "CFG059", "rollout.temperature"),
        Mistake("a negative learning rate", "lr 5e-7", "lr=-5e-7", "CFG048", "actor.adam.lr"),
        Mistake("a misspelt key of the program without Ray", "--zero_stage 2", "--zero_stages 2", "CFG001",
                "zero_stages", "shared.sh"),
        Mistake("more GPUs than there are", "", "", "CFG020", "actor.num_gpus_per_node", num_gpus=4,
                line="--actor.num_nodes"),
    ),
)  # fmt: skip
