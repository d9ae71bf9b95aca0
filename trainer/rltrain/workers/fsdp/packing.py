"""Whether a model reads rows beside each other as it reads each alone: from its architecture, and by trial.

Attention is told the borders of packed rows. A convolution, a state-space layer or attention of another kind is not,
and carries one row into the next without an error.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from rltrain.core.errors import UserError, first_line
from rltrain.workers.fsdp.micro import Shard, take

ACTOR, CRITIC = "actor_rollout_ref.model", "critic.model"
"""Sections of a run config that say how a model's rows are read."""

PACKABLE_LAYERS = ("full_attention", "sliding_attention", "attention")
"""Kinds of layers (transformers' `layer_types`) that keep packed rows apart."""

PROMPTS, RESPONSES = (6, 3, 5), (8, 6, 7)
"""Tokens of the rows of the trial. The middle one is judged: it has neighbours, and padding, on both sides."""
MIDDLE = 1


@dataclass(frozen=True)
class Bounds:
    """What rounding explains, in nats a token, or in standard deviations of a critic's values."""

    alone: float
    """Mean over the row: other kernels, in another order of sums."""
    exact: float
    """Largest: the same kernels on the same shapes."""


BOUNDS = {torch.float32: Bounds(2e-3, 1e-4)}
HALF = Bounds(0.2, 0.02)

Reader = Callable[[Shard], Tensor]
"""Rows -> what the model says at each of their response tokens, [b, r]."""


@dataclass(frozen=True)
class Gaps:
    """How much the middle row's numbers change."""

    alone: float
    """Between the row among others and the row alone; mean over its tokens."""
    neighbours: float
    """When the tokens of its neighbours change; largest."""
    later: float
    """When its own last token changes, at the tokens before; largest."""


def refuse_packing(architecture: type[PreTrainedModel], config: PretrainedConfig, section: str) -> None:
    """Make sure that the layers of ARCHITECTURE are of kinds that keep packed rows apart.

    Raises:
        UserError: they are not; names the key of SECTION (`ACTOR` or `CRITIC`) that turns packing off.
    """
    why = None
    if not architecture._supports_attention_backend:  # pyright: ignore[reportPrivateUsage]
        why = "does not hand the borders of packed rows to its layers"
    elif others := sorted(layer_kinds(config) - set(PACKABLE_LAYERS)):
        why = f"has layers that carry one packed row into the next ({', '.join(others)})"
    if why is not None:
        raise UserError(f"{architecture.__name__} {why}: set {section}.use_remove_padding=false")


def layer_kinds(config: PretrainedConfig) -> set[str]:
    """Kinds of the layers of the model of CONFIG, where it says them."""
    text = config.get_text_config(decoder=True).to_dict()
    return {str(kind) for name in ("layer_types", "layers_block_type", "block_types") for kind in text.get(name) or ()}


def trial_rows(vocabulary: int, longest: tuple[int, int], device: str) -> tuple[Shard, Shard]:
    """Three random rows on DEVICE; and the same with other neighbours of the middle one.

    Args:
        vocabulary: tokens to draw from, but for the first and the last, where special ones are.
        longest: tokens of a prompt and of a response that the model has room for.
        device: of the result.
    """
    generator = torch.Generator().manual_seed(vocabulary)
    lengths = [torch.tensor(wanted).clamp(max=most) for wanted, most in zip((PROMPTS, RESPONSES), longest, strict=True)]
    prompt, response = (torch.arange(int(length.max())) for length in lengths)
    mask = response < lengths[1][:, None]
    real = torch.cat([prompt >= len(prompt) - lengths[0][:, None], mask], dim=1)
    first, last = vocabulary // 8, max(vocabulary // 2, vocabulary // 8 + 2)
    ids, others = (torch.randint(first, last, real.shape, generator=generator) * real for _ in range(2))
    others[MIDDLE] = ids[MIDDLE]
    rows = {"attention_mask": real, "position_ids": (real.cumsum(1) - 1).clamp(min=0), "response_mask": mask}
    here = {name: tensor.to(device) for name, tensor in rows.items()}
    return {**here, "input_ids": ids.to(device)}, {**here, "input_ids": others.to(device)}


def read_gaps(among: Reader, alone: Reader, trial: tuple[Shard, Shard], relative: bool = False) -> Gaps:
    """Read the rows of TRIAL (`trial_rows`) AMONG others as the run will, and ALONE without packing or padding.

    RELATIVE: in standard deviations of what is read.

    Raises:
        UserError: the model cannot be read.
    """
    rows, other_neighbours = trial
    one = take(rows, [MIDDLE])
    ended = {**one, "input_ids": one["input_ids"].clone()}
    low, high = one["input_ids"].aminmax()
    end = int(one["attention_mask"][0].nonzero()[-1])
    ended["input_ids"][0, end] = low if ended["input_ids"][0, end] == high else high
    count = int(one["response_mask"].sum())
    try:
        with torch.no_grad():
            found = [among(rows)[MIDDLE, :count], among(other_neighbours)[MIDDLE, :count]]
            found += [alone(one)[0, :count], alone(ended)[0, :count]]
    except (torch.OutOfMemoryError, torch.distributed.DistError):
        raise
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, RuntimeError) as error:
        raise UserError(f"the model cannot be read: {type(error).__name__}: {first_line(error)}") from error
    here, there, single, other_end = (numbers.double() for numbers in found)
    scale = float(single.std()) if relative and count > 1 else 1.0
    return Gaps(
        float((here - single).abs().mean()) / scale,
        float((here - there).abs().max()) / scale,
        float((single - other_end)[:-1].abs().max()) / scale if count > 1 else 0.0,
    )


def judge(gaps: Gaps, dtype: torch.dtype, name: str, section: str, packed: bool) -> None:
    """Make sure that GAPS are no more than rounding of DTYPE explains.

    Raises:
        UserError: they are more; NAME is of the architecture, SECTION as in `refuse_packing`.
    """
    bounds = BOUNDS.get(dtype, HALF)
    # "not <=": a gap that is no number is one.
    if not gaps.later <= bounds.exact:
        raise UserError(f"{name} lets a token see later ones ({gaps.later:.2g}): it is no causal language model")
    if gaps.alone <= bounds.alone and gaps.neighbours <= bounds.exact:
        return
    moved = f"(mean difference {gaps.alone:.2g}, through its neighbours {gaps.neighbours:.2g})"
    if packed:
        raise UserError(
            f"{name} reads a packed row otherwise than alone {moved}: set {section}.use_remove_padding=false"
        )
    raise UserError(f"{name} reads a padded row otherwise than alone {moved}: rltrain cannot train this architecture")


def known_architecture(auto_class: Any, config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """The class that AUTO_CLASS makes of CONFIG; None where code beside the model says it."""
    found = auto_class._model_mapping.get(type(config), None)
    return found[0] if isinstance(found, tuple) else found
