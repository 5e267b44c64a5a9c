"""Outputs of a module without gradients, on the device that the caller asked for."""

import dataclasses
from typing import Any

import torch

from warmstore.records.format.array_interop import on_device
from warmstore.tree.named_parts import blank, give_parts, names_of_parts


def placed(output: Any, device: torch.device | None) -> Any:
    """An output of any structure; None leaves its tensors where they are."""
    return torch.utils._pytree.tree_map(lambda part: _placed(part, device), output)


def _placed(part: Any, device: torch.device | None) -> Any:
    """A leaf of a pytree: a tensor, a dataclass that torch does not know, or anything else."""
    names = names_of_parts(part) if dataclasses.is_dataclass(part) and not isinstance(part, type) else None
    if names is None:
        return detached(part, device)
    made = blank(type(part))
    give_parts(made, names, [placed(getattr(part, name), device) for name in names])
    return made


def detached(values: Any, device: torch.device | None) -> Any:
    """A tensor, or tensors in lists; other values as they are."""
    if isinstance(values, list):
        return [detached(value, device) for value in values]
    if not isinstance(values, torch.Tensor):
        return values
    return values.detach() if device is None else on_device(values.detach(), device)
