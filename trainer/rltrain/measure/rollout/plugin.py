"""The measuring plug-in `rollout`: starts the engine of a config as a run would, and tries what a run needs of it."""

# Transformers' tokenizers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcheck.facts.base import known
from rlcheck.facts.rollout import RolloutFacts, TemplateUse
from rltrain.config import RunConfig, load, resolve
from rltrain.config.machine import this_machine
from rltrain.controller.prepare import tokenizer_of, with_toy
from rltrain.core import nvml
from rltrain.core.errors import UserError
from rltrain.data.template import PromptEncoder
from rltrain.measure.foreign import config_of
from rltrain.measure.report import Report, Tell
from rltrain.measure.rollout.trials import Trials
from rltrain.records.run_dir import RunDir
from rltrain.toy.tasks import TASKS
from rltrain.workers.rollout.protocol import RolloutEngine
from rltrain.workers.rollout.worker import make_engine

MESSAGE = "What is two plus three? Answer with one number."
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_SHOWN = 2000


def run(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """What the engine of a config does.

    Args:
        request: `source` and `overrides` of an rltrain config, or `run`, a `ConfigFacts` as plain data (of another
            framework's config); `directory`, where a toy may be made; `random_weights`: never those of the model's
            files.
        tell: called with `{"stage": …}` before each part, and with `{"partial": …}` after it.

    Returns:
        `rlcheck.facts.rollout.RolloutFacts` as plain data.

    Raises:
        UserError: what the engine, or rltrain, does not take.
    """
    report = Report(tell, RolloutFacts())
    with report.stage("config"):
        config = _config(request)
        _refuse_too_many_gpus(config)
    with report.stage("tokenizer"):
        report.add(template=known(_template(config)))
        prompt = _prompt(config)
    engine, before = _started(config, bool(request.get("random_weights")), report)
    try:
        trials = Trials(engine, config, tokenizer_of(config), prompt, before)
        with report.stage("first generation"):
            trials.first()
        for stage, trial in trials.all():
            with report.stage(stage):
                report.add(**trial())
    finally:
        report.enter("engine stop")
        engine.stop()
    return report.result()


def _config(request: Mapping[str, Any]) -> RunConfig:
    """The config, resolved for this machine, with its toy made."""
    if "run" in request:
        return config_of(request["run"])
    config = resolve(load(request["source"], request["overrides"]), this_machine())
    if config.toy is not None:
        config = with_toy(config, RunDir(Path(request["directory"])))
    if config.actor_rollout_ref.model.path is None:
        raise UserError("actor_rollout_ref.model.path is not set; name a directory in Hugging Face layout")
    return config


def _refuse_too_many_gpus(config: RunConfig) -> None:
    """One engine is started, so its tensor parallelism is what must fit here."""
    wanted, here = config.actor_rollout_ref.rollout.tensor_model_parallel_size, this_machine().num_gpus
    if config.trainer.device == "cuda" and wanted > here:
        raise UserError(
            f"actor_rollout_ref.rollout.tensor_model_parallel_size={wanted}: one engine takes {wanted} GPUs, "
            f"{here} can be seen here; run this where it has them, or with trainer.device=cpu"
        )


def _message(config: RunConfig) -> str:
    if config.toy is None:
        return MESSAGE
    task = TASKS[config.toy.task]
    return task.prompt(task.draw(random.Random(1), config.toy.num_digits, "train"))


def _encoded(config: RunConfig) -> tuple[str, list[int], bool]:
    """Text and tokens of the message, and whether a chat template made them."""
    encoder = PromptEncoder(tokenizer_of(config), config.data.apply_chat_template_kwargs)
    message = ({"role": "user", "content": _message(config)},)
    text, ids = encoder.encode(message, is_plain=True, place="a message of the doctor's own")
    return text, ids, encoder.has_template


def _template(config: RunConfig) -> TemplateUse:
    custom = config.actor_rollout_ref.model.custom_chat_template is not None
    source = "actor_rollout_ref.model.custom_chat_template" if custom else "the tokenizer"
    try:
        text, ids, present = _encoded(config)
    except UserError as error:
        return TemplateUse(present=True, source=source, error=str(error))
    if not present:
        return TemplateUse(present=False)
    return TemplateUse(present=True, source=source, rendered=text[:_SHOWN], num_tokens=len(ids))


def _prompt(config: RunConfig) -> tuple[int, ...]:
    """Tokens of a short prompt; of the bare message where its template fails."""
    limit = config.actor_rollout_ref.rollout.max_model_len or 2
    try:
        ids = _encoded(config)[1]
    except UserError:
        ids = tokenizer_of(config)(_message(config))["input_ids"]  # pyright: ignore[reportCallIssue]
    return tuple(ids)[: max(1, limit // 2)] or (0,)


def _started(
    config: RunConfig, random_weights: bool, report: Report[RolloutFacts]
) -> tuple[RolloutEngine, tuple[nvml.Used, ...] | None]:
    """The engine, and how full the GPUs were before it."""
    parts = config.actor_rollout_ref
    path = parts.model.path
    assert path is not None
    saved = not random_weights and any(True for pattern in _WEIGHTS for _ in Path(path).glob(pattern))
    before = nvml.used() if config.trainer.device == "cuda" else None
    report.add(
        engine=parts.rollout.name,
        model=path,
        device=config.trainer.device,
        weights="saved" if saved else "random",
    )
    report.enter("engine start")
    begun = time.perf_counter()
    engine = make_engine(config, saved)
    facts = engine.start()
    seconds = time.perf_counter() - begun
    imported = float(facts.get("import_s", 0.0))
    if imported:
        report.took("engine import", imported)
    report.took("engine start", seconds - imported)
    report.add(version=str(facts["engine_version"]))
    return engine, before
