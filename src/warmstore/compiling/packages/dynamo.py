"""The private parts of Dynamo that `ws.compile` stands on: what it asks, what compiling leaves, how that is put back.

Dynamo compiles a program frame by frame. For each frame that it has no code for it asks, and the answer is new code,
the guards under which that code is right, and names that it has put into the frame's globals. Here the question is ours
first. So everything that Dynamo compiles is covered, in as many graphs as it takes, and Dynamo holds the answers in its
own cache and checks their guards at each call.

This was written for the versions in `torch_hooks.TESTED`; `missing` says what another version does not have.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import pickle
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy
from torch._C._dynamo.guards import GlobalStateGuard
from torch._dynamo import bytecode_transformation, convert_frame
from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable as Bundled
from torch._dynamo.guards import CheckFunctionManager, GuardsStatePickler
from torch._dynamo.output_graph import get_builtins_dict
from torch._dynamo.package import SerializedCode, load_guard_manager, load_guards_state
from torch._dynamo.types import ConvertFrameReturn, GuardedCode, wrap_guarded_code
from torch._dynamo.utils import orig_code_map
from torch._guards import CompileContext, TracingContext, compile_context, tracing

from warmstore.compiling.keys.operators import called_modules, targets_of, why_not_known
from warmstore.compiling.packages.dynamo_guards import Written, restoring, writing
from warmstore.compiling.packages.references import Reference, put, reference_of

_FROM = 10**12
_NUMBERED = re.compile(r"(?!__builtins_dict__).*_\d{9,}(?:_c\d+|_[0-9a-f_]+)?")
"""A name that Dynamo has made up, in this process or another. Those of builtins are made where they are needed."""
_BUNDLED = {
    "bundled_autograd_cache": True,
    "force_autograd_cache": True,
    "force_non_lazy_backward_lowering": True,
}


@dataclass
class RecordedFrame:
    """What compiling one frame left.

    Attributes:
        guards: those that torch writes down.
        written: the others.
        code: runs instead of the frame's own.
        resumes: the functions that run what follows a graph break, by the names under which the code calls them.
        references: what another process finds by a name of its own, by such names.
        backends: compiled graphs by such names.
        traced: code that was looked at.
        targets: what graphs call.
        modules: the installed modules that this comes from.
        mutates: whether tensors that are passed in are changed in place.
        skipped: why Dynamo leaves the frame to Python, and for which frames, as `ConvertFrameReturn` has it.
        reasons: why it cannot be put back in another process.
    """

    written: Written
    guards: bytes = b""
    code: CodeType | None = None
    resumes: dict[str, CodeType] = field(default_factory=dict)
    references: dict[str, Reference] = field(default_factory=dict)
    backends: dict[str, bytes] = field(default_factory=dict)
    traced: set[CodeType] = field(default_factory=set)
    targets: list[Any] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)
    mutates: bool = False
    skipped: tuple[str, bool, int, int] | None = None
    reasons: list[str] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """What `Question.restore` needs."""
        code = None if self.code is None else SerializedCode.from_code_object(self.code)
        resumes = {name: SerializedCode.from_code_object(one) for name, one in self.resumes.items()}
        return pickle.dumps(
            (self.guards, self.written.of_objects, code, resumes, self.references, self.backends, self.skipped)
        )


class _Recorder:
    """Stands where a `torch._dynamo.package.CompilePackage` is told what compiling a frame leaves."""

    def __init__(self, code: CodeType) -> None:
        self.recorded = RecordedFrame(Written(code))
        self.compiled: dict[str, Any] = {}

    @contextmanager
    def code_context(self, code: CodeType) -> Iterator[None]:
        yield

    def add_guarded_code(self, guards_state: bytes, dynamo_code: CodeType) -> None:
        self.recorded.guards, self.recorded.code = guards_state, dynamo_code

    def add_inlined_source(self, sources: Sequence[CodeType]) -> None:
        self.recorded.traced.update(sources)

    def update_device_type(self, graph: Any) -> None:
        """Left out: the environment is in the key."""

    def add_backend_id(self, backend_id: str, backend: Any = None) -> None:
        self.compiled[backend_id] = backend

    def add_import_source(self, alias: str, module_name: str) -> None:
        self.recorded.references[alias] = ("module", module_name, "")

    def add_resume_function(self, python_code: CodeType, python_module: str, function_name: str) -> None:
        self.recorded.resumes[function_name] = python_code

    def bypass_current_entry(self) -> None:
        """Left out: of graphs with parameters in them, as which torch says this, the compiler of graphs is told."""

    def __bool__(self) -> bool:
        """Torch asks this where it would warn that it keeps no package. What is kept is said here, not there."""
        return False

    def finish(self, answer: ConvertFrameReturn, known: Mapping[str, Any]) -> RecordedFrame:
        """What was recorded, once the frame is compiled; `known` are its globals."""
        recorded = self.recorded
        if answer.guarded_code is None:
            strategy = answer.frame_exec_strategy
            actions = int(strategy.cur_action), int(strategy.recursive_action)
            recorded.skipped = (answer.skip_reason or "", answer.apply_to_code, *actions)
            return recorded
        assert recorded.code is not None
        names = set(_names_in(recorded.code)).union(*(_names_in(one) for one in recorded.resumes.values()))
        recorded.resumes = {name: code for name, code in recorded.resumes.items() if name in names}
        for name in sorted(names):
            if name in self.compiled:
                self._add_graph(name, self.compiled[name])
            elif name in recorded.resumes or name in recorded.references or not _NUMBERED.fullmatch(name):
                continue
            elif (found := reference_of(known.get(name))) is not None:
                recorded.references[name] = found
            else:
                recorded.reasons.append(f"its code reads {name}, which is an object of this process")
        recorded.references |= recorded.written.references
        if any(one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for one in dis.get_instructions(recorded.code)):
            recorded.reasons.append("it sets global variables")
        return recorded

    def _add_graph(self, name: str, compiled: Any) -> None:
        if getattr(compiled, "serialize", None) is None:
            self.recorded.reasons.append("torch does not keep its compiled graphs")
            return
        try:
            with functorch_config.patch(_BUNDLED):
                info = compiled.serialize().runtime_metadata.input_info
            self.recorded.mutates |= any(one.mutates_data for one in info)
            self.recorded.backends[name] = Bundled.serialize_compile_artifacts(Bundled(compiled))
        except Exception as error:
            self.recorded.reasons.append(f"a compiled graph cannot be written down: {error}")


def _names_in(code: CodeType) -> Iterator[str]:
    """The names that code and the code within it read."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names_in(one)


