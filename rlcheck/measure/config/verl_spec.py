"""A verl config in the words of `RunSpec`."""

from __future__ import annotations

from typing import Any

from rlcheck.facts.config import (
    DataSpec,
    ModelUse,
    RewardSpec,
    RoleSpec,
    RolloutSpec,
    RunSpec,
    Sharding,
)
from rlcheck.measure.config import verl_roles
from rlcheck.measure.config.algorithms import algorithm_of
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.estimators import needs
from rlcheck.measure.config.verl_roles import ROLLOUT


def spec_of(config: Config) -> RunSpec:
    """What CONFIG asks for. What it leaves open is filled as verl does; `config.fallbacks` says with what."""
    pick = config.pick
    actor = verl_roles.actor(config)
    algorithm = algorithm_of(config)
    needs_ref = algorithm.use_kl_in_reward or actor.use_kl_loss
    asked = pick.raw("critic.enable")
    needs_critic = bool(asked) if asked is not None else needs(algorithm.adv_estimator, "critic")
    rollout_nodes = pick.whole(f"{ROLLOUT}.nnodes", 0)
    hybrid = pick.flag("actor_rollout_ref.hybrid_engine", True)
    own = rollout_nodes > 0
    return RunSpec(
        nodes=pick.whole("trainer.nnodes", 1),
        gpus_per_node=pick.whole("trainer.n_gpus_per_node", 8),
        device=pick.text("trainer.device", "cuda"),
        colocated=hybrid,
        rollout_nodes=rollout_nodes,
        rollout_gpus_per_node=pick.whole(f"{ROLLOUT}.n_gpus_per_node", 0) if own or not hybrid else 0,
        actor=actor,
        ref=verl_roles.ref(config, actor) if needs_ref else None,
        critic=verl_roles.critic(config, actor) if needs_critic else None,
        reward_model=_reward_model(config),
        rollout=_rollout(config, ROLLOUT),
        data=_data(config),
        algorithm=algorithm,
        reward=_reward(config),
        loggers=pick.words("trainer.logger"),
        save_freq=pick.whole("trainer.save_freq", -1),
        test_freq=pick.whole("trainer.test_freq", -1),
        val_before_train=pick.flag("trainer.val_before_train", True),
        total_epochs=pick.whole("trainer.total_epochs", 30),
        total_steps=pick.whole("trainer.total_training_steps"),
        critic_warmup=pick.whole("trainer.critic_warmup", 0),
        run_dir=pick.text("trainer.default_local_dir", ""),
        project=pick.text("trainer.project_name", ""),
        experiment=pick.text("trainer.experiment_name", ""),
        ray_address=pick.text("ray_kwargs.ray_init.address", ""),
    )


def _rollout(config: Config, key: str) -> RolloutSpec:
    pick = config.pick
    name = pick.text(f"{key}.name", "")
    arguments = _engine_arguments(config, key, name)
    megabytes = pick.whole(f"{key}.checkpoint_engine.update_weights_bucket_megabytes", 2048)
    kv_dtype = arguments.get("kv_cache_dtype")
    return RolloutSpec(
        name=name,
        mode=pick.text(f"{key}.mode", "async"),
        n=pick.whole(f"{key}.n", 1),
        temperature=pick.number(f"{key}.temperature", 1.0),
        top_p=pick.number(f"{key}.top_p", 1.0),
        top_k=pick.whole(f"{key}.top_k", -1),
        dtype=pick.dtype(f"{key}.dtype", "bfloat16"),
        memory_utilization=pick.number(f"{key}.gpu_memory_utilization", 0.5),
        enforce_eager=pick.flag(f"{key}.enforce_eager"),
        sleeps=pick.flag(f"{key}.free_cache_engine", True),
        tensor_parallel=pick.whole(f"{key}.tensor_model_parallel_size", 2),
        data_parallel=pick.whole(f"{key}.data_parallel_size", 1),
        pipeline_parallel=pick.whole(f"{key}.pipeline_model_parallel_size", 1),
        expert_parallel=pick.whole(f"{key}.expert_parallel_size", 1),
        max_batched_tokens=pick.whole(f"{key}.max_num_batched_tokens", 8192),
        max_seqs=pick.whole(f"{key}.max_num_seqs", 1024),
        max_model_len=pick.whole(f"{key}.max_model_len"),
        chunked_prefill=pick.flag(f"{key}.enable_chunked_prefill", True),
        prefix_caching=pick.flag(f"{key}.enable_prefix_caching", True),
        load_format=pick.text(f"{key}.load_format", "dummy"),
        calculate_log_probs=pick.flag(f"{key}.calculate_log_probs"),
        kv_cache_dtype=kv_dtype if isinstance(kv_dtype, str) else "auto",
        quantization=pick.text(f"{key}.quantization"),
        layered_summon=pick.flag(f"{key}.layered_summon"),
        multi_turn=pick.flag(f"{key}.multi_turn.enable"),
        sync_bucket_bytes=megabytes << 20,
        val_temperature=pick.number(f"{key}.val_kwargs.temperature", 0.0),
        val_n=pick.whole(f"{key}.val_kwargs.n", 1),
        val_do_sample=pick.flag(f"{key}.val_kwargs.do_sample"),
        engine_kwargs=arguments,
    )


