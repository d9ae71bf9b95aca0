"""Rules that span several keys: everything that a run would trip over later, said before it starts.

Each rule takes a resolved config and yields problems; `notes` holds what is legal and probably not meant.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from rltrain.config.batch_plan import BatchPlan
from rltrain.config.correction_rules import correction_rules
from rltrain.config.engines import ENGINES, others
from rltrain.config.estimators import has_need
from rltrain.config.model_file import TOY, longest_sequence, sizes_in, toy_problems
from rltrain.config.paths import absolute, existing, missing, unusable
from rltrain.config.resolve import rollout_devices
from rltrain.config.reward_rules import rewards
from rltrain.config.schema import ModelConfig, RunConfig
from rltrain.core.errors import UserError

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
_RESUME_MODES = ("auto", "disable", "resume_path")
# Files with rows that rltrain.data reads.
DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")


def check(config: RunConfig) -> None:
    """Hold the resolved CONFIG against every rule.

    Raises:
        UserError: each problem, one a line: key, what is wrong, how to fix it.
    """
    problems = [problem for rule in RULES for problem in rule(config)]
    if problems:
        raise UserError("\n".join(problems))


def _batches(config: RunConfig) -> Iterator[str]:
    yield from _batch(config, ACTOR, BatchPlan.of(config))
    if config.critic.enable:
        yield from _batch(config, "critic", BatchPlan.of_critic(config))


def _batch(config: RunConfig, role: str, plan: BatchPlan) -> Iterator[str]:
    if plan.mini_batch_prompts > plan.prompts_per_step:
        yield (
            f"{role}.ppo_mini_batch_size: {plan.mini_batch_prompts} prompts is more than data.train_batch_size="
            f"{plan.prompts_per_step}; both count prompts"
        )
    elif plan.prompts_per_step % plan.mini_batch_prompts:
        yield (
            f"{role}.ppo_mini_batch_size: {plan.mini_batch_prompts} does not divide data.train_batch_size="
            f"{plan.prompts_per_step}; try {_divisor(plan.prompts_per_step, plan.mini_batch_prompts)}"
        )
    if plan.mini_batch_samples < plan.data_ranks:
        yield (
            f"{role}.ppo_mini_batch_size: a mini batch of {plan.mini_batch_samples} samples leaves some of the "
            f"{plan.data_ranks} training ranks without any"
        )
    model = config.critic.model if role == "critic" else config.actor_rollout_ref.model
    if plan.max_tokens_per_micro_batch is not None and not model.use_remove_padding:
        yield (
            f"{role}.use_dynamic_bsz: counts tokens without padding, so it needs use_remove_padding=true of the "
            "role's model; set that, or give ppo_micro_batch_size_per_gpu"
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    if plan.max_tokens_per_micro_batch is not None and plan.max_tokens_per_micro_batch < longest:
        yield (
            f"{role}.ppo_max_token_len_per_gpu: {plan.max_tokens_per_micro_batch} tokens do not hold one sample of "
            f"data.max_prompt_length + data.max_response_length = {longest}"
        )


def _divisor(number: int, limit: int) -> int:
    """The largest divisor of NUMBER that is not more than LIMIT."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return max(size for one in small for size in (one, number // one) if size <= limit)


def _algorithm(config: RunConfig) -> Iterator[str]:
    algorithm, n = config.algorithm, config.actor_rollout_ref.rollout.n
    estimator = algorithm.adv_estimator
    if has_need(estimator, "group") and n < 2:
        yield f"{ROLLOUT}.n: {estimator} compares the samples of one prompt, so n must be > 1, got {n}; try n=8"
    if has_need(estimator, "critic") and not config.critic.enable:
        why = f"algorithm.adv_estimator={estimator} needs the critic"
        yield f"critic.enable: {why}; remove critic.enable or choose grpo"
    if config.trainer.critic_warmup and not config.critic.enable:
        yield "trainer.critic_warmup: there is no critic to warm up; set it to 0"
    if algorithm.filter_groups.enable and n < 2:
        yield "algorithm.filter_groups.enable: groups of one sample have equal rewards; raise rollout.n"
    yield from _filter_metric(config)
    yield from correction_rules(config)


