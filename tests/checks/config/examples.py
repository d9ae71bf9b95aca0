"""Override lists as verl's example scripts have them, shortened to what matters here; each is one that verl takes.

The names are those of scripts below `examples/` of verl-project/verl.
"""

FILES = (
    "data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet "
    "data.filter_overlong_prompts=True data.truncation='error' algorithm.use_kl_in_reward=False "
)
TRAINER = (
    'trainer.critic_warmup=0 trainer.logger=\'["console","wandb"]\' trainer.project_name=p trainer.experiment_name=e '
    "trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=15 "
)
A, R, G, M = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model"))

GRPO = (
    f"algorithm.adv_estimator=grpo {FILES}{TRAINER}data.train_batch_size=1024 data.max_prompt_length=512 "
    f"data.max_response_length=1024 {M}.path=Qwen/Qwen2-7B-Instruct {M}.use_remove_padding=True "
    f"{M}.enable_gradient_checkpointing=True {A}.optim.lr=1e-6 {A}.ppo_mini_batch_size=256 {A}.use_kl_loss=True "
    f"{A}.kl_loss_coef=0.001 {A}.kl_loss_type=low_var_kl {A}.entropy_coeff=0 {G}.tensor_model_parallel_size=2 "
    f"{G}.name=vllm {G}.n=5 {G}.gpu_memory_utilization=0.6 "
)
FSDP = (
    f"{A}.fsdp_config.param_offload=False {A}.fsdp_config.optimizer_offload=False {R}.fsdp_config.param_offload=True "
)
DYNAMIC = (
    f"{A}.use_dynamic_bsz=True {A}.ppo_max_token_len_per_gpu=24576 {G}.log_prob_use_dynamic_bsz=True "
    f"{G}.log_prob_max_token_len_per_gpu=24576 {R}.log_prob_use_dynamic_bsz=True "
    f"{R}.log_prob_max_token_len_per_gpu=24576 "
)
MICRO = (
    f"{A}.ppo_micro_batch_size_per_gpu=40 {G}.log_prob_micro_batch_size_per_gpu=40 "
    f"{R}.log_prob_micro_batch_size_per_gpu=40 "
)
PPO = (
    f"algorithm.adv_estimator=gae {FILES}{TRAINER}data.train_batch_size=1024 data.max_prompt_length=1024 "
    f"data.max_response_length=2048 {M}.path=Qwen/Qwen3-8B {A}.optim.lr=1e-6 {A}.ppo_mini_batch_size=256 "
    f"{G}.name=vllm {G}.tensor_model_parallel_size=2 {G}.n=1 critic.model.path=Qwen/Qwen3-8B critic.optim.lr=1e-5 "
    "critic.model.use_remove_padding=True critic.use_dynamic_bsz=True critic.ppo_max_token_len_per_gpu=24576 "
)
MEGATRON = (
    f"{A}.megatron.tensor_model_parallel_size=2 {A}.megatron.pipeline_model_parallel_size=2 "
    f"{R}.megatron.tensor_model_parallel_size=2 {R}.megatron.pipeline_model_parallel_size=2 model_engine=megatron "
)

EXAMPLES: dict[str, str] = {
    "grpo_trainer/run_qwen2_5-3b_gsm8k_grpo_lora": (
        f"{GRPO}{FSDP}{MICRO}{M}.use_shm=True {M}.lora_rank=64 {M}.lora_alpha=32 {A}.optim.lr=3e-6 data.shuffle=False "
        f"{G}.load_format=safetensors {G}.layered_summon=True"
    ),
    "grpo_trainer/run_qwen2-7b_seq_balance": (
        f"{GRPO}{FSDP}{A}.use_dynamic_bsz=True {A}.ppo_max_token_len_per_gpu=24000"
    ),
    "grpo_trainer/run_qwen3_30b_a3b_fsdp": (
        f"{GRPO}{FSDP}{DYNAMIC}data.train_batch_size=512 {A}.ppo_mini_batch_size=128 {A}.strategy=fsdp2 {G}.n=8 "
        f"{G}.tensor_model_parallel_size=4 {A}.fsdp_config.param_offload=True trainer.balance_batch=True"
    ),
    "grpo_trainer/run_qwen2_5_vl_7b_fsdp": (
        f"{GRPO}{FSDP}{DYNAMIC}data.image_key=images {A}.strategy=fsdp2 {M}.use_fused_kernels=True "
        f"{G}.multi_stage_wake_up=True {G}.enable_chunked_prefill=False {G}.enforce_eager=False"
    ),
    "grpo_trainer/run_qwen3_5_27b_fsdp": (
        f"{GRPO}{FSDP}data.train_batch_size=64 {A}.ppo_mini_batch_size=16 {A}.ppo_micro_batch_size_per_gpu=1 "
        f"{G}.log_prob_micro_batch_size_per_gpu=1 {R}.log_prob_micro_batch_size_per_gpu=1 {A}.strategy=fsdp2 "
        f"{R}.strategy=fsdp2 {A}.fsdp_config.fsdp_size=8 {A}.fsdp_config.offload_policy=True "
        f"{A}.entropy_from_logits_with_chunking=True {R}.entropy_from_logits_with_chunking=True "
        f"{R}.fsdp_config.offload_policy=True {A}.fsdp_config.ulysses_sequence_parallel_size=1 "
        f"{R}.use_torch_compile=False {A}.use_torch_compile=False {G}.tensor_model_parallel_size=4"
    ),
    "grpo_trainer/run_qwen3_4b_fsdp": (
        f"{GRPO}{FSDP}{DYNAMIC}{A}.ppo_micro_batch_size_per_gpu=2 {G}.log_prob_micro_batch_size_per_gpu=2 "
        f"{R}.log_prob_micro_batch_size_per_gpu=2 {A}.ppo_max_token_len_per_gpu=3000 "
        f"{G}.checkpoint_engine.update_weights_bucket_megabytes=4096 {G}.free_cache_engine=True"
    ),
    "grpo_trainer/run_qwen3_30b_a3b_megatron": (
        f"{GRPO}{DYNAMIC}{MEGATRON}data.train_batch_size=512 "
        f"{A}.ppo_mini_batch_size=16 {A}.megatron.tensor_model_parallel_size=4 {A}.megatron.use_mbridge=True "
        f"{R}.megatron.tensor_model_parallel_size=4 {G}.tensor_model_parallel_size=4 {G}.expert_parallel_size=4 "
        f"{A}.megatron.virtual_pipeline_model_parallel_size=2 {A}.megatron.expert_model_parallel_size=2 "
        f"+{A}.megatron.override_transformer_config.recompute_granularity=full {G}.calculate_log_probs=True "
        f"{A}.megatron.param_offload=True {A}.megatron.optimizer_offload=True "
        f"{G}.val_kwargs.do_sample=True {G}.val_kwargs.temperature=1.0 {G}.val_kwargs.top_p=0.7"
    ),
    "ppo_trainer/run_qwen3_8b_fsdp": (
        f"{PPO}{DYNAMIC}critic.fsdp.param_offload=False critic.fsdp.optimizer_offload=False"
    ),
    "ppo_trainer/run_qwen3_8b_megatron": (
        f"{PPO}{DYNAMIC}{MEGATRON}critic.megatron.tensor_model_parallel_size=2 "
        "critic.megatron.pipeline_model_parallel_size=2"
    ),
    "grpo_trainer/run_qwen3_30b_veomni": (
        "algorithm.adv_estimator=grpo data.train_batch_size=16 data.max_prompt_length=2048 "
        f"data.max_response_length=8192 {A}.veomni.param_offload=True {A}.ppo_mini_batch_size=8 "
        f"{A}.ppo_micro_batch_size_per_gpu=1 {A}.use_kl_loss=True {A}.ppo_max_token_len_per_gpu=10240 "
        f"{G}.log_prob_micro_batch_size_per_gpu=1 {R}.log_prob_micro_batch_size_per_gpu=1 {G}.data_parallel_size=8 "
        f"{G}.expert_parallel_size=8 {G}.tensor_model_parallel_size=1 {G}.name=vllm {G}.n=4 "
        f"{R}.veomni.param_offload=True +{G}.engine_kwargs.vllm.mm_processor_cache_gb=0 trainer.logger=console "
        "trainer.n_gpus_per_node=8 trainer.save_freq=100 trainer.total_training_steps=100 model_engine=veomni"
    ),
    # The script leaves trainer.use_v1 alone, and verl 0.9 then stops in the first step: see test_verl.py.
    "remax_trainer/run_qwen3_8b_fsdp": (
        f"{GRPO}{FSDP}{DYNAMIC}algorithm.adv_estimator=remax algorithm.use_kl_in_reward=True algorithm.kl_penalty=kl "
        f"{A}.use_kl_loss=False {G}.n=4 trainer.use_v1=False"
    ),
}
