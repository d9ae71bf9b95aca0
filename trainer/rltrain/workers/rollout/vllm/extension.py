"""Inside each vLLM worker: methods that vLLM mixes into its worker class (`worker_extension_cls`): weight sync, traces.

Their names begin with `rltrain_`: vLLM refuses an extension whose names its workers have.
"""

# vLLM has no stubs.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltrain.core.errors import first_line
from rltrain.tracing.recorder import Recorder
from rltrain.workers.rollout.readback import Kinds, pieces
from rltrain.workers.rollout.vllm.loading import Loader
from rltrain.workers.rollout.vllm.trace import finish, listen
from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.checksum import Piece
from rltrain.workers.sync.transport import Descriptor
from rltrain.workers.sync.wire import Call, packed_pieces


class SyncExtension:
    """Mixed into vLLM's `Worker`, whose attributes it uses: `device`, `rank`, `model_runner`, `vllm_config`."""

    device: Any
    rank: int
    model_runner: Any
    vllm_config: Any
    rltrain_loader: Loader | None = None
    rltrain_recorder: Recorder | None = None

    def rltrain_connect(self, address: Address, first_rank: int) -> None:
        """Join the broadcast group; this worker is member FIRST_RANK + its own rank."""
        self.rltrain_get_loader().receivers.connect(address, first_rank + self.rank)

    def rltrain_load(self, descriptor: Descriptor, packs_weights: bool) -> None:
        """Load one bucket."""
        self.rltrain_get_loader().load(descriptor, packs_weights)

    def rltrain_pieces(self, names: Sequence[str]) -> dict[str, list[Piece]]:
        """Checksums of what this worker holds of each of the published NAMES."""
        from vllm.config import set_current_vllm_config
        from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

        with set_current_vllm_config(self.vllm_config):
            rank, size = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
            dtype = self.vllm_config.model_config.dtype
            return pieces(self.model_runner.get_model(), names, rank, size, dtype, _kinds())

    def rltrain_call(self, text: str) -> dict[str, Any]:
        """As a server is asked: CALL in JSON (`rltrain.workers.sync.wire`), its answer, or `error` in one line."""
        call = Call.read(json.loads(text))
        try:
            return {"value": self._rltrain_do(call)}
        except Exception as error:  # whatever a weight loader raises: it is told, and the server lives on
            return {"error": first_line(error)}

    def _rltrain_do(self, call: Call) -> Any:
        if call.name == "connect":
            assert call.address is not None
            self.rltrain_connect(call.address, call.first_rank)
        elif call.name == "load":
            assert call.descriptor is not None
            self.rltrain_load(call.descriptor, packs_weights=self.device.type == "cpu")
        elif call.name == "pieces":
            return packed_pieces(self.rltrain_pieces(call.names))
        return None

    def rltrain_trace(self) -> None:
        """Listen to the model's operations from now on."""
        self.rltrain_recorder = listen(self.model_runner.get_model())

    def rltrain_end_trace(self, file: str, num_prompt: int, num_rows: int, log_probs: Sequence[float] | None) -> None:
        """Listen no more, and write what was heard (`trace.finish`); LOG_PROBS of None: nothing to write."""
        recorder, self.rltrain_recorder = self.rltrain_recorder, None
        if recorder is not None:
            recorder.close()
            if log_probs is not None:
                finish(recorder, Path(file), num_prompt, num_rows, log_probs)

    def rltrain_get_loader(self) -> Loader:
        """This worker's loader, made at the first call."""
        if self.rltrain_loader is None:
            self.rltrain_loader = Loader(self.model_runner, self.vllm_config, self.device)
        return self.rltrain_loader


def _kinds() -> Kinds:
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    return Kinds(
        linear.QKVParallelLinear,
        linear.MergedColumnParallelLinear,
        linear.ColumnParallelLinear,
        linear.RowParallelLinear,
        VocabParallelEmbedding,
    )
