"""A method of a module as a module: `clip.encode_image` beside `clip`."""

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