def _staleness(config: RunConfig) -> Iterator[str]:
    """What generating ahead cannot be combined with."""
    algorithm, key = config.algorithm, "algorithm.max_staleness"
    if not algorithm.max_staleness:
        return
    if config.actor_rollout_ref.hybrid_engine:
        gpus = f" and {ROLLOUT}.n_gpus_per_node, or max_staleness=0" if config.trainer.device == "cuda" else ""
        way = f"set actor_rollout_ref.hybrid_engine=false{gpus}"
        yield f"{key}: engines generate while ranks train, so they need devices of their own; {way}"
    if algorithm.filter_groups.enable:
        yield f"{key}: filter_groups generates until a batch is full, which is not known a step ahead; disable one"
    if has_need(algorithm.adv_estimator, "greedy"):
        yield f"{key}: {algorithm.adv_estimator} asks for greedy answers as well; choose grpo, rloo or gae"
    if config.trainer.capsule_steps:
        yield f"trainer.capsule_steps: a capsule is of one policy, with {key} there are several; set it to []"
    if algorithm.max_staleness > 1:
        yield from _interrupted(config)


def _interrupted(config: RunConfig) -> Iterator[str]:
    """What answers that take new weights while they are being written cannot be combined with."""
    rollout, key = config.actor_rollout_ref.rollout, f"algorithm.max_staleness={config.algorithm.max_staleness}"
    if not ENGINES[rollout.name].continues:
        yield (
            f"{key}: answers go on from their tokens so far with new weights, which the {rollout.name} engine cannot; "
            f"set max_staleness=1, or {ROLLOUT}.{others('continues')}"
        )
    if rollout.stop:
        yield (
            f"{ROLLOUT}.stop: with {key} an answer may be written in parts, and a text across two of them is not "
            "found; set stop_token_ids, or max_staleness=1"
        )


def _filter_metric(config: RunConfig) -> Iterator[str]:
    metric, custom = config.algorithm.filter_groups.metric, config.custom_reward_function.path is not None
    known = ["acc", "score", *(rule.name or rule.kind for rule in config.reward_model.rules)]
    known += ["custom"] * custom + ["model"] * config.reward_model.enable
    if config.algorithm.filter_groups.enable and metric not in known and not (custom and metric.startswith("custom/")):
        yield f"algorithm.filter_groups.metric: '{metric}' is no part of the reward; choose one of {', '.join(known)}"


def _rollout(config: RunConfig) -> Iterator[str]:
    rollout, data = config.actor_rollout_ref.rollout, config.data
    longest = data.max_prompt_length + data.max_response_length
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        yield (
            f"{ROLLOUT}.max_model_len: {rollout.max_model_len} is less than data.max_prompt_length + "
            f"data.max_response_length = {longest}"
        )
    length = rollout.max_model_len or longest
    if not rollout.enable_chunked_prefill and rollout.max_num_batched_tokens < length:
        yield (
            f"{ROLLOUT}.max_num_batched_tokens: {rollout.max_num_batched_tokens} must be >= max_model_len={length} "
            "without enable_chunked_prefill"
        )
    if rollout.min_tokens > data.max_response_length:
        most = data.max_response_length
        yield f"{ROLLOUT}.min_tokens: {rollout.min_tokens} is more than data.max_response_length={most}"
    if "" in rollout.stop:
        yield f"{ROLLOUT}.stop: an empty text is found in every response at once; remove it"
    val = rollout.val_kwargs
    greedy = not val.do_sample or val.temperature == 0
    if val.do_sample and val.temperature == 0:
        yield f"{ROLLOUT}.val_kwargs: do_sample=true needs temperature > 0"
    if val.n > 1 and greedy:
        yield (
            f"{ROLLOUT}.val_kwargs.n: {val.n} greedy answers to a prompt are the same; "
            "set n=1, or do_sample=true and temperature > 0"
        )


def _devices(config: RunConfig) -> Iterator[str]:
    parts, trainer = config.actor_rollout_ref, config.trainer
    rollout, tp = parts.rollout, parts.rollout.tensor_model_parallel_size
    if ENGINES[rollout.name].is_elsewhere:
        if rollout.num_replicas != 1:
            yield f"{ROLLOUT}.num_replicas: name={rollout.name} asks one server, so it must be 1; it may be a router"
        return
    if parts.hybrid_engine and rollout.nnodes:
        yield f"{ROLLOUT}.nnodes: nodes for rollout alone need actor_rollout_ref.hybrid_engine=false"
    if trainer.device == "cpu" and (parts.hybrid_engine or not rollout.n_gpus_per_node):
        return
    if not parts.hybrid_engine and not rollout.n_gpus_per_node:
        yield f"{ROLLOUT}.n_gpus_per_node: hybrid_engine=false needs GPUs for rollout; give how many per node"
        return
    per_node = trainer.n_gpus_per_node if parts.hybrid_engine else rollout.n_gpus_per_node
    assert per_node is not None
    assert rollout.num_replicas is not None
    owner = "trainer.n_gpus_per_node" if parts.hybrid_engine else f"{ROLLOUT}.n_gpus_per_node"
    if per_node % tp:
        yield f"{ROLLOUT}.tensor_model_parallel_size: {tp} does not divide {owner}={per_node}"
    elif rollout.num_replicas * tp > rollout_devices(config):
        needed, there = rollout.num_replicas * tp, rollout_devices(config)
        what = "GPUs" if trainer.device == "cuda" else "CPU slots"
        said = f"{rollout.num_replicas} engines of {tp} {what} need {needed}, there are {there} for rollout"
        yield f"{ROLLOUT}.num_replicas: {said}; set {ROLLOUT}.num_replicas={there // tp}"


