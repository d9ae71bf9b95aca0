"""Load a model from a directory in Hugging Face layout, and shard it by FSDP2.

Rank 0 of all training ranks is the only one that reads weights (`spread`), on however many hosts the ranks are: the
others need of the directory what is small, the config.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rltrain.config.schema import FsdpConfig, ModelConfig
from rltrain.core.errors import UserError, first_line
from rltrain.workers.fsdp import attention, packing
from rltrain.workers.fsdp.comm_timing import time_weights
from rltrain.workers.fsdp.mesh import Mesh
from rltrain.workers.fsdp.precision import training_dtype
from rltrain.workers.fsdp.spread import read_once, spread_buffers, spread_parameters
from rltrain.workers.fsdp.tensor_files import TensorFiles, has_files, is_plain, parameters_without_memory
from rltrain.workers.fsdp.value_model import ValueModel
from rltrain.workers.fsdp.weights import check_names


class Weights(Protocol):
    """Where the weights of models come from."""

    def load(self, auto_class: Any, model: ModelConfig, keywords: dict[str, Any]) -> PreTrainedModel:
        """An instance of AUTO_CLASS, made with KEYWORDS; where its weights are is this object's own affair.

        Raises:
            UserError: it cannot be made.
        """
        ...

    def check(self, model: PreTrainedModel) -> None:
        """Make sure that the weights of the policy MODEL can be published.

        Raises:
            UserError: they cannot.
        """
        ...

    def place_parameters(self, module: nn.Module, device: torch.device) -> None:
        """Bring MODULE's parameters that are not sharded yet to DEVICE (collective)."""
        ...

    def place_buffers(self, module: nn.Module, device: torch.device) -> None:
        """Bring MODULE's buffers to DEVICE (collective)."""
        ...


class FromFiles:
    """Rank 0 reads the model's files and spreads their tensors; the others hold shapes until then."""

    def __init__(self) -> None:
        self._unread: dict[nn.Parameter, tuple[TensorFiles, str]] = {}
        """Parameters of models on rank 0 that are still in files, under which name."""

    def load(self, auto_class: Any, model: ModelConfig, keywords: dict[str, Any]) -> PreTrainedModel:
        """See `Weights.load`: in files or whole on rank 0's host, without weights elsewhere (collective)."""

        def read() -> PreTrainedModel:
            with _refusals(auto_class, model):
                if (unread := self._leave_in_files(auto_class, model, keywords)) is not None:
                    return unread
                loaded, report = auto_class.from_pretrained(
                    model_directory(model), output_loading_info=True, **keywords
                )
            _check_complete(report["missing_keys"], model)
            return loaded

        def make() -> PreTrainedModel:
            with _refusals(auto_class, model):
                return auto_class.from_config(**keywords)

        return read_once(read, make)

    def _leave_in_files(self, auto_class: Any, model: ModelConfig, keywords: dict[str, Any]) -> PreTrainedModel | None:
        """The model whose parameters are read when they are placed; None where transformers has to read its files."""
        directory = model_directory(model)
        if not has_files(directory):
            return None
        with parameters_without_memory():
            hollow: PreTrainedModel = auto_class.from_config(**keywords)
        files = TensorFiles(directory)
        names = files.names_of(hollow) if is_plain(hollow) else None
        if names is None:
            return None
        self._unread |= {parameter: (files, name) for parameter, name in names.items()}
        return hollow.eval()  # as transformers leaves what it reads

    def _values(self, parameter: nn.Parameter) -> Tensor:
        if parameter not in self._unread:
            return parameter.data
        files, name = self._unread.pop(parameter)
        return files.read(name).to(parameter.dtype)

    def check(self, model: PreTrainedModel) -> None:
        """See `Weights.check`."""
        check_names(model)

    def place_parameters(self, module: nn.Module, device: torch.device) -> None:
        """See `Weights.place_parameters`."""
        spread_parameters(module, device, self._values)

    def place_buffers(self, module: nn.Module, device: torch.device) -> None:
        """See `Weights.place_buffers`."""
        spread_buffers(module, device)


FILES = FromFiles()


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
    """Where MODEL is.

    Raises:
        UserError: no path is set, or it is no directory with a config.json.
    """
    if model.path is None:
        raise UserError("model.path is not set: give the directory of a model in Hugging Face layout")
    directory = Path(model.path)
    if not (directory / "config.json").is_file():
        raise UserError(f"model.path={directory}: no config.json there; give the directory of a model")
    return directory


def load_causal_lm(model: ModelConfig, fsdp: FsdpConfig, weights: Weights = FILES) -> PreTrainedModel:
    """The policy, in `fsdp.model_dtype`: its weights are where WEIGHTS leaves them until `shard` (collective)."""
    return _load(AutoModelForCausalLM, model, fsdp, weights, packing.ACTOR)


