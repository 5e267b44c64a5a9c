"""A program that was compiled with `torch.compile`: it answers Dynamo's questions from stored packages.

Dynamo asks for each frame that it would compile. The answer is a package of another process, if the program has the
same identity and the guards of the package hold. Otherwise torch compiles, and the result is stored as a package. The
identity is made again when the code of the program, or a variable that the code reads, changes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

from warmstore.compiling import compile_cache
from warmstore.compiling.keys.call_sizes import Sizes, cover, dynamic, generalised, shapes, sizes_of_text, sizes_text
from warmstore.compiling.misses.lookup_log import Lookup
from warmstore.compiling.packages.package import PROVEN, Package, packaged
from warmstore.errors import BadArtifact, Incompatible, NoFingerprint
from warmstore.identity.reads.code_facts import facts_of
from warmstore.storage.locks import renewed_in_children

if TYPE_CHECKING:
    from warmstore.compiling.keys.identified import Identified
    from warmstore.compiling.packages.dynamo import Question
    from warmstore.compiling.session import CompileSession
    from warmstore.identity.watch import Watch

_log = logging.getLogger("warmstore")

_MOST_SECONDS_IN_VAIN = 2.0  # for identities of a program that sets variables again and again to the same values
_ROOT = "root"
_calling = threading.local()


@dataclass
class _Call:
    """A running call. Its fields from `path`, the key of its packages, on are set at Dynamo's first question.

    `is_first`: the program was identified at the start of this call. `codes`: the code objects of the program and of
    the arguments, by address. `arguments` detects changes of the arguments' code. `unusable`: why stored packages are
    not usable. `is_refused`: torch compiles the remaining frames.
    """

    program: CompiledProgram
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


class CompiledProgram:
    """Calls the result of `torch.compile`, and answers Dynamo's questions during the call. `options` are those of
    `torch.compile`, `version` and `ignore` those of `identify`."""

    _lock: threading.RLock
    _why_not_now: Callable[[], str]

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
        self._is_compiling = torch.compiler.is_compiling  # inside another compiled function, which traces this one
        self._plain: Callable[..., Any] = model
        self._why_not = ""
        self._has_begun = False
        self._identified: Identified | None = None
        self._token: int | None = None  # of the current code
        self._resumes: dict[int, tuple[str, CodeType]] = {}
        self._proven: dict[bytes, Sequence[object]] = {}  # objects that guards compare, by the data of the package
        self._seconds_in_vain = 0.0
        self._reported: set[str] = set()
        renewed_in_children(self, "_lock", threading.RLock)

    def listen(self, compiled: Any, plain: Callable[..., Any], why_not: Callable[[], str]) -> None:
        """Answer Dynamo's questions about `compiled`, a result of `torch.compile` that `plain` calls. `why_not` says
        why nothing is stored with these options and torch's present settings; "" if results are stored."""
        self._plain, self._why_not_now = plain, why_not
        self._why_not = why_not()
        if self._why_not:
            return
        try:
            from warmstore.compiling.packages import dynamo

            self._why_not = dynamo.missing()
            if not self._why_not:
                dynamo.listen(compiled, self._answer, self._report)
        except Exception as error:
            import torch

            self._why_not = f"nothing is stored with torch {torch.__version__}: {error}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_compiling():
            return self._plain(*args, **kwargs)
        is_first = not self._has_begun
        if is_first:
            self._begin()
        identified = self._identified
        if identified is not None and identified.has_moved():
            self._identify_again(identified)
        before = getattr(_calling, "call", None)
        _calling.call = _Call(self, args, kwargs, is_first)
        try:
            result = self._plain(*args, **kwargs)
        finally:
            _calling.call = before
        if self._identified is not None:
            self._after_call(self._identified)
        return result

    def _begin(self) -> None:
        """Before the first call: report why nothing is stored, or identify the program."""
        if _session() is None:
            return
        self._has_begun = True
        if self._why_not:
            self._report(self._why_not)
            return
        try:
            self._identified = self._identify()
            self._set_token(self._identified)
        except Exception as error:
            self._forget(error)

    # The current code.

    def _set_token(self, identified: Identified) -> None:
        """From now on, only results for the current code are valid."""
        self._token = hash(tuple(identified.codes))

    def _identify_again(self, identified: Identified) -> None:
        """Identify the program again after its code, or a variable that the code reads, has changed."""
        with self._lock:
            if not identified.has_moved():
                return  # another thread has done it
            began, before = time.monotonic(), self._token
            try:
                identified.look()
                self._set_token(identified)
            except Exception as error:
                self._forget(error)
                return
            if self._token == before:
                self._seconds_in_vain += time.monotonic() - began
            if self._seconds_in_vain > _MOST_SECONDS_IN_VAIN:
                self._forget("variables that it reads are set repeatedly")

    def _after_call(self, identified: Identified) -> None:
        """Accept changes that the program itself made during a call."""
        try:
            if identified.called():
                self._set_token(identified)
        except Exception as error:
            self._forget(error)

    def _forget(self, reason: object) -> None:
        """Leave all further calls to `torch.compile`, and report why."""
        self._identified, self._token = None, None
        self._why_not = str(reason)
        self._report(reason)

    # Dynamo's questions.

    def _answer(self, question: Question) -> Any:
        """Dynamo's result for one frame: from a package, else from torch."""
        call: _Call | None = getattr(_calling, "call", None)
        session = _session()
        if (
            call is None
            or call.program is not self
            or call.is_refused
            or self._why_not
            or session is None
            or not session.is_open
            or self._calls.is_transformed()
        ):
            return question.compile()
        if reason := self._why_not_now():
            self._report(reason)
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
            self._report(error)
            return question.compile()
        with session.alone(call.path + frame):
            return self._compile(session, question, call, frame, reasons)

    def _look_up(self, session: CompileSession, call: _Call) -> None:
        """Identify a call, with all current data of the program, and read the packages for its key. Raises
        NoFingerprint."""
        with self._lock:
            if self._identified is not None and self._identified.has_moved():
                self._identify_again(self._identified)
            identified = self._identified
            if identified is None:
                raise NoFingerprint(self._why_not)
            if not call.is_first:
                identified.look()  # data may have changed: only code is watched
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
        """Read the packages that the store has now for a call."""
        read, reasons = session.read(call.path)
        call.packages = []
        for data in read:
            try:
                call.packages.append(Package.from_bytes(data))
            except BadArtifact as error:
                reasons.append(str(error))
        call.unusable = tuple(reasons)

    def _frame(self, question: Question, call: _Call) -> str:
        """The name of a frame, which is the same in every process."""
        frame = question.frame
        code = frame.f_code
        if (resumed := self._resumes.get(id(code))) is not None:
            return resumed[0]
        if self._calls.is_root(self._model, frame, call.args, call.kwargs):
            return _ROOT
        if id(code) in call.codes:
            return f"{list(call.codes).index(id(code))} {code.co_qualname}"
        # By its code too: one line may have several functions of one name, such as lambdas.
        place = f"{frame.f_globals.get('__name__')}:{code.co_qualname}:{code.co_firstlineno}"
        return f"{place}:{facts_of(code).digest}"

    def _restored(self, question: Question, call: _Call, frame: str) -> tuple[Any, list[str]]:
        """The result from a package of another process; else None and the reasons. Results that leave the frame to
        Python have no guards, so they come after all others."""
        of_frame = [package for package in call.packages if package.frame == frame]
        usable = of_frame
        if frame == _ROOT:
            usable = [package for package in of_frame if cover(package.sizes, call.sizes)]
            usable.sort(key=lambda package: package.sizes != call.sizes)  # packages for exactly these sizes first
        reasons, left_to_python = [], None
        if call.packages and not usable:
            reasons.append("its packages are for other sizes" if of_frame else "no package of this frame is stored")
        for package in usable:
            try:
                package.check_installed()
                holds = self._holds(call, package.mutates)
                check = partial(self._check_objects, package)
                with self._with_options():  # libraries of the graphs are compiled or found
                    package.check_vectors()
                    answer, resumes, failed = question.restore(package.data, check, holds)
            except Exception as error:
                reasons.append(f"a package of it is not usable here: {error}")
                _log.debug("compile cache", exc_info=True)
                continue
            if answer is None:
                reasons.append(f"a guard of a package of it fails: {failed}")
            elif answer.guarded_code is None:
                left_to_python = answer
            else:
                self._resume_in(resumes)
                return answer, []
        return left_to_python, reasons

    def _with_options(self) -> AbstractContextManager[object]:
        """A context in which Inductor has the options of this program, as it has while it compiles a graph."""
        import torch._inductor

        config: Any = torch._inductor.config
        mode = torch._inductor.list_mode_options(self._options.get("mode") or "default")
        options = {**mode, **(self._options.get("options") or {})}
        options = {name.replace("-", "_"): value for name, value in options.items()}
        known = {name: value for name, value in options.items() if name in config._config}
        patched: AbstractContextManager[object] = config.patch(known)
        return patched

    def _check_objects(self, package: Package, found: Sequence[object]) -> None:
        """Check the objects that guards compare, as `Package.check_objects` does. In this process, an object that the
        key proves to be equal must stay the same object."""
        package.check_objects(found)
        before = self._proven.setdefault(package.data, found)
        for (expression, text), value, known in zip(package.objects, found, before, strict=True):
            if text == PROVEN and value is not known:
                raise Incompatible(f"{expression} is a different object here")

    def _resume_in(self, resumes: Mapping[str, CodeType]) -> None:
        self._resumes.update((id(code), (name, code)) for name, code in resumes.items())

    def _compile(self, session: CompileSession, question: Question, call: _Call, frame: str, reasons: list[str]) -> Any:
        """Compile a frame with torch, and store the result as a package. `reasons`: why no package is usable."""
        from warmstore.compiling.packages import dynamo

        try:
            before, answer = call.packages, None
            self._read(session, call)
            if call.packages != before:  # another process has stored one meanwhile
                answer, reasons = self._restored(question, call, frame)
            changed = () if call.packages else session.why(call.path)
            session.note(Lookup(call.path + frame, answer is not None, (*call.unusable, *reasons), changed))
            if answer is not None:
                return answer
            sizes = self._sizes(session, call, frame)
            token = self._token
        except Exception as error:
            call.is_refused = True
            self._report(error)
            return question.compile()
        began = time.monotonic()
        dynamic_sizes = sizes if frame == _ROOT and self._options.get("dynamic") is None else ()
        try:
            with dynamic(call.args, call.kwargs, dynamic_sizes):
                answer, recorded = question.compile_recorded()
        finally:
            session.landed()
        try:
            self._resume_in(recorded.resumes)
            with self._with_options():
                package = packaged(recorded, frame, sizes, call.codes, self._resumes, is_root=frame == _ROOT)
            if answer.guarded_code is not None:
                dynamo.add_guard(answer.guarded_code.guard_manager, self._holds(call, package.mutates))
            self._proven[package.data] = recorded.written.objects
            self._require_unchanged(token)
            session.harvest()  # libraries first: a package refers to them
            with self._with_options():
                _keep(session, call.path, package, time.monotonic() - began)
        except Exception as error:
            self._report(error)
        return answer

    def _sizes(self, session: CompileSession, call: _Call, frame: str) -> Sizes:
        """The sizes to compile for; None for a size that may vary."""
        others = [package.sizes for package in call.packages if package.frame == frame]
        if frame != _ROOT or any(cover(other, call.sizes) for other in others):
            return call.sizes  # a package for these sizes is not usable for another reason than sizes
        return generalised(call.sizes, others + _versions(session, call.path), self._options.get("dynamic"))

    def _holds(self, call: _Call, mutates: bool) -> Callable[[Mapping[str, Any]], bool]:
        """A guard for what torch's guards do not check: the code is unchanged, and tensors that the frame mutates do
        not overlap others."""
        token, arguments, overlap = self._token, call.arguments, self._calls.overlap

        def holds(variables: Mapping[str, Any], codes: Any = call.codes) -> bool:  # keeps the ids in the token
            now = getattr(_calling, "call", None)
            try:
                return (
                    now is not None
                    and now.program._token == token
                    and (arguments is None or not arguments.has_moved())
                    and not (mutates and overlap(variables))
                )
            except Exception:  # torch would raise it in the program
                return False

        return holds

    def _require_unchanged(self, token: int | None) -> None:
        """Raise NoFingerprint if the program has changed since the key was made."""
        identified = self._identified
        if identified is None or self._token != token:
            raise NoFingerprint("the program changed while it was compiled")
        before = identified.identity
        now = identified.look()
        if before.digest != now.digest:
            raise NoFingerprint(f"the program changed while it was compiled. {before.difference(now)}")

    def _report(self, reason: object) -> None:
        """Report once why the program is left to `torch.compile`."""
        text = str(reason)
        session = _session()
        if session is None or text in self._reported:
            return
        self._reported.add(text)
        with suppress(OSError, ValueError):  # of the store
            session.note(Lookup(self._name, False, (text,), left=True))
        _log.debug("compile cache", exc_info=isinstance(reason, Exception))


def _session() -> CompileSession | None:
    """The open session of this process, if there is one."""
    cache = compile_cache.current()
    return None if cache is None or cache.closed else cache.session


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
    """The sizes that other versions of a program were compiled for."""
    program = path.rsplit("/", 2)[0] + "/"
    below = session.store.below(program, session.environment)
    found = [sizes_of_text(artifact.key.rpartition("/")[2].partition(".")[0]) for artifact, _ in below if artifact]
    return [sizes for sizes in found if sizes]