def _sharding(config: RunConfig) -> Iterator[str]:
    ranks = BatchPlan.of(config).data_ranks
    used = {
        ACTOR: config.actor_rollout_ref.actor.fsdp_config,
        "actor_rollout_ref.ref": config.actor_rollout_ref.ref.fsdp_config if config.needs_reference else None,
        "critic": config.critic.fsdp_config if config.critic.enable else None,
        "reward_model": config.reward_model.fsdp_config if config.reward_model.enable else None,
    }
    for role, fsdp in used.items():
        size = -1 if fsdp is None else fsdp.fsdp_size
        if 0 < size < ranks and ranks % size:
            advice = f"try {_divisor(ranks, size)}, or -1"
            yield f"{role}.fsdp_config.fsdp_size: {size} does not divide the {ranks} training ranks; {advice}"


def _engine(config: RunConfig) -> Iterator[str]:
    parts = config.actor_rollout_ref
    rollout, engine = parts.rollout, ENGINES[parts.rollout.name]
    what = f"the {engine.name} engine"
    if rollout.tensor_model_parallel_size > 1 and not engine.is_parallel:
        advice = f"set 1 or {others('is_parallel')}"
        yield f"{ROLLOUT}.tensor_model_parallel_size: {what} has no tensor parallelism; {advice}"
    on_gpu = config.trainer.device == "cuda" and parts.hybrid_engine
    if on_gpu and rollout.free_cache_engine and not engine.sleeps:
        advice = f"set false (its weights stay on the GPU) or {others('sleeps')}"
        yield f"{ROLLOUT}.free_cache_engine: {what} cannot sleep; {advice}"
    if engine.is_elsewhere and not rollout.engine_kwargs.get(engine.name, {}).get("url"):
        yield f"{ROLLOUT}.engine_kwargs.{engine.name}.url: missing; give the server's, e.g. http://10.0.0.5:30000"
    if rollout.engine_kwargs.get(engine.name) and not engine.takes_arguments:
        yield f"{ROLLOUT}.engine_kwargs.{engine.name}: {what} takes no further arguments"


def _data(config: RunConfig) -> Iterator[str]:
    data, toy, warmup = config.data, config.toy, config.sft_warmup
    for key, files in (("train_files", data.train_files), ("val_files", data.val_files)):
        if files is None and toy is None:
            yield f"data.{key}: give a file, e.g. data.{key}=/path/to/file.parquet, or a `toy` section"
        yield from _rows(f"data.{key}", files)
    if warmup.steps and warmup.files is None and toy is None:
        yield "sft_warmup.files: sft_warmup.steps > 0 needs a file with prompt and response, or a `toy` section"
    yield from _rows("sft_warmup.files", warmup.files)
    rows = toy.num_train if toy is not None and data.train_files is None else None
    if data.train_max_samples > 0:
        rows = data.train_max_samples if rows is None else min(rows, data.train_max_samples)
    if rows is not None and rows < data.train_batch_size:
        yield f"data.train_batch_size: {data.train_batch_size} prompts a step, but only {rows} rows to train on"
    if toy is not None and data.train_files is None and toy.response_tokens > data.max_response_length:
        yield (
            f"data.max_response_length: {data.max_response_length} does not hold the {toy.response_tokens} tokens of "
            f"an answer of toy.num_digits={toy.num_digits} and its end"
        )


def _rows(key: str, files: str | tuple[str, ...] | None) -> Iterator[str]:
    """Files with rows, of which there is one at least, are there and of a kind that can be read."""
    paths = (files,) if isinstance(files, str) else files
    if paths == ():
        yield f"{key}: an empty list; name a file, or null for what the `toy` section makes"
    yield from existing(key, paths)
    for path in paths or ():
        if os.path.isfile(path) and os.path.splitext(path)[1].lower() not in DATA_SUFFIXES:
            yield (
                f"{key}: {path}: unknown kind of file; expected {', '.join(DATA_SUFFIXES)} or a directory that "
                "datasets.save_to_disk wrote"
            )


