"""Loading buckets into a live vLLM model, through vLLM's own layer-by-layer reload.

vLLM's loaders fuse (q, k, v -> qkv), shard, and on some builds pack weights away from their parameters, so that
`model.load_weights` cannot simply be called again. The reload brings each layer back to checkpoint form, loads it,
packs it, and copies the result into the tensors that kernels and CUDA graphs already know. It is what vLLM's weight
transfer engines do (docs.vllm.ai, "Layerwise reloading").
"""

# vLLM has no stubs.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from rltrain.core.errors import RunFailure
from rltrain.core.tensors import empty_cache
from rltrain.workers.rollout.names import engine_name
from rltrain.workers.rollout.readback import owners
from rltrain.workers.sync.receiver import Receivers
from rltrain.workers.sync.transport import Descriptor

# It warns at each reload of layers with nothing to load (rotary tables, tied heads). What is missing is found below.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


class Loader:
    """Takes the buckets of one sync after the other."""

    def __init__(self, model_runner: Any, vllm_config: Any, device: torch.device) -> None:
        self.receivers = Receivers(device)
        self._model_runner = model_runner
        self._vllm_config = vllm_config
        self._device = device
        self._is_reloading = False
        self._expected: set[str] = set()
        self._loaded: set[str] = set()
        self._components: dict[str, tuple[set[int], int]] = {}

    @torch.no_grad()
    def load(self, descriptor: Descriptor, packs_weights: bool) -> None:
        """Load one bucket; the first begins a reload, the last ends it.

        Raises:
            RunFailure: parameters of the model were in no bucket, or not in full.
            ValueError: vLLM's, for a name that the model does not know.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model: Any = self._model_runner.get_model()
        bucket = descriptor.bucket
        with set_current_vllm_config(self._vllm_config):
            if bucket.index == 0:
                if self._is_reloading:
                    # A sync that broke off: layers are put back, with undefined contents.
                    finalize_layerwise_reload(model, self._vllm_config.model_config)
                self._expected = {name for name, _ in model.named_parameters()}
                self._loaded, self._components = set(), {}
                self._is_reloading = True
                initialize_layerwise_reload(model)
            # A layer waits until all its weights are there, and holds what it was given: beyond this bucket, a copy.
            weights = self.receivers.tensors(descriptor, keep=not bucket.is_last)
            self._loaded |= model.load_weights(iter(weights))
            self._note_components(model, [entry.name for entry in bucket.entries])
            if bucket.is_last:
                finalize_layerwise_reload(model, self._vllm_config.model_config)
                self._is_reloading = False
                if packs_weights:
                    pack_tied(model)
        del weights
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if bucket.is_last:
            self._finish()

    def _note_components(self, model: nn.Module, names: Sequence[str]) -> None:
        # vLLM calls a fused parameter loaded when any of its components has come; the others would be garbage.
        for name in names:
            where = engine_name(model, name)
            found, _ = self._components.setdefault(where.path, (set(), where.num_components))
            found.add(where.component)

    def _finish(self) -> None:
        self.receivers.close()
        if self._device.type == "cuda":
            # Scratch of the reload: the KV cache needs the room next.
            empty_cache()
        partial = {path for path, (found, number) in self._components.items() if len(found) < number}
        missing = sorted((self._expected - self._loaded) | partial)
        if missing:
            raise RunFailure(
                f"weight sync: {len(missing)} weights of the engine did not come (or not in full), the first is "
                f"'{missing[0]}'"
            )


def pack_tied(model: nn.Module) -> None:
    """Pack again the weights of layers that share a parameter.

    The reload packs the layer under whose name the parameter came, the embedding. A tied head has a packed copy of its
    own, which would stay what it was: seen with the CPU build of 0.32, log-probabilities then differ by whole nats.
    """
    for modules in owners(model).values():
        if len(modules) > 1:
            for module in modules:
                processed: Any = module.quant_method
                processed.process_weights_after_loading(module)
