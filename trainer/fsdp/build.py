"""Load a model from a directory in Hugging Face layout, and shard it by FSDP2."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from trainer.config.schema import FsdpConfig, ModelConfig
from trainer.errors import UserError, first_line
from trainer.fsdp import attention
from trainer.fsdp.precision import training_dtype
from trainer.fsdp.value_model import ValueModel


def load_config(model: ModelConfig) -> PretrainedConfig:
    """The model's own config, with `override_config` laid over it.

    Raises:
        UserError: there is no directory, or no config that transformers can read.
    """
    directory = model_directory(model)
    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=model.trust_remote_code, **model.override_config)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{directory / 'config.json'}: transformers cannot read the model's config: {first_line(error)}"
        ) from error


def model_directory(model: ModelConfig) -> Path:
    """Where MODEL lies.

    Raises:
        UserError: no path is set, or it is no directory with a config.json.
    """
    if model.path is None:
        raise UserError("model.path is not set: give the directory of a model in Hugging Face layout")
    directory = Path(model.path)
    if not (directory / "config.json").is_file():
        raise UserError(f"model.path={directory}: no config.json there; give the directory of a model")
    return directory


def load_causal_lm(model: ModelConfig, fsdp: FsdpConfig) -> PreTrainedModel:
    """The policy, whole, on the host, in `fsdp.model_dtype`."""
    return _load(AutoModelForCausalLM, model, fsdp)


def load_value_model(model: ModelConfig, fsdp: FsdpConfig, seed: int) -> ValueModel:
    """The critic, whole, on the host. The backbone in `fsdp.model_dtype`; the head is new, made from SEED."""
    return ValueModel(_load(AutoModel, model, fsdp), seed)


def _load(auto_class: Any, model: ModelConfig, fsdp: FsdpConfig) -> PreTrainedModel:
    directory, config = model_directory(model), load_config(model)
    _silence_dropout(config)
    attention.register()
    try:
        loaded, report = auto_class.from_pretrained(
            directory,
            config=config,
            dtype=training_dtype(fsdp.model_dtype, "fsdp_config.model_dtype"),
            attn_implementation=attention.NAME if model.use_remove_padding else "sdpa",
            trust_remote_code=model.trust_remote_code,
            output_loading_info=True,
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"model.path={directory}: cannot be loaded as {auto_class.__name__}: {first_line(error)}"
        ) from error
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise UserError(f"model.path={directory}: its files hold no weights for {missing}, which would be random")
    if model.enable_gradient_checkpointing:
        loaded.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return loaded


def _silence_dropout(config: PretrainedConfig) -> None:
    """Policy gradients compare a policy with itself: dropout would make its log-probs differ from call to call."""
    for key, value in config.to_dict().items():
        if isinstance(value, float) and any(word in key for word in ("dropout", "pdrop", "layerdrop", "drop_rate")):
            setattr(config, key, 0.0)


def shard(model: nn.Module, fsdp: FsdpConfig, mesh: DeviceMesh) -> FSDPModule:
    """Shard MODEL in place over MESH: each decoder layer, then a value head, then the rest as one group.

    Tied parameters lie in that last group together, and stay tied. Parameters keep `model_dtype`; forward and
    backward run in `dtype`; gradients are averaged over ranks in float32.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=training_dtype(fsdp.dtype, "fsdp_config.dtype"), reduce_dtype=torch.float32
    )
    offload: OffloadPolicy = (
        CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if fsdp.offload_policy else OffloadPolicy()
    )
    reshard = fsdp.reshard_after_forward
    backbone = model.backbone if isinstance(model, ValueModel) else model
    layers = decoder_layers(backbone)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard)
    if isinstance(model, ValueModel):
        exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
        fully_shard(model.head, mesh=mesh, mp_policy=exact, offload_policy=offload, reshard_after_forward=reshard)
    # The rest (embeddings, final norm, LM head) is used at both ends of a pass: kept whole between them.
    return fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=False)


def decoder_layers(backbone: nn.Module) -> list[nn.Module]:
    """The modules that the architecture says must not be split: its decoder layers.

    Raises:
        UserError: the architecture names none.
    """
    assert isinstance(backbone, PreTrainedModel)
    names = set(backbone._no_split_modules or ())  # pyright: ignore[reportPrivateUsage]
    found = [module for module in backbone.modules() if type(module).__name__ in names]
    if not found:
        raise UserError(f"{type(backbone).__name__} names no decoder layers (_no_split_modules): FSDP2 cannot shard it")
    return found


def reshard(model: nn.Module) -> None:
    """Free the gathered parameters that a pass has left whole, so that `parameters()` are shards again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