def load_value_model(model: ModelConfig, fsdp: FsdpConfig, seed: int, weights: Weights = FILES) -> ValueModel:
    """The critic (collective). The backbone as `load_causal_lm` says; the head is new on every rank, made from SEED."""
    return ValueModel(_load(AutoModel, model, fsdp, weights, packing.CRITIC), seed)


def _load(auto_class: Any, model: ModelConfig, fsdp: FsdpConfig, weights: Weights, section: str) -> PreTrainedModel:
    keywords = _keywords(model, fsdp)
    known = packing.known_architecture(auto_class, keywords["config"])
    if model.use_remove_padding and known is not None:
        packing.refuse_packing(known, keywords["config"], section)
    loaded = weights.load(auto_class, model, keywords)
    if model.use_remove_padding and known is None:
        packing.refuse_packing(type(loaded), loaded.config, section)
    if model.enable_gradient_checkpointing:
        loaded.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return loaded


def _keywords(model: ModelConfig, fsdp: FsdpConfig) -> dict[str, Any]:
    """How a model is made, with or without its weights."""
    config = load_config(model)
    _silence_dropout(config)
    attention.register()
    return {
        "config": config,
        "dtype": training_dtype(fsdp.model_dtype, "fsdp_config.model_dtype"),
        # None: SDPA, or transformers' own attention where the architecture has no SDPA.
        "attn_implementation": attention.NAME if model.use_remove_padding else None,
        "trust_remote_code": model.trust_remote_code,
    }


@contextmanager
def _refusals(auto_class: Any, model: ModelConfig) -> Generator[None]:
    """Say what transformers and safetensors cannot do with MODEL in one line."""
    try:
        yield
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"model.path={model.path}: cannot be loaded as {auto_class.__name__}: {first_line(error)}"
        ) from error


def _check_complete(missing_keys: Iterable[str], model: ModelConfig) -> None:
    missing = ", ".join(sorted(missing_keys)[:3])
    if missing:
        raise UserError(f"model.path={model.path}: its files hold no weights for {missing}, which would be random")


def _silence_dropout(config: PretrainedConfig) -> None:
    """Policy gradients compare a policy with itself: dropout would make its log-probs differ from call to call."""
    for key, value in config.to_dict().items():
        if isinstance(value, float) and any(word in key for word in ("dropout", "pdrop", "layerdrop", "drop_rate")):
            setattr(config, key, 0.0)


def shard(model: nn.Module, fsdp: FsdpConfig, ranks: Mesh, weights: Weights = FILES) -> FSDPModule:
    """Shard MODEL in place over RANKS: each decoder layer, then a value head, then the rest as one group (collective).

    MODEL comes from WEIGHTS. Those of files reach all ranks one group at a time, so that beside its shards a rank never
    holds more than one group (rank 0: where `tensor_files` can read them). Tied parameters lie in the last group
    together, and stay tied.
    Parameters keep `model_dtype`; forward and backward run in `dtype`; gradients are averaged over ranks in
    float32. With `fsdp_size` it is sharded over so many ranks, and the others hold copies (HSDP).
    """
    mesh = ranks.sharding(fsdp)
    device = torch.device(mesh.device_type)
    weights.place_buffers(model, device)
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
        weights.place_parameters(layer, device)
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard)
    if isinstance(model, ValueModel):
        exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
        weights.place_parameters(model.head, device)
        fully_shard(model.head, mesh=mesh, mp_policy=exact, offload_policy=offload, reshard_after_forward=reshard)
    weights.place_parameters(model, device)
    # The rest (embeddings, final norm, LM head) is used at both ends of a pass: kept whole between them.
    whole = fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=False)
    time_weights(model)
    return whole


def decoder_layers(backbone: nn.Module) -> list[nn.Module]:
    """The modules that the architecture says must not be split, but for those that share weights: its decoder layers.

    Raises:
        UserError: the architecture names none.
    """
    assert isinstance(backbone, PreTrainedModel)
    names = set(backbone._no_split_modules or ())  # pyright: ignore[reportPrivateUsage]
    # `fully_shard` has put its own name before that of the class.
    found = [module for module in backbone.modules() if type(module).__name__.removeprefix("FSDP") in names]
    owners: dict[nn.Parameter, set[nn.Module]] = {}
    for module in backbone.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, set()).add(module)
    found = [
        module for module in found if all(owners[one] <= set(module.modules()) for one in module.parameters())
    ]  # BERT's embeddings are one, and tied to its head
    if not found:
        raise UserError(f"{type(backbone).__name__} names no decoder layers (_no_split_modules): FSDP2 cannot shard it")
    return found


def reshard(model: nn.Module) -> None:
    """Free the gathered parameters that a pass has left whole, so that `parameters()` are shards again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
