"""Steps of NVIDIA DALI operators on the CPU: one sample in, one sample out, deterministic.

Every process builds its own DALI pipelines, with batches of one sample. They have threads, which a fork does not copy.
So a forked child neither uses nor destroys the pipelines that it inherited.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np

from warmstore.extras import not_installed
from warmstore.identity.identity import walk_over
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch


@final
class Dali:
    """A step that runs DALI operators on a value: `pipe.step(Dali(define, size=96))`.

    Args:
        define: called as define(*inputs, **arguments) with one DALI node per field, or one for the whole value; returns
            a node, or a dict of nodes by name. Every process that computes samples calls it, and again if what it reads
            has changed; the constructor does, too.
        fields: for dict values, the names of the inputs. A single output replaces the first field; a dict of outputs
            replaces or adds the fields of its names. None: the whole value is the input, bytes or an array.
        arguments: of `define`; part of the step's identity.

    Inputs are bytes (as uint8), arrays or tensors of bool, integers or floats up to 64 bits, and numbers (as int32 and
    float32, like DALI's arguments). They have no layout. Outputs are NumPy arrays.

    Raises:
        NotInstalled: DALI is not installed.
        TypeError: `define` does not return nodes, or DALI does not take a value's type.
        ValueError: an operator is random, keeps a state, reads data itself or runs on a GPU; or an input is not used.
    """

    def __init__(
        self, define: Callable[..., Any], /, *, fields: str | Sequence[str] | None = None, **arguments: Any
    ) -> None:
        self.func = define  # as in a partial: it gives the step its name
        self.fields = (fields,) if isinstance(fields, str) else None if fields is None else tuple(fields)
        self.arguments = arguments
        if self.fields == ():
            raise ValueError("fields names nothing: name the input fields, or leave it out to pass whole values")
        self._define()

    def __call__(self, value: Any, rng: np.random.Generator | None = None) -> Any:
        """The operators' result for one value."""
        if rng is not None:
            raise TypeError(
                "a DALI step uses no generator, so it cannot be random=True; draw with NumPy in a random step before "
                "it, and name the drawn field in fields"
            )
        values = [value] if self.fields is None else [value[field] for field in self.fields]
        inputs = [_to_array(each) for each in values]
        with _lock:
            defined = self._defined()
            pipelines = defined.pipelines
            types = tuple((array.dtype.char, array.ndim) for array in inputs)  # a DALI pipeline takes no others
            if types not in pipelines:
                with defined.recorded.calling():
                    pipelines[types] = self._define()
            running = pipelines[types]
            try:
                outputs = running(inputs)
            except BaseException:
                del pipelines[types]  # it cannot run again after an error
                raise
        made = outputs if running.names is None else dict(zip(running.names, outputs, strict=True))
        if self.fields is None:
            return made if isinstance(made, dict) else made[0]
        return {**value, **(made if isinstance(made, dict) else {self.fields[0]: made[0]})}

    def _defined(self) -> "_Defined":
        """The DALI pipelines of this process, without those of before a change of what `define` reads."""
        known = _steps.get(self)
        if known is None:
            define = partial(self.func, **self.arguments)
            known = _steps[self] = _Defined(RecordedIdentity(partial(_look, define, self._name)))
        digest = known.recorded.refresh(exactly=True).digest
        if digest != known.digest:
            known.digest, known.pipelines = digest, {}
        return known

    def _define(self) -> "_Running":
        dali = _dali()
        pipeline = dali.Pipeline(
            batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1, exec_async=False, exec_pipelined=False
        )
        fields = self.fields or ("value",)
        with pipeline:
            inputs = {f"input_{field}": dali.fn.external_source(name=f"input_{field}") for field in fields}
            made = self.func(*inputs.values(), **self.arguments)
            nodes = list(made.values()) if isinstance(made, dict) else [made]
            for node in nodes:
                if not isinstance(node, dali.data_node.DataNode):
                    raise TypeError(f"{self._name} must return a DALI node or a dict of them; got {made!r:.80}")
            used = _check(nodes, [node.source for node in inputs.values()], self._name)
            pipeline.set_outputs(*nodes)
        for name, node in inputs.items():
            if id(node.source) not in used:
                raise ValueError(f"{self._name} does not use its input {name.removeprefix('input_')!r}; leave it out")
        return _Running(pipeline, tuple(inputs), tuple(made) if isinstance(made, dict) else None)

    @property
    def _name(self) -> str:
        return str(getattr(self.func, "__name__", self.func))


@dataclass(frozen=True)
class _Running:
    """A DALI pipeline. inputs: names of its inputs. names: of its outputs, if they come as a dict."""

    pipeline: Any
    inputs: tuple[str, ...]
    names: tuple[str, ...] | None

    def __call__(self, values: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        for name, value in zip(self.inputs, values, strict=True):
            self.pipeline.feed_input(name, [value])
        return [np.array(batch[0]) for batch in self.pipeline.run()]


@dataclass
class _Defined:
    """The DALI pipelines of one step in this process. recorded: the identity of `define` with its arguments.

    digest: that of the pipelines. pipelines: by the types of their inputs.
    """

    recorded: RecordedIdentity
    digest: str = ""
    pipelines: dict[Any, _Running] = field(default_factory=dict)


def _look(define: Callable[..., Any], name: str, watch: Watch) -> Walk:
    return walk_over(define, name=name, watch=watch)


def _check(nodes: Sequence[Any], inputs: Sequence[Any], name: str) -> set[int]:
    """The ids of all operators upstream of some nodes.

    Raises:
        ValueError: an operator may give different outputs for equal inputs, or runs on a GPU.
    """
    allowed = {id(operator) for operator in inputs}
    seen = set()
    for node in _upstream(nodes):
        operator = node.source
        seen.add(id(operator))
        schema = operator._op.schema
        called = f"{name} uses {operator._op._operator_name()}, which"
        if node.device != "cpu" or operator._op.device != "cpu":
            raise ValueError(f"{called} runs on a GPU; steps run on the CPU, in any number of processes")
        if id(operator) in allowed:
            continue
        if "reader" in schema.Name().lower() or (schema.IsStateful() and not schema.HasRandomSeedArg()):
            raise ValueError(f"{called} reads data by itself or keeps a state; samples come from the pipeline's source")
        if schema.HasRandomSeedArg():
            raise ValueError(
                f"{called} draws from a generator of its own, so samples would depend on earlier ones: "
                "draw with NumPy in a random step before it, and name the drawn field in fields"
            )
    return seen


def _upstream(nodes: Sequence[Any]) -> Iterator[Any]:
    """Nodes and all their inputs, direct and indirect, each once."""
    waiting, seen = list(nodes), set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, list | tuple):
            waiting += node
        elif (node.name, node.device) not in seen:
            seen.add((node.name, node.device))
            yield node
            waiting += node.source.inputs


def _to_array(value: Any) -> np.ndarray[Any, Any]:
    """The value as a C-contiguous array in native byte order. DALI misreads other types, so they are refused."""
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(value, np.uint8)
    kind = {int: np.int32, float: np.float32}.get(type(value))
    array = np.asarray(value, kind)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError(
            f"DALI takes bytes, and arrays of bool, integers and floats up to 64 bits; got {type(value).__name__} of "
            f"{array.dtype}. For a dict, name its input fields in fields"
        )
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _dali() -> Any:
    try:
        import nvidia.dali as dali
    except ImportError as error:
        raise not_installed("a DALI step (on Linux)", error, "nvidia") from None
    return dali


_steps: weakref.WeakKeyDictionary[Dali, _Defined] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def _after_fork() -> None:
    global _lock
    for defined in _steps.values():
        for running in defined.pipelines.values():  # destroying one would wait forever for threads that were not copied
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(running.pipeline))
    _steps.clear()
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
