"""`compile`: `torch.compile` that starts in a fraction of a second where another process has compiled the same.

A warm `torch.compile` still traces the program; only what comes after is read. Here the whole of it is read, if the
sources that were traced, the objects they met and all guards are the same. In every doubtful case, and for what
torch cannot compile in one graph, this is `torch.compile` itself.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from warmstore.compiling import compile_cache
from warmstore.compiling.packages import Loaded, Package, Sizes, cover, load, make, shapes
from warmstore.errors import BadArtifact, Incompatible

if TYPE_CHECKING:
    from warmstore.compiling.session import Session

_log = logging.getLogger("warmstore")

_REFUSED = b"warmstore package: none\n"
_MOST = 8  # packages of one function in one process, and calls that may look for one in vain


def compile(model: Callable[..., Any], **options: Any) -> Any:  # noqa: A001
    """What `torch.compile(model, **options)` returns, with a first call that another process may have prepared.

    Needs `compile_cache.init`; without it, this is `torch.compile`. What is prepared is a call in one mode (training or
    not, with gradients or without) with arguments of these dtypes, devices and structure. The first one compiles for
    its sizes; whichever process comes with others compiles once more, for any, as `torch.compile` does.

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

        from warmstore.compiling import calls

        self._calls = calls
        self._is_compiling = torch.compiler.is_compiling  # within another compiled function this is only traced
        self._session = session
        self._function = function
        self._plain = plain
        self._options = options
        self._module = module
        self._loaded: list[Loaded] = []
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
        """Find or make a package that fits; None where there can be none."""
        if not self._session.is_open:
            return None
        try:
            with self._lock:
                self._left = max(self._left - 1, 0)
                began = time.monotonic()
                sizes = shapes(args, kwargs)
                program = self._calls.program_of_call(self._function, args, kwargs)
                key = self._calls.key_of_call(self._function, args, kwargs, self._options, self._session.environment)
                path = f"package/{program}/{key.digest}/"
                loaded = self._find(path, sizes, whole, kwargs)[0] or self._make(path, sizes, whole, args, kwargs)
                if loaded is not None:
                    self._loaded.append(loaded)
                    _log.debug("%s is ready after %.2f s", self._function.__qualname__, time.monotonic() - began)
                return loaded
        except Exception as error:
            self._left = 0
            _log.info("%s is left to torch.compile: %s", getattr(self._function, "__qualname__", "a function"), error)
            _log.debug("compile cache", exc_info=True)
            return None

    def _find(
        self, path: str, sizes: Sizes, whole: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Loaded | None, list[Sizes]]:
        """The package that fits, if there is one, and the sizes of all for calls that differ in nothing else."""
        function = getattr(self._function, "__func__", self._function)
        found = self._session.find(path)
        if _REFUSED in found:
            raise Incompatible("another process found that it cannot be prepared")
        packages = [loaded.package for loaded in self._loaded]
        for data in found:
            try:
                packages.append(Package.from_bytes(data))
            except BadArtifact as error:
                _log.info("a package of %s is of no use: %s", function.__qualname__, error)
        exact_first = sorted((one for one in packages if cover(one.sizes, sizes)), key=lambda one: one.sizes != sizes)
        known = [one.sizes for one in packages]
        for package in exact_first:
            try:
                loaded = load(package, function, whole, kwargs)
            except Exception as error:
                _log.info("a package of %s is of no use: %s", function.__qualname__, error)
                continue
            if loaded.fits(whole, kwargs):
                return loaded, known
        return None, known

    def _make(
        self, path: str, sizes: Sizes, whole: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Loaded | None:
        with self._session.alone(path):
            loaded, others = self._find(path, sizes, whole, kwargs)
            if loaded is not None:
                return loaded  # made by another process meanwhile
            began = time.monotonic()
            try:
                # Where a package for these sizes does not fit, it is something else that differs.
                if not any(cover(other, sizes) for other in others):
                    sizes = generalised(sizes, others + self._versions(path), self._options.get("dynamic"))
                package = make(self._function, args, kwargs, self._options, sizes)
            except Exception:
                # Trying costs as much as compiling; so it is tried once, not at every start.
                self._session.keep(path + "refused", "package", _REFUSED, time.monotonic() - began)
                raise
            data = package.to_bytes()
            name = hashlib.sha256(data).hexdigest()[:16]
            function = getattr(self._function, "__func__", self._function)
            loaded = load(package, function, whole, kwargs)
            self._session.harvest()  # its libraries first: whoever finds the package finds them
            self._session.keep(f"{path}{_said(package.sizes)}.{name}", "package", data, time.monotonic() - began)
            return loaded if loaded.fits(whole, kwargs) else None

    def _versions(self, path: str) -> list[Sizes]:
        """Static sizes for which other versions of this program were compiled."""
        program = path.rsplit("/", 2)[0] + "/"
        below = self._session.store.below(program, self._session.environment)
        found = [_heard(artifact.key.rpartition("/")[2].partition(".")[0]) for artifact, _ in below if artifact]
        return [sizes for sizes in found if sizes]


def generalised(sizes: Sizes, others: Iterable[Sizes], dynamic: bool | None = None) -> Sizes:
    """The sizes to compile for: None for those in which other calls differed, as `torch.compile` does it too.

    Sizes 0 and 1 are kept: torch compiles for them alone. `dynamic` is that of `torch.compile`: all of them, or none.
    """
    if dynamic is not None:
        return tuple((None,) * len(shape) if dynamic else shape for shape in sizes)
    found = [list(shape) for shape in sizes]
    for other in others:
        if [len(shape) for shape in other] != [len(shape) for shape in sizes]:
            continue
        for shape, ours, theirs in zip(found, sizes, other, strict=True):
            for at, (our, their) in enumerate(zip(ours, theirs, strict=True)):
                if our != their and our not in (0, 1) and their not in (0, 1):
                    shape[at] = None
    return tuple(map(tuple, found))


def _said(sizes: Sizes) -> str:
    """Sizes as part of an artifact's key, such as 64x_x3,64; nothing where they are too many."""
    said = ",".join("x".join("_" if size is None else str(size) for size in shape) for shape in sizes)
    return said if len(said) < 200 else ""


def _heard(said: str) -> Sizes:
    if not re.fullmatch(r"[0-9x_,]+", said):
        return ()
    return tuple(
        tuple(None if size == "_" else int(size) for size in shape.split("x") if size) for shape in said.split(",")
    )


def _is_bare(module: Any) -> bool:
    """Whether calling a module is calling its `forward`."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )
