"""`compile`: `torch.compile` that starts in a fraction of a second where another process has compiled the same.

A warm `torch.compile` still traces the program; only what comes after is read. Here the whole of it is read, if the
sources that were traced, the objects they met and all guards are the same. In every doubtful case, and for what
torch cannot compile in one graph, this is `torch.compile` itself.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from warmstore.compiling import compile_cache
from warmstore.compiling.packages import Loaded, Package, code_digest, load, make
from warmstore.errors import Incompatible

if TYPE_CHECKING:
    from warmstore.compiling.session import Session

_log = logging.getLogger("warmstore")

_REFUSED = b"warmstore package: none\n"
_MOST = 8  # packages of one function in one process, and calls that may look for one in vain


def compile(model: Callable[..., Any], **options: Any) -> Any:  # noqa: A001
    """What `torch.compile(model, **options)` returns, with a first call that another process may have prepared.

    Needs `compile_cache.init`; without it, this is `torch.compile`. What is prepared is a call with arguments of the
    sizes, dtypes, devices and structure that the first call in each mode has (training or not, with gradients or
    without); for other sizes `torch.compile` does what it always does.

    Args:
        model: An `nn.Module` or a function. Modules with hooks, and those that `torch.distributed` has wrapped, are
            left to `torch.compile`.
        options: The options of `torch.compile`.

    Raises:
        Exception: what `torch.compile` raises.
    """
    import torch

    plain: Any = torch.compile(model, **options)
    cache = compile_cache.current()
    session = cache.session if cache is not None and not cache.closed else None
    if session is None or not _may_be_packaged(model, options):
        return plain
    if isinstance(model, torch.nn.Module):
        plain.forward = _Prepared(session, model.forward, plain.forward, options, model)
        return plain
    prepared = _Prepared(session, model, plain, options, None)
    return _like(plain, prepared)


def _may_be_packaged(model: Any, options: dict[str, Any]) -> bool:
    import torch

    if options.get("backend", "inductor") != "inductor" or options.get("disable"):
        return False
    if "guard_filter_fn" in (options.get("options") or {}):
        return False
    if isinstance(model, torch.nn.Module):
        return not type(model).__module__.startswith(
            ("torch.nn.parallel", "torch.distributed", "torch.jit", "torch.fx")
        )
    return isinstance(model, FunctionType)


def _like(plain: Any, prepared: _Prepared) -> Any:
    """A function with the name and attributes of the compiled one."""
    from functools import wraps

    @wraps(plain)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return prepared(*args, **kwargs)

    return compiled


class _Prepared:
    """Calls whichever package fits, or `torch.compile`'s own."""

    def __init__(
        self,
        session: Session,
        function: Any,
        plain: Callable[..., Any],
        options: dict[str, Any],
        module: Any,
    ) -> None:
        import torch

        self._is_compiling = torch.compiler.is_compiling  # within another compiled function this is only traced
        self._session = session
        self._function = function
        self._plain = plain
        self._options = options
        self._module = module
        self._loaded: list[Loaded] = []
        self._tried: set[str] = set()
        self._left = _MOST
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_compiling() or (self._module is not None and not _is_bare(self._module)):
            return self._plain(*args, **kwargs)
        whole = args if self._module is None else (self._module, *args)
        for loaded in self._loaded:
            if loaded.fits(whole, kwargs):
                return loaded.call(*whole, **kwargs)
        if self._left and (prepared := self._prepare(whole, args, kwargs)) is not None:
            return prepared.call(*whole, **kwargs)
        return self._plain(*args, **kwargs)

    def _prepare(self, whole: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Loaded | None:
        """Find or make a package that fits; None where there can be none, and where only sizes differ from before."""

        if not self._session.is_open:
            return None
        try:
            kind = self._kind(args, kwargs, sizes=False)
            with self._lock:
                self._left = max(self._left - 1, 0)
                if kind in self._tried:
                    return None
                self._tried.add(kind)
                began = time.monotonic()
                path = f"package/{self._kind(args, kwargs, sizes=True)}/"
                loaded = self._find(path, whole, kwargs) or self._make(path, whole, args, kwargs)
                if loaded is not None:
                    self._loaded.append(loaded)
                    _log.debug("%s is ready after %.2f s", self._function.__qualname__, time.monotonic() - began)
                return loaded
        except Exception as error:
            self._left = 0
            _log.info("%s is left to torch.compile: %s", getattr(self._function, "__qualname__", "a function"), error)
            _log.debug("compile cache", exc_info=True)
            return None

    def _find(self, path: str, whole: tuple[Any, ...], kwargs: dict[str, Any]) -> Loaded | None:
        function = getattr(self._function, "__func__", self._function)
        found = self._session.find(path)
        if _REFUSED in found:
            raise Incompatible("another process found that it cannot be prepared")
        for data in found:
            try:
                loaded = load(Package.from_bytes(data), function, whole, kwargs)
            except Exception as error:
                _log.info("a package of %s is of no use: %s", function.__qualname__, error)
                continue
            if loaded.fits(whole, kwargs):
                return loaded
        return None

    def _make(self, path: str, whole: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Loaded | None:
        with self._session.alone(path):
            if (loaded := self._find(path, whole, kwargs)) is not None:
                return loaded  # made by another process meanwhile
            began = time.monotonic()
            try:
                package = make(self._function, args, kwargs, self._options)
            except Exception:
                # Trying costs as much as compiling; so it is tried once, not at every start.
                self._session.keep(path + "refused", "package", _REFUSED, time.monotonic() - began)
                raise
            data = package.to_bytes()
            name = hashlib.sha256(data).hexdigest()[:32]
            function = getattr(self._function, "__func__", self._function)
            loaded = load(package, function, whole, kwargs)
            self._session.harvest()  # its libraries first: whoever finds the package finds them
            self._session.keep(path + name, "package", data, time.monotonic() - began)
            return loaded if loaded.fits(whole, kwargs) else None

    def _kind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, sizes: bool) -> str:
        """What decides which packages are looked at, in hex. Whether one fits is decided by its guards."""
        import torch
        from torch._dynamo import config as dynamo
        from torch._functorch import config as functorch
        from torch._inductor import config as inductor

        function = getattr(self._function, "__func__", self._function)
        code: CodeType = function.__code__
        parts: list[object] = [
            function.__module__ if function.__module__ != "__main__" else "",
            function.__qualname__,
            code_digest(code),
            sorted((name, repr(value)) for name, value in self._options.items()),
            [_options_of(config) for config in (dynamo, functorch, inductor)],
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            str(torch.get_default_dtype()),
            torch.get_num_threads(),
            [
                (device, torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device)))
                for device in ("cpu", "cuda")
            ],
            torch.utils._pytree.tree_map(lambda value: _spec(value, sizes), (args, kwargs)),
        ]
        if self._module is not None:
            parts += [
                [(name, type(one).__qualname__, one.training) for name, one in self._module.named_modules()],
                [(name, _spec(one, True)) for name, one in self._module.named_parameters()],
                [(name, _spec(one, True)) for name, one in self._module.named_buffers()],
            ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _options_of(config: Any) -> list[tuple[str, str]]:
    """Options that are plain values and no folders: the others have no text that is the same elsewhere."""
    found = config.get_config_copy()
    plain = bool | int | float | str | None
    return sorted(
        (name, repr(value)) for name, value in found.items() if isinstance(value, plain) and "dir" not in name
    )


def _spec(value: object, sizes: bool) -> object:
    import torch

    if isinstance(value, torch.Tensor):
        shape = (
            (tuple(value.shape), tuple(value.stride()) if value.layout == torch.strided else ())
            if sizes
            else value.dim()
        )
        return (
            type(value).__name__,
            shape,
            str(value.dtype),
            value.device.type,
            value.requires_grad,
            str(value.layout),
        )
    if isinstance(value, int | float) and not isinstance(value, bool) and not sizes:
        return type(value).__name__
    return repr(value) if isinstance(value, int | float | str | bytes | bool | None) else type(value).__qualname__


def _is_bare(module: Any) -> bool:
    """Whether calling a module is calling its `forward`."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )
