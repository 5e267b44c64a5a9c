"""`compile`: `torch.compile` that starts in a fraction of a second where another process has compiled the same.

A warm `torch.compile` still traces the program; only what comes after is read. Here all that compiling a frame left is
read, if the identity of all that tracing may look at is the same, and all guards hold. What cannot be proven is
compiled as `torch.compile` does it, and one warning says what it was.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from types import CodeType
from typing import TYPE_CHECKING, Any

from warmstore.compiling import compile_cache
from warmstore.compiling.keys.call_sizes import Sizes, cover, dynamic, generalised, shapes, sizes_of_text, sizes_text
from warmstore.compiling.misses.lookup_log import Lookup
from warmstore.compiling.packages.package import PROVEN, Package, packaged
from warmstore.errors import BadArtifact, Incompatible, NoFingerprint

if TYPE_CHECKING:
    from warmstore.compiling.keys.identified import Identified
    from warmstore.compiling.packages.dynamo import Question
    from warmstore.compiling.session import CompileSession
    from warmstore.identity.watch import Watch

_log = logging.getLogger("warmstore")

_PATIENCE = 2.0  # seconds of looks at a program that sets its variables again and again, and finds nothing by it
_ROOT = "root"
_calling = threading.local()


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
        model: An `nn.Module` or a function; without one, this returns a decorator.
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
    if plain is model or isinstance(model, type):
        return plain
    compiled = _Compiled(model, kept, version, ignore)
    if isinstance(model, torch.nn.Module):
        plain.forward = compiled.listening(plain, plain.forward)
        return plain
    return wraps(plain)(_function(compiled.listening(plain, plain)))


def _function(compiled: _Compiled) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs)

    return call


def _session() -> CompileSession | None:
    """That of the cache of this process, if there is one."""
    cache = compile_cache.current()
    return None if cache is None or cache.closed else cache.session


def _why_not(options: Mapping[str, Any]) -> str:
    """Why nothing is kept of what these options of `torch.compile` make."""
    import torch
    import torch._inductor

    if (backend := options.get("backend") or "inductor") != "inductor":
        return f"of the backend {backend!r} nothing is kept, only of Inductor"
    if options.get("disable"):
        return "disable=True"
    config = torch._inductor.config
    told = {**torch._inductor.list_mode_options(options.get("mode") or "default"), **options["options"]}
    for name in ("caching_precompile", "compiled_autograd"):
        if getattr(torch._dynamo.config, name):
            return f"with torch._dynamo.config.{name} nothing is kept"
    for name in ("triton.cudagraphs", "freezing", "guard_filter_fn", "use_aoti", "cpp_wrapper"):
        value = told.get(name)
        if value is None and "_fn" not in name and "aoti" not in name:
            value = config.triton.cudagraphs if "." in name else getattr(config, name)
        if value:
            return f"with the option {name} nothing is kept"
    return ""


@dataclass
class _Call:
    """A call that lasts. What is found for it is known from its first question on.

    is_first: whether its program was identified as it began.
    """

    compiled: _Compiled
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_first: bool
    path: str = ""
    sizes: Sizes = ()
    codes: Mapping[int, CodeType] = field(default_factory=dict)
    arguments: Watch | None = None
    packages: list[Package] = field(default_factory=list)
    unusable: tuple[str, ...] = ()
    is_refused: bool = False


class _Compiled:
    """Calls what `torch.compile` made, and answers Dynamo's questions meanwhile."""

    def __init__(
        self, model: Callable[..., Any], options: dict[str, Any], version: str | None, ignore: Collection[str]
    ) -> None:
        import torch

        from warmstore.compiling.keys import call_keys, identified

        self._model = model
        self._name = getattr(model, "__qualname__", type(model).__qualname__)
        self._options = options
        self._calls = call_keys
        self._identify = partial(identified.Identified, model, version, ignore)
        self._identify_arguments = partial(identified.IdentifiedArguments, version=version, ignore=ignore)
        self._is_compiling = torch.compiler.is_compiling  # within another compiled function this is only traced
        self._plain: Callable[..., Any] = model
        self._why_not = ""
        self._is_begun = False
        self._identified: Identified | None = None
        self._token: int | None = None  # of the code as it is now
        self._resumes: dict[int, tuple[str, CodeType]] = {}
        self._proven: dict[bytes, Sequence[object]] = {}  # what packages that were used compare, by their data
        self._in_vain = 0.0
        self._said: set[str] = set()
        self._lock = threading.RLock()

    def listening(self, compiled: Any, plain: Callable[..., Any]) -> _Compiled:
        """Itself, once it hears what Dynamo asks about what `torch.compile` returned; `plain` is how to call that."""
        import torch

        from warmstore.compiling.hooks.torch_hooks import TESTED, is_tested

        self._plain = plain
        self._why_not = _why_not(self._options)
        if not self._why_not and not is_tested(torch.__version__):
            self._why_not = f"of torch {torch.__version__} nothing is kept; tested is {', '.join(TESTED)}"
        if not self._why_not:
            try:
                from warmstore.compiling.packages import dynamo

                self._why_not = dynamo.missing()
                if not self._why_not:
                    dynamo.listen(compiled, self._answer, self._say)
            except Exception as error:
                self._why_not = f"of torch {torch.__version__} nothing is kept: {error}"
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_compiling():
            return self._plain(*args, **kwargs)
        is_first = not self._is_begun
        if is_first:
            self._begin()
        identified = self._identified
        if identified is not None and identified.has_moved():
            self._look_again(identified)
        before = getattr(_calling, "call", None)
        _calling.call = _Call(self, args, kwargs, is_first)
        try:
            result = self._plain(*args, **kwargs)
        finally:
            _calling.call = before
        if self._identified is not None:
            self._called(self._identified)
        return result

    def _begin(self) -> None:
        """Before the first call: say why nothing is kept, or identify what is called."""
        if _session() is None:
            return
        self._is_begun = True
        if self._why_not:
            self._say(self._why_not)
            return
        try:
            self._identified = self._identify()
            self._mark(self._identified)
        except Exception as error:
            self._forget(error)

    # Its code as it is now

    def _mark(self, identified: Identified) -> None:
        """What was compiled for its code as it is now is right from now on, and nothing else."""
        self._token = hash(tuple(identified.codes))

    def _look_again(self, identified: Identified) -> None:
        """Some code, or a variable that it reads, is another one now."""
        with self._lock:
            if not identified.has_moved():
                return  # another thread has looked
            began, before = time.monotonic(), self._token
            try:
                identified.look()
                self._mark(identified)
            except Exception as error:
                self._forget(error)
                return
            if self._token == before:
                self._in_vain += time.monotonic() - began
            if self._in_vain > _PATIENCE:
                self._forget("what it reads is set again and again")

    def _called(self, identified: Identified) -> None:
        """What moved meanwhile was moved by the program itself."""
        try:
            if identified.called():
                self._mark(identified)
        except Exception as error:
            self._forget(error)

    def _forget(self, reason: object) -> None:
        """Leave all calls to torch.compile from now on."""
        self._identified, self._token = None, None
        self._why_not = str(reason)
        self._say(reason)

    # What Dynamo asks

    def _answer(self, question: Question) -> Any:
        call: _Call | None = getattr(_calling, "call", None)
        session = _session()
        if (
            call is None
            or call.compiled is not self
            or call.is_refused
            or self._why_not
            or session is None
            or not session.is_open
            or self._calls.is_transformed()
        ):
            return question.compile()
        try:
            if not call.path:
                self._look_up(session, call)
            frame = self._frame(question, call)
            answer, reasons = self._restored(question, call, frame)
            if answer is not None:
                session.note(Lookup(call.path + frame, True))
                return answer
        except Exception as error:
            call.is_refused = True
            self._say(error)
            return question.compile()
        with session.alone(call.path + frame):
            return self._made(session, question, call, frame, reasons)

    def _look_up(self, session: CompileSession, call: _Call) -> None:
        """Identify a call. Its key is that of the program as it is now, with all data.

        Raises:
            NoFingerprint: something about it cannot be told.
        """
        with self._lock:
            if self._identified is not None and self._identified.has_moved():
                self._look_again(self._identified)
            identified = self._identified
            if identified is None:
                raise NoFingerprint(self._why_not)
            if not call.is_first:
                identified.look()  # data is not watched
        arguments = self._identify_arguments(call.args, call.kwargs)
        identities = (identified.identity, arguments.identity)
        program = self._calls.program_of_call(self._model, call.args, call.kwargs)
        key = self._calls.key_of_call(identities, call.args, call.kwargs, self._options, session.environment)
        call.path = f"package/{program}/{key.digest}/"
        call.sizes = shapes(call.args, call.kwargs)
        call.codes = {**identified.codes, **arguments.codes}
        call.arguments = arguments.watch
        session.describe(call.path, partial(self._calls.details_of_call, identities, key, self._options))
        self._read(session, call)

    @staticmethod
    def _read(session: CompileSession, call: _Call) -> None:
        """Look what there is for a call now."""
        read, reasons = session.read(call.path)
        call.packages = []
        for data in read:
            try:
                call.packages.append(Package.from_bytes(data))
            except BadArtifact as error:
                reasons.append(str(error))
        call.unusable = tuple(reasons)

    def _frame(self, question: Question, call: _Call) -> str:
        """Which of the program's frames this is, in words that are the same in every process."""
        frame = question.frame
        code = frame.f_code
        if (resumed := self._resumes.get(id(code))) is not None:
            return resumed[0]
        if self._calls.is_root(self._model, frame, call.args, call.kwargs):
            return _ROOT
        if id(code) in call.codes:
            return f"{list(call.codes).index(id(code))} {code.co_qualname}"
        return f"{frame.f_globals.get('__name__')}:{code.co_qualname}:{code.co_firstlineno}"

    def _restored(self, question: Question, call: _Call, frame: str) -> tuple[Any, list[str]]:
        """The answer that another process got, and why there is none."""
        kept = [one for one in call.packages if one.frame == frame]
        found = kept
        if frame == _ROOT:  # those for exactly these sizes first
            found = [one for one in kept if cover(one.sizes, call.sizes)]
            found.sort(key=lambda one: one.sizes != call.sizes)
        reasons = []
        if call.packages and not found:
            reasons.append("what is kept of it is for other sizes" if kept else "nothing is kept of this frame")
        for package in found:
            try:
                package.check_installed()
                holds = self._holds(call, package.mutates)
                check = partial(self._check_objects, package)
                answer, resumes, failed = question.restore(package.data, check, holds)
            except Exception as error:
                reasons.append(f"what was kept of it is of no use here: {error}")
                _log.debug("compile cache", exc_info=True)
                continue
            if answer is not None:
                self._resume_in(resumes)
                return answer, []
            reasons.append(f"what was kept of it is for another case: {failed}")
        return None, reasons

    def _check_objects(self, package: Package, found: Sequence[object]) -> None:
        """As `Package.check_objects`; what is proven by the key is the same object as long as this process lives."""
        package.check_objects(found)
        before = self._proven.setdefault(package.data, found)
        for (expression, said), value, known in zip(package.objects, found, before, strict=True):
            if said == PROVEN and value is not known:
                raise Incompatible(f"{expression} is another one")

    def _resume_in(self, resumes: Mapping[str, CodeType]) -> None:
        self._resumes.update((id(code), (name, code)) for name, code in resumes.items())

    def _made(self, session: CompileSession, question: Question, call: _Call, frame: str, reasons: list[str]) -> Any:
        """Torch's own answer, kept for others.

        Args:
            reasons: why nothing that was found before was of use.
        """
        from warmstore.compiling.packages import dynamo

        try:
            before, answer = call.packages, None
            self._read(session, call)
            if call.packages != before:  # made by another process meanwhile
                answer, reasons = self._restored(question, call, frame)
            changed = () if call.packages else session.why(call.path)
            session.note(Lookup(call.path + frame, answer is not None, (*call.unusable, *reasons), changed))
            if answer is not None:
                return answer
            sizes = self._sizes(session, call, frame)
            codes, token = call.codes, self._token
        except Exception as error:
            call.is_refused = True
            self._say(error)
            return question.compile()
        began = time.monotonic()
        marked = sizes if frame == _ROOT and self._options.get("dynamic") is None else ()
        try:
            with dynamic(call.args, call.kwargs, marked):
                answer, recorded = question.compile_recorded()
        finally:
            session.landed()
        try:
            self._resume_in(recorded.resumes)
            package = packaged(recorded, frame, sizes, codes, self._resumes, is_root=frame == _ROOT)
            if answer.guarded_code is not None:
                dynamo.add_guard(answer.guarded_code.guard_manager, self._holds(call, package.mutates))
            self._proven[package.data] = recorded.written.objects
            self._require_unchanged(token)
            session.harvest()  # its libraries first: whoever finds the package finds them
            _keep(session, call.path, package, time.monotonic() - began)
        except Exception as error:
            self._say(error)
        return answer

    def _sizes(self, session: CompileSession, call: _Call, frame: str) -> Sizes:
        """Those to compile for."""
        others = [one.sizes for one in call.packages if one.frame == frame]
        if frame != _ROOT or any(cover(other, call.sizes) for other in others):
            return call.sizes  # where a package for these sizes does not fit, it is something else that differs
        return generalised(call.sizes, others + _versions(session, call.path), self._options.get("dynamic"))

    def _holds(self, call: _Call, mutates: bool) -> Callable[[Mapping[str, Any]], bool]:
        """What torch's guards leave out: that the code is the same, and that what is changed in place lies apart."""
        token, arguments, overlap = self._token, call.arguments, self._calls.overlap

        def holds(variables: Mapping[str, Any], codes: Any = call.codes) -> bool:  # whose addresses are in the token
            now = getattr(_calling, "call", None)
            try:
                return (
                    now is not None
                    and now.compiled._token == token
                    and (arguments is None or not arguments.has_moved())
                    and not (mutates and overlap(variables))
                )
            except Exception:  # torch would raise it out of the program's call
                return False

        return holds

    def _require_unchanged(self, token: int | None) -> None:
        """What is kept is what the key says.

        Raises:
            NoFingerprint: the program is another one than when the key was made.
        """
        identified = self._identified
        if identified is None or self._token != token:
            raise NoFingerprint("it changed while it was compiled")
        before = identified.identity
        now = identified.look()
        if before.digest != now.digest:
            raise NoFingerprint(f"it changed while it was compiled. {before.difference(now)}")

    def _say(self, reason: object) -> None:
        """Once, why something is not kept."""
        said = str(reason)
        session = _session()
        if session is None or said in self._said:
            return
        self._said.add(said)
        with suppress(OSError, ValueError):  # of its store
            session.note(Lookup(self._name, False, (said,), left=True))
        _log.debug("compile cache", exc_info=isinstance(reason, Exception))


def _keep(session: CompileSession, path: str, package: Package, seconds: float) -> None:
    """Store a package below the path of its key."""
    data = package.to_bytes()
    kind = sizes_text(package.sizes) if package.frame == _ROOT else "frame"
    name = f"{path}{kind}.{hashlib.sha256(data).hexdigest()[:16]}"
    try:
        session.keep(name, "package", data, seconds)
    except (OSError, ValueError) as error:
        _log.info("%s is not kept: %s", name, error)


def _versions(session: CompileSession, path: str) -> list[Sizes]:
    """Static sizes for which other versions of a program were compiled."""
    program = path.rsplit("/", 2)[0] + "/"
    below = session.store.below(program, session.environment)
    found = [sizes_of_text(artifact.key.rpartition("/")[2].partition(".")[0]) for artifact, _ in below if artifact]
    return [sizes for sizes in found if sizes]
