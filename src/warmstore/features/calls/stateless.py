"""Checks that a module computes the same output for a sample each time: it is frozen and not random, and no sample's
output depends on the others of its batch."""

import math
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from warmstore.errors import NotStateless
from warmstore.features.outputs.leaves import is_dense
from warmstore.identity.identity import walk_over
from warmstore.identity.kinds.module_modes import ModeReaders, names_in
from warmstore.identity.patches import Patches
from warmstore.identity.random_states import random_states, states_of_torch
from warmstore.tree.containers import leaves

_PLAIN = (bool, int, float, str)
_SECONDS = 0.1
"""Between two looks at all parameters, which take 0.15 ms for 200 of them."""


def check_stateless(module: nn.Module) -> None:
    """Refuse a module that cannot be cached.

    Raises:
        NotStateless: the module has trainable parameters, a part in training mode that is random in this mode, or one
            that normalizes by the statistics of each batch in any mode.
    """
    _refuse_trainable(module, "pass enforce_stateless=False if it is not trained")
    for name, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm) and child.running_mean is None:
            raise NotStateless(
                f"the module has {f'{name}, ' * bool(name)}a {type(child).__name__} without running "
                "statistics: it normalizes by those of each batch, in evaluation too, and a sample's output depends on "
                "the others. Pass enforce_stateless=False if all samples are always in the same batches"
            )
    random = _random_parts(module) if any(child.training for child in module.modules()) else []
    if random:
        raise NotStateless(
            f"the module is in training mode and has {random[0]}, whose outputs differ from call to call. Call "
            "module.eval() before wrapping it, or pass enforce_stateless=False"
        )


class TrainingCheck:
    """Refuses to go on with gradients once a module has trainable parameters: it was frozen as it was wrapped. Outputs
    carry no gradient, so it would not learn, without a word.

    Args:
        enabled: False checks nothing.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._checked = -math.inf  # by `time.monotonic`, of another machine if it came from there

    def check(self, module: nn.Module) -> None:
        """Look at the parameters, unless that was done lately.

        Raises:
            NotStateless: one requires a gradient.
        """
        now = time.monotonic()
        if self._enabled and abs(now - self._checked) >= _SECONDS and torch.is_grad_enabled():
            _refuse_trainable(module, "call what is wrapped where it learns: cached.module(batch)")
            self._checked = now


class DrawCheck:
    """Checks the first call that draws random numbers: many models draw in evaluation, too, and do not use what they
    drew. Draws from the generators of Python and NumPy are seen at the first call alone.

    Args:
        enabled: False checks nothing.
    """

    def __init__(self, enabled: bool) -> None:
        self._states: Callable[[], list[Any]] | None = random_states if enabled else None

    def checked(self, compute: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """The output that `compute` returns for a batch.

        Args:
            again: computes the same batch again.

        Raises:
            NotStateless: `compute` drew random numbers, and `again` returned another output.
        """
        states_now = self._states
        if states_now is None:
            return compute()
        states = states_now()
        output = compute()
        if states_now() == states:
            self._states = states_of_torch  # the others take longer; what draws from them does so at the first call
        else:
            differing = _difference(output, again())
            if differing is not None:
                raise NotStateless(
                    f"the module is random: it draws from a default generator of torch, NumPy or Python, and "
                    f"{differing or 'its output'} differs when the same batch is computed again. Return what it draws "
                    "from (the mean and the variance, say), or pass enforce_stateless=False to keep one sample of it"
                )
            self._states = None
        return output


def _difference(one: Any, other: Any) -> str | None:
    """The path of the first leaf that differs in two outputs, by more than the noise of a GPU's sums; None if none."""
    first, second = list(leaves(one)), list(leaves(other))
    if [path for path, _ in first] != [path for path, _ in second]:
        return ""
    return next((path for (path, leaf), (_, same) in zip(first, second, strict=True) if not _agree(leaf, same)), None)


def _agree(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
    if not isinstance(one, torch.Tensor):
        return type(one) not in _PLAIN or one == other or one != one
    if not is_dense(one):
        return True  # storing it raises
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    noise = torch.finfo(one.dtype).eps ** 0.5
    one, other = (each.to(torch.complex64 if each.is_complex() else torch.float32) for each in (one, other))
    largest = one.abs().nan_to_num(0, 0, 0).max() if one.numel() else 0
    return torch.allclose(one, other, rtol=0, atol=noise * float(largest), equal_nan=True)


def _refuse_trainable(module: nn.Module, otherwise: str) -> None:
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if trainable:
        names = ", ".join(trainable[:3]) + (", ..." if len(trainable) > 3 else "")
        raise NotStateless(
            f"the module has trainable parameters ({names}): its outputs change as it learns, and cached ones carry no "
            f"gradient. Freeze it with module.requires_grad_(False), or {otherwise}"
        )


def _random_parts(module: nn.Module) -> list[str]:
    """The parts in training mode whose outputs change between calls, or that change themselves, in this mode."""
    walk = walk_over(module, name="module", called=False, draws=False, tensors="layout", patches=Patches())
    readers = ModeReaders(walk)
    parts = [
        type(child).__name__
        for child in module.modules()
        if child.training and readers.reads(child) and _is_random(child, readers)
    ]
    return parts + [function.__qualname__ for function in readers.functions if _drops(function)]


def _is_random(module: nn.Module, readers: ModeReaders) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.modules.batchnorm._NormBase | nn.RReLU):
        return True
    return any(map(_drops, readers.methods(module)))


def _drops(function: FunctionType) -> bool:
    return any("dropout" in name.lower() for name in names_in(function.__code__))