def _engine_arguments(config: Config, key: str, name: str) -> dict[str, Any]:
    return config.pick.mapping(f"{key}.engine_kwargs.{name}") if name else {}


def _data(config: Config) -> DataSpec:
    pick = config.pick
    return DataSpec(
        train_files=pick.words("data.train_files"),
        val_files=pick.words("data.val_files"),
        prompt_key=pick.text("data.prompt_key", "prompt"),
        # No release that is known reads data.reward_fn_key (verl before 0.7.1 did): its managers take data_source.
        source_key=pick.text("data.reward_fn_key", "data_source") if config.unsure_keys else "data_source",
        max_prompt_length=pick.whole("data.max_prompt_length", 512),
        max_response_length=pick.whole("data.max_response_length", 512),
        train_batch_size=pick.whole("data.train_batch_size", 1024),
        filter_overlong_prompts=pick.flag("data.filter_overlong_prompts"),
        truncation=pick.text("data.truncation", "error"),
        template_kwargs=pick.mapping("data.apply_chat_template_kwargs"),
        train_max_samples=pick.whole("data.train_max_samples", -1),
    )


def _reward(config: Config) -> RewardSpec:
    pick = config.pick
    old, new = "custom_reward_function", "reward.custom_reward_function"
    url = pick.first(pick.text, "sandbox_fusion.url", "reward.sandbox_fusion.url")
    return RewardSpec(
        function_path=pick.first(pick.text, f"{old}.path", f"{new}.path"),
        function_name=pick.first(pick.text, f"{old}.name", f"{new}.name") or "compute_score",
        manager=pick.first(pick.text, "reward_model.reward_manager", "reward.reward_manager.name") or "naive",
        endpoints=() if url is None else (url,),
    )


def _reward_model(config: Config) -> RoleSpec | None:
    """The reward model, which an inference engine serves; the section's old name wins where it is given."""
    pick, key = config.pick, "reward.reward_model"
    old = pick.raw("reward_model.enable")
    if not (bool(old) if old is not None else pick.flag(f"{key}.enable")):
        return None
    engine = _rollout(config, f"{key}.rollout")
    pooled = pick.raw("reward_model.enable_resource_pool")
    own = bool(pooled) if pooled is not None else pick.flag(f"{key}.enable_resource_pool")
    nodes = pick.first(pick.whole, "reward_model.nnodes", f"{key}.nnodes") or 0
    per_node = pick.first(pick.whole, "reward_model.n_gpus_per_node", f"{key}.n_gpus_per_node") or 0
    return RoleSpec(
        name="reward_model",
        trained=False,
        model=ModelUse(path=pick.first(pick.text, "reward_model.model.path", f"{key}.model_path")),
        sharding=Sharding(strategy=engine.name, tensor_parallel=engine.tensor_parallel, model_dtype=engine.dtype),
        engine=engine,
        own_gpus=nodes * per_node if own else 0,
    )
