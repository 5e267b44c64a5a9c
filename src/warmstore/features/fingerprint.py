"""What a module's outputs depend on, as hashes: its weights, its code, its settings.

Weights are parameters and buffers, byte for byte. Code is the source of the module's own classes and of the functions
they call in the same program; of installed packages it is what was installed. Settings are the values
that modules carry as attributes (a stride, a list of means, a tensor that is no buffer) and train or eval where the
code looks at it.
"""

import dis
import types
from collections.abc import Iterator

import xxhash
from torch import nn

from warmstore.fingerprint import Code, describe, is_foreign, name_of, tensor_bytes

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"_is_torch_compile"}  # torch.compile leaves that on what it wraps
_MUTATORS = frozenset(
    ("add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")
)


def weights(module: nn.Module) -> str:
    """xxh3-128 over every parameter and buffer: name, dtype, shape, bytes."""
    digest = xxhash.xxh3_128()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"{_stable(name)} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def code(module: nn.Module) -> str:
    """xxh3-128 over the code of every class in the module tree that is not torch's own."""
    code = Code()
    for name, child in _named_modules(module):
        cls = type(child)
        # A class of the program is its code, wherever it lies: the main module has another name in spawned processes.
        code.add_text(f"{name} {name_of(cls) if is_foreign(cls) else cls.__qualname__};")
        for base in cls.__mro__:
            if not is_foreign(base):
                code.add_text(code.name(base))
        for hook in (*child._forward_pre_hooks.values(), *child._forward_hooks.values()):
            code.add_text(f"hook={describe(hook)};")
    return code.hexdigest()


def settings(module: nn.Module) -> str:
    """xxh3-128 over the attributes of every module in the tree that `describe` has words for."""
    digest = xxhash.xxh3_128()
    for name, child in _named_modules(module):
        changing = _changed_in_methods(type(child))
        for attribute, value in sorted(vars(child).items()):
            if attribute in changing or attribute in _OF_EVERY_MODULE:
                continue
            text = describe(value)
            if text:
                digest.update(f"{name}.{attribute}={text};".encode())
    return digest.hexdigest()


def mode_sensitive(module: nn.Module) -> list[nn.Module]:
    """The modules of the tree whose code looks at `training`: dropout, batch norm, and whatever else does."""
    return [child for child in module.modules() if _looks_at_training(child)]


def random_in_training(child: nn.Module) -> bool:
    """Whether a mode-sensitive module changes its outputs, or itself, from call to call while it trains."""
    if isinstance(child, nn.modules.dropout._DropoutNd):
        return child.p > 0
    if isinstance(child, nn.modules.batchnorm._NormBase | nn.RReLU):
        return True
    return any(_looks_random(cls) for cls in type(child).__mro__ if cls is not nn.Module and issubclass(cls, nn.Module))


def _looks_at_training(child: nn.Module) -> bool:
    if isinstance(child, nn.modules.dropout._DropoutNd):
        return child.p > 0
    return any(
        "training" in names
        for cls in type(child).__mro__
        if cls is not nn.Module and issubclass(cls, nn.Module)
        for names in _names_used(cls)
    )


def _looks_random(cls: type) -> bool:
    return any("dropout" in name.lower() for names in _names_used(cls) for name in names if "training" in names)


def _names_used(cls: type) -> Iterator[tuple[str, ...]]:
    for function in vars(cls).values():
        if isinstance(function, types.FunctionType) and function.__name__ not in ("__init__", "extra_repr"):
            yield function.__code__.co_names


def _changed_in_methods(cls: type) -> set[str]:
    # An attribute that the forward pass sets or adds to (a counter, a list of shapes) is state and no setting.
    changed = set()
    for base in cls.__mro__:
        for function in vars(base).values() if base not in (nn.Module, object) else ():
            if isinstance(function, types.FunctionType) and function.__name__ != "__init__":
                before = None
                for instruction in dis.get_instructions(function):
                    if instruction.opname == "STORE_ATTR":
                        changed.add(instruction.argval)
                    elif instruction.argval in _MUTATORS and before is not None and before.opname == "LOAD_ATTR":
                        changed.add(before.argval)
                    before = instruction
    return changed


def _named_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    # torch.compile wraps a module; what it computes is the same.
    for name, child in module.named_modules():
        if not type(child).__module__.startswith("torch._dynamo"):
            yield _stable(name), child


def _stable(name: str) -> str:
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod")