class _Backend:
    """The compiler of graphs, told to compile them in a form that can be written down."""

    def __init__(self, compiler: Any, recorder: _Recorder) -> None:
        self._torchdynamo_orig_backend = compiler  # where torch looks for the one that guards compare
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_torchdynamo_orig_backend"], name)

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        vars(graph).pop("_backend_id", None)  # else torch copies what is compiled, for a package of its own
        recorded = self._recorder.recorded
        recorded.targets += targets_of(graph)
        recorded.reasons += why_not_known(graph)
        if not recorded.reasons:
            recorded.modules |= called_modules(graph)
        if next(graph.parameters(), None) is not None:
            recorded.reasons.append("its graph holds parameters")
        if recorded.reasons:
            return self._torchdynamo_orig_backend(graph, inputs, **options)
        with functorch_config.patch(_BUNDLED):
            return self._torchdynamo_orig_backend(graph, inputs, **options)


class Question:
    """A frame that Dynamo has no code for.

    Attributes:
        frame: has `f_code`, `f_globals` and `f_locals`.
    """

    def __init__(self, frame: Any, state: Any, convert: Any, ask: Callable[[Any], ConvertFrameReturn]) -> None:
        self.frame = frame
        self._state = state
        self._convert = convert
        self._ask = ask

    def compile(self) -> ConvertFrameReturn:
        """Torch's own answer."""
        return self._ask(self._convert)

    def compile_recorded(self) -> tuple[ConvertFrameReturn, RecordedFrame]:
        """Torch's own answer, and what another process needs to give it again."""
        frames = getattr(self._convert, "_inner_convert", self._convert)
        recorder, compiler = _Recorder(self.frame.f_code), frames._torchdynamo_orig_backend
        _number_from_here()
        frames._package, frames._torchdynamo_orig_backend = recorder, _Backend(compiler, recorder)
        try:
            with writing(recorder.recorded.written):
                answer = self._ask(self._convert)
        finally:
            frames._package, frames._torchdynamo_orig_backend = None, compiler
        return answer, recorder.finish(answer, self.frame.f_globals)

    def restore(
        self, data: bytes, check: Callable[[Sequence[object]], None], holds: Callable[[Mapping[str, Any]], bool]
    ) -> tuple[ConvertFrameReturn | None, Mapping[str, CodeType], str]:
        """The answer that was recorded, if it is right for this frame.

        Args:
            data: as `RecordedFrame.to_bytes` made it.
            check: is given what stands in this process for `Written.objects`, and raises what stops this.
            holds: one guard more; it is given the frame's variables.

        Returns:
            The answer, the functions to resume in by their names, and, where there is no answer, the guard that failed.
        """
        with tracing(TracingContext(None)):  # where some sources leave guards as they are made
            guards, of_objects, code, resumes, references, backends, skipped = pickle.loads(data)
            state = load_guards_state(guards) if guards else None
        if skipped is not None:
            reason, apply_to_code, current, recursive = skipped
            strategy = _FrameExecStrategy(_FrameAction(current), _FrameAction(recursive))
            return ConvertFrameReturn(strategy, apply_to_code, None, reason), {}, ""
        assert state is not None
        _number_from_here()
        space = self.frame.f_globals
        if name := state.output_graph.name_of_builtins_dict_key_in_fglobals:
            space.setdefault(name, get_builtins_dict(space))
        put(references, space)
        with self._compiling() as number, restoring(of_objects, {"L": self.frame.f_locals, "G": space}, check):
            manager: Any = load_guard_manager(state, self.frame.f_code, space)
        add_guard(manager, holds)
        if not manager.check(self.frame.f_locals):
            return None, {}, _failed(manager, self.frame.f_locals)
        for name, graph in backends.items():
            space[name] = torch._dynamo.disable(Bundled.deserialize_compile_artifacts(graph))
        codes = {name: SerializedCode.to_code_object(one) for name, one in resumes.items()}
        for name, one in codes.items():
            make = torch._dynamo.disable(partial(_closed, one, space, name))
            space[name] = make if one.co_freevars else FunctionType(one, space, name)
        instead = SerializedCode.to_code_object(code)
        convert_frame.output_codes.add(instead)
        orig_code_map[instead] = self.frame.f_code
        return wrap_guarded_code(GuardedCode(instead, manager, number)), codes, ""

    @contextmanager
    def _compiling(self) -> Iterator[Any]:
        """As where torch compiles: guards compare what is global now, and have the number of a compilation."""
        before = convert_frame.initial_global_state
        convert_frame.initial_global_state = GlobalStateGuard()
        number = convert_frame.get_compile_id(self._state)
        try:
            with compile_context(CompileContext(number)):
                yield number
        finally:
            convert_frame.initial_global_state = before


