"""Checks that a module computes the same output for a sample each time: it is frozen and not random."""

from types import FunctionType

from torch import nn

from warmstore.errors import NotStateless
from warmstore.identity.identity import walk_over
from warmstore.identity.kinds.module_modes import ModeReaders, names_in
from warmstore.identity.patches import Patches


def check_stateless(module: nn.Module) -> None:
    """Refuse a module that cannot be cached.

    Raises:
        NotStateless: the module has trainable parameters, or a part in training mode that is random in this mode.
    """
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if trainable:
        names = ", ".join(trainable[:3]) + (", ..." if len(trainable) > 3 else "")
        raise NotStateless(
            f"the module has trainable parameters ({names}): its outputs change as it learns. Freeze it with "
            "module.requires_grad_(False), or pass enforce_stateless=False if it is not trained"
        )
    random = _random_parts(module) if any(child.training for child in module.modules()) else []
    if random:
        raise NotStateless(
            f"the module is in training mode and has {random[0]}, whose outputs differ from call to call. Call "
            "module.eval() before wrapping it, or pass enforce_stateless=False"
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
