"""SkyRL: a script of overrides, a program with a config of its own, and mistakes."""

from tests.measure.config.trainers.planted import Cases, Mistake

SCRIPT = """set -x
: "${NUM_GPUS:=4}"
: "${LOGGER:=console}"
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base \\
  data.train_data="['/data/train.parquet']" \\
  data.val_data="['/data/val.parquet']" \\
  trainer.algorithm.advantage_estimator="grpo" \\
  trainer.policy.model.path="Org/Some-1B" \\
  trainer.placement.colocate_all=true \\
  trainer.strategy=fsdp \\
  trainer.placement.policy_num_gpus_per_node=$NUM_GPUS \\
  trainer.placement.ref_num_gpus_per_node=$NUM_GPUS \\
  generator.inference_engine.num_engines=2 \\
  generator.inference_engine.tensor_parallel_size=2 \\
  generator.inference_engine.gpu_memory_utilization=0.8 \\
  generator.inference_engine.engine_init_kwargs.any_of_vllm=1 \\
  trainer.train_batch_size=128 \\
  trainer.policy_mini_batch_size=64 \\
  trainer.micro_train_batch_size_per_gpu=8 \\
  trainer.micro_forward_batch_size_per_gpu=8 \\
  trainer.max_prompt_length=512 \\
  generator.sampling_params.max_generate_length=1024 \\
  generator.sampling_params.temperature=1.0 \\
  generator.n_samples_per_prompt=8 \\
  trainer.policy.optimizer_config.lr=1.0e-6 \\
  trainer.algorithm.use_kl_loss=true \\
  trainer.logger="$LOGGER" \\
  trainer.ckpt_path="$HOME/ckpts" \\
  $@
"""
OWN = """uv run -m examples.train.algorithms.dapo.main_dapo \\
  trainer.policy.model.path=Org/Some-1B \\
  trainer.algorithm.use_kl_loss=false trainer.placement.policy_num_gpus_per_node=8 \\
  trainer.placement.colocate_all=false generator.inference_engine.num_engines=8 \\
  trainer.algorithm.loss_reduction=token_mean trainer.algorithm.eps_clip_high=0.28
"""
CASES = Cases(
    configs={"run.sh": SCRIPT, "own.sh": OWN},
    means={
        "run.sh": {
            "nodes": 1, "gpus_per_node": 4, "colocated": True, "actor.model.path": "Org/Some-1B", "rollout.n": 8,
            "data.train_batch_size": 128, "actor.mini_batch_size": 64, "actor.micro_batch_size": 8,
            "rollout.tensor_parallel": 2, "rollout.memory_utilization": 0.8, "data.max_prompt_length": 512,
            "data.max_response_length": 1024, "actor.optim.lr": 1e-6, "actor.use_kl_loss": True, "critic": None,
            "data.train_files": ("/data/train.parquet",), "algorithm.adv_estimator": "grpo", "loggers": ("console",),
            "actor.sharding.strategy": "fsdp2", "actor.sharding.dtype": "bfloat16", "save_freq": 10,
        },
        "own.sh": {
            "gpus_per_node": 8, "colocated": False, "rollout_gpus_per_node": 8, "ref": None,
            "actor.loss_agg_mode": "token-mean", "actor.clip_ratio_high": 0.28, "actor.model.path": "Org/Some-1B",
        },
    },
    without={"run.sh": ("rollout.max_model_len",), "own.sh": ("data.train_files",)},
    mistakes=(
        Mistake("a misspelt key", "policy_mini_batch_size=64", "policy_mini_batchsize=64", "CFG001",
                "trainer.policy_mini_batchsize"),
        Mistake("a key of another section", "trainer.ckpt_path", "trainer.default_local_dir", "CFG001",
                "trainer.default_local_dir"),
        Mistake("a wrong type", "trainer.train_batch_size=128", "trainer.train_batch_size=many", "CFG005",
                "trainer.train_batch_size"),
        Mistake("a text that is no flag", "colocate_all=true", "colocate_all=always", "CFG005",
                "trainer.placement.colocate_all"),
        Mistake("a wrong choice", "strategy=fsdp", "strategy=deepspeed", "CFG005", "trainer.strategy"),
        Mistake("a batch that does not divide", "trainer.train_batch_size=128", "trainer.train_batch_size=100",
                "CFG008", "trainer.train_batch_size"),
        Mistake("a micro batch that does not divide", "micro_train_batch_size_per_gpu=8",
                "micro_train_batch_size_per_gpu=7", "CFG008", "trainer.micro_train_batch_size_per_gpu"),
        Mistake("engines beside the policy's GPUs", "num_engines=2", "num_engines=3", "CFG008",
                "generator.inference_engine.num_engines"),
        Mistake("a group of one", "n_samples_per_prompt=8", "n_samples_per_prompt=1", "CFG024",
                "generator.n_samples_per_prompt", status="warn"),
        Mistake("a model that is not there", "Org/Some-1B", "/nowhere/model", "CFG030", "trainer.policy.model.path"),
        Mistake("data that is not there", "/data/train.parquet", "/nowhere.parquet", "CFG065", "data.train_data"),
        Mistake("a temperature of 0", "temperature=1.0", "temperature=0.0", "CFG059",
                "generator.sampling_params.temperature"),
        Mistake("a negative learning rate", "lr=1.0e-6", "lr=-1.0e-6", "CFG048", "trainer.policy.optimizer_config.lr"),
        Mistake("a word that is no override", "trainer.strategy=fsdp", "--strategy fsdp", "CFG009", "strategy"),
        Mistake("more GPUs than there are", "", "", "CFG020", "trainer.placement.policy_num_gpus_per_node",
                num_gpus=2, line="trainer.placement.policy_num_gpus_per_node"),
        Mistake("a key that only the program itself can have", "use_kl_loss=false", "a_field_of_ours=3", "CFG001",
                "trainer.algorithm.a_field_of_ours", file="own.sh", status="info"),
        Mistake("a slip in a program of one's own", "use_kl_loss=false", "use_kl_los=false", "CFG001",
                "trainer.algorithm.use_kl_los", file="own.sh", line="use_kl_los="),
    ),
)  # fmt: skip
