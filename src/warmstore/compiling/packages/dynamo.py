"""The private parts of Dynamo that `ws.compile` depends on: recording the result of a compilation, and restoring it.

Dynamo compiles a program frame by frame. For a frame without compiled code, Dynamo calls a converter, which returns new
code and its guards, and adds names to the frame's globals. `listen` replaces the converter, so packages cover all that
Dynamo compiles. Dynamo keeps the results in its own cache and checks their guards at each call.

This module is written for the versions in `torch_hooks.TESTED`. `missing` checks other versions.
"""

from __future__ import annotations

import dis
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
from torch._dynamo.exc import Unsupported, UserError
from torch._dynamo.guards import CheckFunctionManager, GuardsStatePickler
from torch._dynamo.output_graph import get_builtins_dict
from torch._dynamo.package import SerializedCode, load_guard_manager, load_guards_state
from torch._dynamo.types import ConvertFrameReturn, GuardedCode, wrap_guarded_code
from torch._dynamo.utils import orig_code_map
from torch._guards import CompileContext, TracingContext, compile_context, tracing

from warmstore.compiling.hooks.torch_hooks import unexpected_signature
from warmstore.compiling.keys.operators import called_modules, targets_of, why_not_known
from warmstore.compiling.keys.vector_isa import uses_cpu
from warmstore.compiling.packages.dynamo_guards import Written, restoring, writing
from warmstore.compiling.packages.references import Reference, put, reference_of

_FROM = 10**12
_NUMBERED = re.compile(r"(?!__builtins_dict__).*_\d{9,}(?:_c\d+|_[0-9a-f_]+)?")
"""A name that Dynamo has made, in any process. The names of builtins are left out: `restore` sets them."""
_BUNDLED = {
    "bundled_autograd_cache": True,
    "force_autograd_cache": True,
    "force_non_lazy_backward_lowering": True,
}


@dataclass
class RecordedFrame:
    """The result of compiling one frame.

    Attributes:
        written, guards: The guards that torch does not serialise, and those that it does.
        code: The code that replaces the frame's code.
        resumes: The resume functions, which run the code after a graph break.
        references: Objects that other processes can find. Like `resumes` and `backends`, by their global names.
        backends: Compiled graphs.
        targets, modules: What graphs call, and the installed modules of these functions and operators.
        mutates: Whether arguments are changed in place.
        uses_cpu: Whether graphs have tensors on the CPU.
        skipped: Why Dynamo leaves the frame to Python, and the other fields of its `ConvertFrameReturn`.
        reasons: Why no other process can restore the frame.
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
    uses_cpu: bool = False
    skipped: tuple[str, bool, int, int] | None = None
    reasons: list[str] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """The argument of `Question.restore`."""
        code = None if self.code is None else SerializedCode.from_code_object(self.code)
        resumes = {name: SerializedCode.from_code_object(resume) for name, resume in self.resumes.items()}
        return pickle.dumps(
            (self.guards, self.written.of_objects, code, resumes, self.references, self.backends, self.skipped)
        )


class _Recorder:
    """Takes the place of torch's `CompilePackage`, which Dynamo calls with the parts of a result."""

    def __init__(self, code: CodeType) -> None:
        self.recorded = RecordedFrame(Written(code))
        self.compiled: dict[str, Any] = {}
        self.error: Exception | None = None

    @contextmanager
    def code_context(self, code: CodeType) -> Iterator[None]:
        """torch compiles inside of it. With `suppress_errors`, torch leaves a frame to Python after any error."""
        try:
            yield
        except Exception as error:
            self.error = error
            raise

    def add_guarded_code(self, guards_state: bytes, dynamo_code: CodeType) -> None:
        self.recorded.guards, self.recorded.code = guards_state, dynamo_code

    def add_inlined_source(self, sources: Sequence[CodeType]) -> None:
        self.recorded.traced.update(sources)

    def update_device_type(self, graph: Any) -> None:
        """Does nothing: the environment is in the key."""

    def add_backend_id(self, backend_id: str, backend: Any = None) -> None:
        self.compiled[backend_id] = backend

    def add_import_source(self, alias: str, module_name: str) -> None:
        self.recorded.references[alias] = ("module", module_name, "")

    def add_resume_function(self, python_code: CodeType, python_module: str, function_name: str) -> None:
        self.recorded.resumes[function_name] = python_code

    def bypass_current_entry(self) -> None:
        """Does nothing: torch calls this for graphs with parameters, which `_Backend` rejects."""

    def __bool__(self) -> bool:
        """False, so that torch does not warn about packages that it does not store."""
        return False

    def finish(self, answer: ConvertFrameReturn, variables: Mapping[str, Any]) -> RecordedFrame:
        """The recorded frame after its compilation. `variables`: its globals."""
        recorded = self.recorded
        if answer.guarded_code is None:
            strategy = answer.frame_exec_strategy
            actions = int(strategy.cur_action), int(strategy.recursive_action)
            recorded.skipped = (answer.skip_reason or "", answer.apply_to_code, *actions)
            if int(_FrameAction.RUN_ONLY) in actions:
                recorded.reasons.append("this process has compiled it too often")
            elif self.error is not None and not isinstance(self.error, Unsupported | UserError):
                recorded.reasons.append(f"torch could not compile it here: {self.error}")
            return recorded
        assert recorded.code is not None
        names = set(_names_in(recorded.code)).union(*map(_names_in, recorded.resumes.values()))
        recorded.resumes = {name: code for name, code in recorded.resumes.items() if name in names}
        for name in sorted(names):
            if name in self.compiled:
                self._add_graph(name, self.compiled[name])
            elif name in recorded.resumes or name in recorded.references or not _NUMBERED.fullmatch(name):
                continue
            elif (reference := reference_of(variables.get(name))) is not None:
                recorded.references[name] = reference
            else:
                recorded.reasons.append(f"its code reads {name}, an object that only this process has")
        recorded.references |= recorded.written.references
        if any(step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for step in dis.get_instructions(recorded.code)):
            recorded.reasons.append("it sets global variables")
        return recorded

    def _add_graph(self, name: str, compiled: Any) -> None:
        if getattr(compiled, "serialize", None) is None:
            self.recorded.reasons.append("torch cannot serialise its compiled graphs")
            return
        try:
            with functorch_config.patch(_BUNDLED):
                info = compiled.serialize().runtime_metadata.input_info
            self.recorded.mutates |= any(argument.mutates_data for argument in info)
            self.recorded.backends[name] = Bundled.serialize_compile_artifacts(Bundled(compiled))
        except Exception as error:
            self.recorded.reasons.append(f"a compiled graph cannot be serialised: {error}")