def _models(config: RunConfig) -> Iterator[str]:
    model, toy = config.actor_rollout_ref.model, config.toy
    if model.path is None and (toy is None or not toy.model):
        yield (
            "actor_rollout_ref.model.path: give the directory of a model, e.g. actor_rollout_ref.model.path="
            "/path/to/model, or sizes of a new one in toy.model"
        )
    elif model.path is None and toy is not None and "model_type" not in toy.model:
        yield "toy.model.model_type: must be given, e.g. qwen2"
    elif model.path is None and toy is not None:
        yield from toy_problems(toy)
    yield from _model("actor_rollout_ref.model", model)
    if config.critic.enable and config.critic.model.path != model.path:
        yield from _model("critic.model", config.critic.model)
    if config.reward_model.enable:
        yield from _model("reward_model.model", config.reward_model.model)


def _lengths(config: RunConfig) -> Iterator[str]:
    """The models that read whole samples have positions for them."""
    model, toy = config.actor_rollout_ref.model, config.toy
    try:
        yield from _length(config, (toy.model, TOY) if model.path is None and toy is not None else sizes_in(model))
        if config.critic.enable and config.critic.model.path != model.path:
            yield from _length(config, sizes_in(config.critic.model))
    except UserError as error:
        yield str(error)


def _length(config: RunConfig, found: tuple[dict[str, Any], str] | None) -> Iterator[str]:
    most = None if found is None else longest_sequence(*found)
    if found is None or most is None:
        return
    longest = config.data.max_prompt_length + config.data.max_response_length
    if longest > most:
        yield (
            f"data.max_prompt_length + data.max_response_length = {longest} is more than the model has positions for: "
            f"max_position_embeddings={most} in {found[1]}"
        )


def _model(key: str, model: ModelConfig) -> Iterator[str]:
    for name, path in (("path", model.path), ("tokenizer_path", model.tokenizer_path)):
        if path is None or (name == "tokenizer_path" and path == model.path):
            continue
        if not os.path.isdir(path):
            yield f"{missing(f'{key}.{name}', path)}; `hf download OWNER/NAME --local-dir DIR` fetches a model"
        elif name == "path" and not os.path.isfile(os.path.join(path, "config.json")):
            yield f"{key}.path: {path} holds no config.json; it must be a model in Hugging Face layout"


def _trainer(config: RunConfig) -> Iterator[str]:
    trainer = config.trainer
    for name in ("default_local_dir", "rollout_data_dir"):
        path = getattr(trainer, name)
        if path is not None and (why := unusable(path)) is not None:
            yield f"trainer.{name}: {why}"
    for name in ("save_freq", "test_freq", "log_samples_freq"):
        every = getattr(trainer, name)
        if every == 0 or every < -1:
            yield f"trainer.{name}: {every} must be -1 (never in between) or a number of steps > 0"
    for name in ("train_max_samples", "val_max_samples"):
        most = getattr(config.data, name)
        if most == 0 or most < -1:
            yield f"data.{name}: {most} must be -1 (all) or a number of rows > 0"
    yield from _resume_mode(trainer.resume_mode)
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is None:
        yield "trainer.resume_from_path: trainer.resume_mode=resume_path needs the directory of a checkpoint"
    if trainer.resume_mode != "resume_path" and trainer.resume_from_path is not None:
        mode = trainer.resume_mode
        yield f"trainer.resume_from_path: has no effect with resume_mode={mode}; set resume_path, or remove it"
    yield from existing("trainer.resume_from_path", trainer.resume_from_path)
    if not trainer.logger:
        yield "trainer.logger: must name at least one of console, tensorboard, wandb"


def _resume_mode(mode: str) -> Iterator[str]:
    if mode in _RESUME_MODES:
        return
    if os.sep not in mode:
        near = difflib.get_close_matches(mode, _RESUME_MODES, n=1, cutoff=0.5)
        meant = f"did you mean '{near[0]}'?" if near else f"a directory of this name is written ./{mode}"
        choices = f"{', '.join(_RESUME_MODES)} or the path of a checkpoint"
        yield f"trainer.resume_mode: expected {choices}, got '{mode}'; {meant}"
    else:
        yield from existing("trainer.resume_mode", absolute(mode))


RULES: tuple[Callable[[RunConfig], Iterator[str]], ...] = (
    _batches,
    _algorithm,
    _staleness,
    _rollout,
    _devices,
    _sharding,
    _engine,
    _data,
    _models,
    _lengths,
    rewards,
    _trainer,
)

SHARED_RULES: tuple[Callable[[RunConfig], Iterator[str]], ...] = (_sharding, _data, _models, _lengths, _trainer)
"""Those that hold for supervised training as well."""
