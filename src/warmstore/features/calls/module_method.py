"""A method of a module as a module: `clip.encode_image` beside `clip`."""

import inspect
from types import MethodType
from typing import Any

from torch import nn


class ModuleMethod(nn.Module):
    """Calls one method of a module. Weights, their names and the mode are the module's; the code is the method's."""

    def __init__(self, method: MethodType) -> None:
        super().__init__()
        self.module = method.__self__
        self.method = method.__func__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(self.module, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def parameters_of(module: nn.Module) -> tuple[str, ...]:
    """The names of the parameters of a module's `forward`, or of its method, that may be passed by position."""
    callee = MethodType(module.method, module.module) if isinstance(module, ModuleMethod) else module.forward
    try:
        parameters = inspect.signature(callee).parameters.values()
    except (TypeError, ValueError):  # a function of C
        return ()
    return tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)


def as_module(callee: Any) -> nn.Module:
    """A module, or a module for a method of one.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(callee, nn.Module):
        return callee
    if isinstance(callee, MethodType) and isinstance(callee.__self__, nn.Module):
        return ModuleMethod(callee)
    raise TypeError(
        f"only modules, and methods of modules, can be cached; got {callee!r:.100}. Put a function into the forward "
        "of a torch.nn.Module"
    )