def _names_in(code: CodeType) -> Iterator[str]:
    """The names that code and its nested code read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


class _Backend:
    """Calls a compiler of graphs, and makes it compile in a form that can be serialised."""

    def __init__(self, compiler: Any, recorder: _Recorder) -> None:
        self._torchdynamo_orig_backend = compiler  # torch reads this attribute for its guards
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_torchdynamo_orig_backend"], name)

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        vars(graph).pop("_backend_id", None)  # otherwise torch copies compiled graphs for its own packages
        recorded = self._recorder.recorded
        recorded.targets += targets_of(graph)
        recorded.reasons += why_not_known(graph)
        if not recorded.reasons:
            recorded.modules |= called_modules(graph)
            recorded.uses_cpu |= uses_cpu(graph)
        if next(graph.parameters(), None) is not None:
            recorded.reasons.append("its graph contains parameters")
        if recorded.reasons:
            return self._torchdynamo_orig_backend(graph, inputs, **options)
        with functorch_config.patch(_BUNDLED):
            return self._torchdynamo_orig_backend(graph, inputs, **options)


class Question:
    """Dynamo's question about a frame without compiled code.

    Attributes:
        frame: Has `f_code`, `f_globals` and `f_locals`.
    """

    def __init__(self, frame: Any, state: Any, convert: Any, ask: Callable[[Any], ConvertFrameReturn]) -> None:
        self.frame = frame
        self._state = state
        self._convert = convert
        self._ask = ask

    def compile(self) -> ConvertFrameReturn:
        """Compile with torch."""
        return self._ask(self._convert)

    def compile_recorded(self) -> tuple[ConvertFrameReturn, RecordedFrame]:
        """Compile with torch, and record the result for other processes."""
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
        """Restore a recorded result from `RecordedFrame.to_bytes`, if its guards hold for this frame.

        `check` is as for `dynamo_guards.restoring`. `holds` is an additional guard, called with the frame's variables.
        Returns the answer or None, the resume functions by name, and without an answer the guard that failed.
        """
        with tracing(TracingContext(None)):  # some sources record guards when they are unpickled
            guards, of_objects, code, resumes, references, backends, skipped = pickle.loads(data)
            state = load_guards_state(guards) if guards else None
        if skipped is not None:
            reason, apply_to_code, current, recursive = skipped
            strategy = _FrameExecStrategy(_FrameAction(current), _FrameAction(recursive))
            return ConvertFrameReturn(strategy, apply_to_code, None, reason), {}, ""
        assert state is not None
        _number_from_here()
        variables = self.frame.f_globals
        if name := state.output_graph.name_of_builtins_dict_key_in_fglobals:
            variables.setdefault(name, get_builtins_dict(variables))
        put(references, variables)
        with self._compiling() as number, restoring(of_objects, {"L": self.frame.f_locals, "G": variables}, check):
            manager: Any = load_guard_manager(state, self.frame.f_code, variables)
        add_guard(manager, holds)
        if not manager.check(self.frame.f_locals):
            return None, {}, _failed_guard(manager, self.frame.f_locals)
        for name, graph in backends.items():
            variables[name] = torch._dynamo.disable(Bundled.deserialize_compile_artifacts(graph))
        codes = {name: SerializedCode.to_code_object(resume) for name, resume in resumes.items()}
        for name, resume in codes.items():
            make = torch._dynamo.disable(partial(_closed, resume, variables, name))
            variables[name] = make if resume.co_freevars else FunctionType(resume, variables, name)
        compiled = SerializedCode.to_code_object(code)
        convert_frame.output_codes.add(compiled)
        orig_code_map[compiled] = self.frame.f_code
        return wrap_guarded_code(GuardedCode(compiled, manager, number)), codes, ""

    @contextmanager
    def _compiling(self) -> Iterator[Any]:
        """The state in which torch compiles: guards compare the present global state. Yields a compilation number."""
        before = convert_frame.initial_global_state
        convert_frame.initial_global_state = GlobalStateGuard()
        number = convert_frame.get_compile_id(self._state)
        try:
            with compile_context(CompileContext(number)):
                yield number
        finally:
            convert_frame.initial_global_state = before


def _closed(code: CodeType, variables: dict[str, Any], name: str, closure: Any) -> FunctionType:
    """A resume function with a closure."""
    return FunctionType(code, variables, name, None, closure)


def _failed_guard(manager: Any, variables: Any) -> str:
    try:
        return "; ".join(manager.check_verbose(variables).verbose_code_parts[:1])
    except Exception as error:
        return str(error)


def add_guard(manager: Any, holds: Callable[[Mapping[str, Any]], bool]) -> None:
    """Add a guard that is checked after all others."""
    manager.root.add_epilogue_lambda_guard(holds, ["the program is the same"], None)


class _Convert:
    """Replaces the converter of `torch._dynamo.convert_frame`."""

    def __init__(
        self, convert: Any, answer: Callable[[Question], ConvertFrameReturn], report: Callable[[str], None]
    ) -> None:
        self._convert = convert
        self._torchdynamo_orig_backend = convert._torchdynamo_orig_backend  # torch reads this attribute
        self._answer = answer
        self._report = report

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has torch's converter."""
        return _itself, (self._convert,)

    @property
    def _clone_with_backend(self) -> Any:
        """torch's converter for DistributedDataParallel, which splits graphs by the size of its buckets."""
        self._report("DistributedDataParallel splits its graphs; set torch._dynamo.config.optimize_ddp = False")
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
    """Let the numbers in Dynamo's names start at a random number, once, so that names of other processes, which
    `restore` adds to the same globals, are different."""
    bytecode_transformation._unique_id_counter = itertools.count(random.SystemRandom().randrange(_FROM, _FROM * 1000))