def _closed(code: CodeType, space: dict[str, Any], name: str, closure: Any) -> FunctionType:
    """A function to resume in that has variables around it."""
    return FunctionType(code, space, name, None, closure)


def _failed(manager: Any, variables: Any) -> str:
    try:
        return "; ".join(manager.check_verbose(variables).verbose_code_parts[:1])
    except Exception as error:
        return str(error)


def add_guard(manager: Any, holds: Callable[[Mapping[str, Any]], bool]) -> None:
    """One guard more, checked after all others."""
    manager.root.add_epilogue_lambda_guard(holds, ["the program is the same"], None)


class _Convert:
    """Asked by Dynamo in the place of `torch._dynamo.convert_frame`'s."""

    def __init__(
        self, convert: Any, answer: Callable[[Question], ConvertFrameReturn], say: Callable[[str], None]
    ) -> None:
        self._convert = convert
        self._torchdynamo_orig_backend = convert._torchdynamo_orig_backend  # where torch looks for the compiler
        self._answer = answer
        self._say = say

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of what was compiled is that of `torch.compile`."""
        return _itself, (self._convert,)

    @property
    def _clone_with_backend(self) -> Any:
        """What DistributedDataParallel asks with: it cuts graphs by the size of its buckets."""
        self._say(
            "DistributedDataParallel cuts its graphs; torch._dynamo.config.optimize_ddp = False leaves them whole"
        )
        return self._convert._clone_with_backend

    def __call__(self, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> ConvertFrameReturn:
        def ask(convert: Any) -> ConvertFrameReturn:
            answer: ConvertFrameReturn = convert(frame, cache_entry, hooks, frame_state, skip=skip + 3)
            return answer

        return self._answer(Question(frame, frame_state, self._convert, ask))


def _itself(convert: Any) -> Any:
    return convert


@cache
def _number_from_here() -> None:
    """Count the names that Dynamo makes up from a number that no other process counts from, once.

    What another process has made is put into the same globals, under the names that it was made with.
    """
    bytecode_transformation._unique_id_counter = itertools.count(random.SystemRandom().randrange(_FROM, _FROM * 1000))


def listen(compiled: Any, answer: Callable[[Question], ConvertFrameReturn], say: Callable[[str], None]) -> None:
    """Have Dynamo's questions about what `torch.compile` returned answered by `answer`.

    Args:
        compiled: an `OptimizedModule` or a function.
        answer: `Question.compile` is what torch would do.
        say: is told why torch asks elsewhere.

    Raises:
        TypeError: this version of torch is another one.
    """
    context = getattr(compiled, "dynamo_ctx", None)
    if context is None:
        cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__ or (), strict=True))
        context = cells["self"].cell_contents
    asking = context.callback
    asking._torchdynamo_orig_backend = _Convert(asking._torchdynamo_orig_backend, answer, say)


_EXPECTED: tuple[tuple[Any, str, str], ...] = (
    (CheckFunctionManager, "serialize_guards", "self builder sorted_guards output_graph"),
    (CheckFunctionManager, "build_guards", "self sorted_guards existing_diff_guard_sources f_code output_graph"),
    (GuardsStatePickler, "reducer_override", "self obj"),
    (convert_frame.ConvertFrame, "__call__", "self frame cache_entry hooks frame_state skip"),
    (convert_frame.ConvertFrameAssert, "__call__", "self frame cache_entry hooks frame_state skip"),
    (bytecode_transformation, "unique_id", "name"),
)


def missing() -> str:
    """What this version of torch has otherwise than expected; "" where it has everything."""
    for holder, name, parameters in _EXPECTED:
        found = list(inspect.signature(getattr(holder, name)).parameters)
        if found[: len(parameters.split())] != parameters.split():
            return f"{name} of {holder.__name__} takes {', '.join(found)}; expected was {parameters}"
    return ""
