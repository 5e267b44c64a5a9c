"""`compile`: `torch.compile` that starts in a fraction of a second where another process has compiled the same.

A warm `torch.compile` still traces the program; only what comes after is read. Here the whole of it is read, if the
identity of all that tracing may look at is the same, and all guards hold. Where something cannot be told, and for what
torch cannot compile in one graph, this is `torch.compile` itself.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from warmstore.compiling import compile_cache
from warmstore.compiling.call_sizes import Sizes, cover, generalised, shapes, sizes_of_text, sizes_text
from warmstore.compiling.packages import Loaded, Package, load, make
from warmstore.errors import BadArtifact, Incompatible, NoKey

if TYPE_CHECKING:
    from warmstore.compiling.identified import Identified
    from warmstore.compiling.session import Session
    from warmstore.identity.watch import Watch

_log = logging.getLogger("warmstore")

_REFUSED = b"warmstore package: none\n"
_STANCES = ("default", "eager_on_recompile", "fail_on_recompile")  # in which torch calls what is compiled
_PATIENCE = 2.0  # seconds of looks at a program that sets its variables again and again, and finds nothing by it
_MOST = 8  # packages of one function in one process, and calls that may look for one in vain


def compile(  # noqa: A001
    model: Callable[..., Any] | None = None,
    *,
    version: str | None = None,
    ignore: Collection[str] = (),
    **options: Any,
) -> Any:
    """What `torch.compile(model, **options)` returns, with a first call that another process may have prepared.

    Needs `compile_cache.init` before the first call; without it, this is `torch.compile`. What is prepared is a call in
    one mode (training or not, with gradients or without) with arguments of these dtypes, devices and structure. The
    first one compiles for its sizes; whichever process comes with others compiles once more, for any, as
    `torch.compile` does.

    Args:
        model: An `nn.Module` or a function; without one, this returns a decorator. Modules with hooks, and those that
            `torch.distributed` has wrapped, are left to `torch.compile`.
        version: stands for whatever about the model cannot be told; without it, such a model is left to
            `torch.compile`.
        ignore: places that do not count, as logs and the reasons of misses show them, such as "Model.cfg.seed".
        options: The options of `torch.compile`.

    Raises:
        Exception: what `torch.compile` raises.
    """
    import torch

    if model is None:
        return partial(compile, version=version, ignore=ignore, **options)
    kept = {**options, "options": dict(options.get("options") or {})}  # torch takes out of its own what it has read
    plain: Any = torch.compile(model, **options)
    if plain is model or not _may_be_packaged(model, kept):
        return plain
    if isinstance(model, torch.nn.Module):
        plain.forward = _Prepared(model.forward, plain.forward, kept, model, version, ignore)
        return plain
    return _like(plain, _Prepared(model, plain, kept, None, version, ignore))


def _session() -> Session | None:
    """That of the cache of this process, if there is one."""
    cache = compile_cache.current()
    return None if cache is None or cache.closed else cache.session


def _may_be_packaged(model: Any, options: dict[str, Any]) -> bool:
    import torch
    import torch._inductor

    if options.get("backend", "inductor") != "inductor" or options.get("disable"):
        return False
    of_inductor = {**torch._inductor.list_mode_options(options.get("mode") or "default"), **options["options"]}
    if of_inductor.get("triton.cudagraphs") or not {"guard_filter_fn", "use_aoti"}.isdisjoint(of_inductor):
        return False
    if isinstance(model, torch.nn.Module):
        return isinstance(model.forward, MethodType) and not type(model).__module__.startswith(
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


@dataclass(frozen=True)
class _Call:
    """A call to find a package for: its key as a path, and what it is called with. `whole` has the module in front."""

    path: str
    sizes: Sizes
    whole: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: Watch | None
    codes: dict[int, CodeType]


class _Prepared:
    """Calls whichever package fits, or `torch.compile`'s own."""

    def __init__(
        self,
        function: Any,
        plain: Callable[..., Any],
        options: dict[str, Any],
        module: Any,
        version: str | None,
        ignore: Collection[str],
    ) -> None:
        import torch
        from torch._dynamo import eval_frame

        from warmstore.compiling import calls, identified

        self._calls = calls
        self._identify = partial(identified.Identified, function if module is None else module, version, ignore)
        self._identify_arguments = partial(identified.Arguments, version=version, ignore=ignore)
        self._is_compiling = torch.compiler.is_compiling  # within another compiled function this is only traced
        self._is_transformed = calls.is_transformed
        self._stances = eval_frame
        self._session: Session | None = None
        self._function = function
        self._plain = plain
        self._options = options
        self._module = module
        self._identified: Identified | None = None
        self._loaded: list[Loaded] = []  # for the code as it is now
        self._loaded_before: dict[str, list[Loaded]] = {}  # by identity
        self._packages: dict[str, list[Package]] = {}  # by the path of their key
        self._left: int | None = None
        self._in_vain = 0.0
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stance = self._stances._stance.stance
        if (
            self._is_compiling()
            or stance not in _STANCES
            or self._is_transformed()
            or (self._module is not None and not _is_bare(self._module, self._function))
        ):
            return self._plain(*args, **kwargs)
        identified = self._identified
        if identified is None:
            return self._first(stance, args, kwargs)
        if identified.has_moved():
            self._look_again(identified)
        result = self._call(stance, args, kwargs)
        self._called(identified)
        return result

    def _first(self, stance: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call before anything is known of what is compiled."""
        result = self._call(stance, args, kwargs)
        if self._identified is not None:
            self._called(self._identified)
        return result

    def _called(self, identified: Identified) -> None:
        try:
            if identified.called():
                self._loaded = []  # it replaces code of its own
        except Exception as error:
            self._forget(error)

    def _call(self, stance: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        whole = args if self._module is None else (self._module, *args)
        for loaded in self._loaded:
            if loaded.fits(whole, kwargs):
                return loaded.call(*whole, **kwargs)
        if self._left == 0 or stance != "default":
            return self._plain(*args, **kwargs)
        prepared = None if self._calls.is_in_a_mode() else self._prepare(whole, args, kwargs)
        if isinstance(prepared, Loaded):
            return prepared.call(*whole, **kwargs)
        result = self._plain(*args, **kwargs)
        if prepared is not None:
            prepared()
        return result

    def _look_again(self, identified: Identified) -> None:
        """Some code, or a variable that it reads, is another one now, and so may be the packages."""
        with self._lock:
            if not identified.has_moved():
                return  # another thread has looked
            began = time.monotonic()
            before = identified.identity.digest
            self._loaded_before[before] = self._loaded
            try:
                now = identified.look().digest
            except Exception as error:
                self._forget(error)
                return
            self._loaded = self._loaded_before.get(now, [])
            if now == before or not self._loaded:
                self._in_vain += time.monotonic() - began
            if self._in_vain > _PATIENCE:
                self._forget("what it reads is set again and again")

    def _leave(self, reason: object) -> None:
        """Leave to torch.compile whatever is not loaded."""
        self._say(reason)
        self._stop()

    def _forget(self, reason: object) -> None:
        """Leave all calls to torch.compile from now on."""
        self._loaded, self._loaded_before = [], {}
        self._leave(reason)

    def _stop(self) -> None:
        """Look for no more packages."""
        self._left = 0
        if not self._loaded and not any(self._loaded_before.values()):
            self._identified = None  # there is nothing that could be out of date

    def _prepare(
        self, whole: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Loaded | Callable[[], None] | None:
        """Find or make a package that fits. Where there can be none, what is to be done if `torch.compile` succeeds."""
        try:
            with self._lock:
                if self._left is None:
                    self._session = _session()
                    self._left = 0 if self._session is None else _MOST
                session = self._session
                if session is None or not session.is_open:
                    return None
                self._left = max(self._left - 1, 0)
                began = time.monotonic()
                call = self._looked_up(session, whole, args, kwargs)
                loaded = self._find(session, call)[0]
                if loaded is None:
                    try:
                        loaded = self._make(session, call)
                    except Exception as error:
                        self._say(error)
                        return partial(self._refuse, session, call.path, error, time.monotonic() - began)
                if loaded is not None:
                    self._loaded.append(loaded)
                    self._packages.setdefault(call.path, []).append(loaded.package)
                    _log.debug("%s is ready after %.2f s", self._function.__qualname__, time.monotonic() - began)
                return loaded
        except Exception as error:
            self._leave(error)
            return None

    def _looked_up(
        self, session: Session, whole: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Call:
        """Identify a call. Its key is that of the program as it is now, with all data.

        Raises:
            NoKey: something about it cannot be told.
        """
        if self._identified is None:
            self._identified = self._identify()
            identified = self._identified
        else:
            identified = self._looked_at(self._identified)
        arguments = self._identify_arguments(args, kwargs)
        identities = (identified.identity, arguments.identity)
        program = self._calls.program_of_call(self._function, args, kwargs)
        key = self._calls.key_of_call(identities, args, kwargs, self._options, session.environment)
        path = f"package/{program}/{key.digest}/"
        session.describe(path, partial(self._calls.details_of_call, identities, key, self._options))
        codes = {**identified.codes, **arguments.codes}
        return _Call(path, shapes(args, kwargs), whole, args, kwargs, arguments.watch, codes)

    def _looked_at(self, identified: Identified) -> Identified:
        """What is compiled, as it is now."""
        if identified.has_moved():
            self._look_again(identified)
        else:
            identified.look()  # data is not watched
        return identified

    def _refuse(self, session: Session, path: str, error: Exception, seconds: float) -> None:
        """Never try again what torch.compile did and a package did not: trying costs as much as compiling."""
        self._stop()
        if not isinstance(error, OSError | MemoryError | NoKey):
            _keep(session, path + "refused", _REFUSED, seconds)

    def _say(self, reason: object) -> None:
        level = logging.WARNING if isinstance(reason, NoKey) else logging.INFO
        _log.log(
            level, "%s is left to torch.compile: %s", getattr(self._function, "__qualname__", "a function"), reason
        )
        _log.debug("compile cache", exc_info=isinstance(reason, Exception))

    def _find(self, session: Session, call: _Call, *, again: bool = False) -> tuple[Loaded | None, list[Sizes]]:
        """The package that fits, if there is one, and the sizes of all for calls that differ in nothing else."""
        function = getattr(self._function, "__func__", self._function)
        found = session.find(call.path, again=again)
        packages = list(self._packages.get(call.path, ()))
        for data in (one for one in found if one != _REFUSED):
            try:
                packages.append(Package.from_bytes(data))
            except BadArtifact as error:
                _log.info("a package of %s is of no use: %s", function.__qualname__, error)
        usable = (one for one in packages if cover(one.sizes, call.sizes))
        known = [one.sizes for one in packages]
        for package in sorted(usable, key=lambda one: one.sizes != call.sizes):  # those for exactly these sizes first
            try:
                loaded = load(package, function, call.whole, call.kwargs, call.arguments)
            except Exception as error:
                _log.info("a package of %s is of no use: %s", function.__qualname__, error)
                known.remove(package.sizes)  # it is of another version
                continue
            if loaded.fits(call.whole, call.kwargs):
                return loaded, known
        if _REFUSED in found:
            raise Incompatible("another process found that it cannot be prepared")
        return None, known

    def _make(self, session: Session, call: _Call) -> Loaded | None:
        with session.alone(call.path):
            loaded, others = self._find(session, call, again=True)
            if loaded is not None:
                return loaded  # made by another process meanwhile
            began = time.monotonic()
            sizes = call.sizes
            # Where a package for these sizes does not fit, it is something else that differs.
            if not any(cover(other, sizes) for other in others):
                sizes = generalised(sizes, others + _versions(session, call.path), self._options.get("dynamic"))
            package = make(self._function, call.args, call.kwargs, self._options, sizes, call.codes)
            self._require_unchanged()
            data = package.to_bytes()
            name = hashlib.sha256(data).hexdigest()[:16]
            function = getattr(self._function, "__func__", self._function)
            loaded = load(package, function, call.whole, call.kwargs, call.arguments)
            session.harvest()  # its libraries first: whoever finds the package finds them
            _keep(session, f"{call.path}{sizes_text(package.sizes)}.{name}", data, time.monotonic() - began)
            return loaded if loaded.fits(call.whole, call.kwargs) else None

    def _require_unchanged(self) -> None:
        """What is kept is what the key says.

        Raises:
            NoKey: the program is another one than when the key was made.
        """
        identified = self._identified
        assert identified is not None
        before, has_moved = identified.identity, identified.has_moved()
        now = identified.look()
        if has_moved:
            self._loaded = []  # they are of other code
        if before.digest != now.digest:
            raise NoKey(f"it changed while it was compiled. {before.difference(now)}")


def _keep(session: Session, path: str, data: bytes, seconds: float) -> None:
    try:
        session.keep(path, "package", data, seconds)
    except (OSError, ValueError) as error:
        _log.info("%s is not kept: %s", path, error)


def _versions(session: Session, path: str) -> list[Sizes]:
    """Static sizes for which other versions of a program were compiled."""
    program = path.rsplit("/", 2)[0] + "/"
    below = session.store.below(program, session.environment)
    found = [sizes_of_text(artifact.key.rpartition("/")[2].partition(".")[0]) for artifact, _ in below if artifact]
    return [sizes for sizes in found if sizes]


def _is_bare(module: Any, forward: Any) -> bool:
    """Whether calling a module is calling its `forward`, and that is the bound method it was."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or getattr(type(module), "forward", None) is not forward.__func__
    )