def listen(compiled: Any, answer: Callable[[Question], ConvertFrameReturn], report: Callable[[str], None]) -> None:
    """Answer Dynamo's questions about `compiled`, a result of `torch.compile`. `report` is called with the reason when
    Dynamo does not ask."""
    context = getattr(compiled, "dynamo_ctx", None)
    if context is None:
        cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__ or (), strict=True))
        context = cells["self"].cell_contents
    converter = context.callback
    converter._torchdynamo_orig_backend = _Convert(converter._torchdynamo_orig_backend, answer, report)


_EXPECTED: tuple[tuple[Any, str, str], ...] = (
    (CheckFunctionManager, "serialize_guards", "self builder sorted_guards output_graph"),
    (CheckFunctionManager, "build_guards", "self sorted_guards existing_diff_guard_sources f_code output_graph"),
    (GuardsStatePickler, "reducer_override", "self obj"),
    (convert_frame.ConvertFrame, "__call__", "self frame cache_entry hooks frame_state skip"),
    (convert_frame.ConvertFrameAssert, "__call__", "self frame cache_entry hooks frame_state skip"),
    (bytecode_transformation, "unique_id", "name"),
)


def missing() -> str:
    """The first difference of this version of torch from the expected one; "" if there is none."""
    return next(filter(None, (unexpected_signature(*expected) for expected in _EXPECTED)), "")
