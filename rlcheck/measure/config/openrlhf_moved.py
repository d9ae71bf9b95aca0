"""OpenRLHF's options before 0.10.2, and where they are now."""

from __future__ import annotations

import re

# Options before 0.10.2 and where they are now: openrlhf/cli/train_ppo_ray.py@91ca359 beside @ed62d0e.
_MOVED = """
colocate_actor_ref train.colocate_actor_ref|colocate_critic_reward train.colocate_critic_reward
colocate_all_models train.colocate_all|enable_prefix_caching vllm.enable_prefix_caching
enforce_eager vllm.enforce_eager|enable_vllm_is_correction algo.advantage.is_correction_enable
vllm_is_truncated_threshold algo.advantage.is_correction_threshold|async_train train.async_enable
vllm_is_correction_type algo.advantage.is_correction_type|async_queue_size train.async_queue_size
partial_rollout train.partial_rollout_enable|save_steps ckpt.save_steps|logging_steps logger.logging_steps
save_hf_ckpt ckpt.save_hf|disable_ds_ckpt ckpt.disable_ds|max_ckpt_num ckpt.max_num|max_ckpt_mem ckpt.max_mem
load_checkpoint ckpt.load_enable|best_metric_key ckpt.best_metric_key|use_ds_universal_ckpt ds.use_universal_ckpt
zero_stage ds.zero_stage|gradient_checkpointing actor.gradient_checkpointing_enable|deepcompile ds.deepcompile
gradient_checkpointing_use_reentrant actor.gradient_checkpointing_reentrant|param_dtype ds.param_dtype
enable_ema train.enable_ema|ema_beta train.ema_beta|zpg ds.zpg|adam_offload ds.adam_offload
attn_implementation ds.attn_implementation|use_liger_kernel ds.use_liger_kernel|overlap_comm ds.overlap_comm
grad_accum_dtype ds.grad_accum_dtype|disable_fast_tokenizer data.disable_fast_tokenizer
dataloader_num_workers data.dataloader_num_workers|deepspeed_enable_sleep ds.enable_sleep
packing_samples ds.packing_samples|use_dynamic_batch train.dynamic_batch_enable|load_in_4bit ds.load_in_4bit
lora_rank ds.lora.rank|lora_alpha ds.lora.alpha|target_modules ds.lora.target_modules|lora_dropout ds.lora.dropout
save_path ckpt.output_dir|ckpt_path ckpt.path|num_episodes train.num_episodes|max_epochs train.max_epochs
rollout_batch_size rollout.batch_size|vllm_generate_batch_size rollout.vllm_generate_batch_size
micro_rollout_batch_size rollout.micro_batch_size|micro_train_batch_size train.micro_batch_size
train_batch_size train.batch_size|max_len data.max_len|max_new_tokens rollout.max_new_tokens
generate_max_len rollout.max_new_tokens|max_samples data.max_samples|max_norm actor.max_norm
l2 actor.adam.weight_decay|eps_clip actor.eps_clip|eps_clip_low_high actor.eps_clip_low_high
dual_clip actor.dual_clip|value_clip critic.value_clip|lambd algo.advantage.lambd|gamma algo.advantage.gamma
normalize_reward reward.normalize_enable|top_p rollout.top_p|temperature rollout.temperature|seed train.seed
full_determinism train.full_determinism_enable|freezing_actor_steps critic.freezing_steps
n_samples_per_prompt rollout.n_samples_per_prompt|save_value_network critic.save_value_network
actor_learning_rate actor.adam.lr|critic_learning_rate critic.adam.lr|lr_warmup_ratio actor.lr_warmup_ratio
lr_scheduler actor.lr_scheduler|kl_target algo.kl.target|kl_horizon algo.kl.horizon|init_kl_coef algo.kl.init_coef
policy_loss_type actor.policy_loss_type|kl_estimator algo.kl.estimator|aux_loss_coef actor.aux_loss_coef
entropy_loss_coef actor.entropy_coef|adam_betas actor.adam.betas|advantage_estimator algo.advantage.estimator
use_kl_loss algo.kl.use_loss|no_advantage_std_norm algo.advantage.no_std_norm
overlong_buffer_len reward.overlong_buffer_len|overlong_penalty_factor reward.overlong_penalty_factor
stop_properly_penalty_coef reward.stop_properly_penalty_coef|ring_attn_size ds.ring_attn_size
ring_head_stride ds.ring_attn_head_stride|pretrain actor.model_name_or_path
reward_pretrain reward.model_name_or_path|remote_rm_url reward.remote_url|critic_pretrain critic.model_name_or_path
value_head_prefix ds.value_head_prefix|ref_reward_offload ref.offload|agent_func_path train.agent_func_path
prompt_data data.prompt_dataset|prompt_data_probs data.prompt_probs|prompt_split data.prompt_split
input_key data.input_key|label_key data.label_key|input_template data.input_template
apply_chat_template data.apply_chat_template|image_key data.image_key
max_images_per_prompt data.max_images_per_prompt|freeze_visual_encoder actor.freeze_visual_encoder
use_wandb logger.wandb.key|wandb_org logger.wandb.org|wandb_group logger.wandb.group
wandb_project logger.wandb.project|wandb_run_name logger.wandb.run_name|use_tensorboard logger.tensorboard_dir
dynamic_filtering algo.dynamic_filtering_enable|dynamic_filtering_reward_range algo.dynamic_filtering_range
actor_num_nodes actor.num_nodes|actor_num_gpus_per_node actor.num_gpus_per_node|ref_num_nodes ref.num_nodes
ref_num_gpus_per_node ref.num_gpus_per_node|critic_num_nodes critic.num_nodes
critic_num_gpus_per_node critic.num_gpus_per_node|reward_num_nodes reward.num_nodes
reward_num_gpus_per_node reward.num_gpus_per_node|vllm_num_engines vllm.num_engines
vllm_tensor_parallel_size vllm.tensor_parallel_size|vllm_sync_backend vllm.sync_backend
vllm_sync_with_ray vllm.sync_with_ray|vllm_enable_sleep vllm.enable_sleep
vllm_gpu_memory_utilization vllm.gpu_memory_utilization|ds_tensor_parallel_size ds.tensor_parallel_size
eval_steps eval.steps|eval_dataset eval.dataset|eval_split eval.split|eval_temperature eval.temperature
eval_n_samples_per_prompt eval.n_samples_per_prompt|train_max_tokens_per_gpu train.max_tokens_per_gpu
rollout_max_tokens_per_gpu rollout.max_tokens_per_gpu|reward_clip_range reward.clip_range
"""


def moved() -> dict[str, str]:
    """The new name of each old option."""
    pairs = (pair.split() for pair in re.split(r"[|\n]", _MOVED) if pair.strip())
    return dict(pairs)
