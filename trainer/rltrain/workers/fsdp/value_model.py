"""The critic's model: a causal backbone and a head that gives one number for each token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class ValueModel(nn.Module):
    """V(state) at each position: Linear(hidden, 1) over the last hidden states, in float32."""

    def __init__(self, backbone: PreTrainedModel, seed: int) -> None:
        """Wrap BACKBONE (from `AutoModel`). SEED: of the head's weights, the same on every rank."""
        super().__init__()
        self.backbone = backbone
        # The width of the token embedding is that of the last hidden state, also where the layers between are wider
        # (OPT-350m: word_embed_proj_dim 512, hidden_size 1024).
        width = backbone.get_input_embeddings().embedding_dim
        assert isinstance(width, int)
        self.head = ValueHead(width, seed)

    def forward(self, logits_to_keep: Tensor, **inputs: Any) -> Tensor:
        """Values [B, K] at the positions LOGITS_TO_KEEP [K]; INPUTS as of the backbone."""
        hidden = self.backbone(**inputs).last_hidden_state
        return self.head(hidden[:, logits_to_keep])


class ValueHead(nn.Module):
    """Linear(width, 1). Weights ~ N(0, 1 / (width + 1)^2), so that first values are near 0; bias 0."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1, dtype=torch.float32)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(1, width, generator=generator) / (width + 1))
            self.linear.bias.zero_()

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] -> [...], float32."""
        # A copy: FSDP hangs a hook on what a module returns, and a view would lose it to an in-place operation.
        return self.linear(hidden.float()).squeeze(-1).clone()
