"""Where torch looks up and saves what it compiled, so that the session hears of it just before and right after.

Documented variables point torch at the live folder; that alone works with every version, for what a job is known to
use. These hooks bring the rest at the moment it is looked up. They are set on functions of torch that are no public
API, so each is set only where the function is as expected, and torch works without any of them.
"""

import copy
import functools
import hashlib
import inspect
import logging
import re
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from warmstore.compiling.hooks.import_hooks import Watcher
from warmstore.compiling.keys.operators import modules_text, operators_text, registers, why_not_known
from warmstore.compiling.misses.key_components import KeyComponents, of_source, of_torch
from warmstore.compiling.scratch.scratch_dir import has_space

_log = logging.getLogger("warmstore")

TESTED = ("2.13",)
"""Versions of torch, major and minor, that the tests ran with. Others get what documented variables can do."""


_VARIABLE = re.compile(r"L\['\w+'\]")
_OF_AUTOCAST = ("torch.amp.autocast_mode._enter_autocast", "torch.amp.autocast_mode._exit_autocast")


class Listener(Protocol):
    """Who is told; a `Session`."""

    def inside(self, path: str) -> str | None:
        """The path relative to the live folder; None when it is elsewhere."""

    def wanted(self, path: str, *, alone: bool) -> bool:
        """Compilers are about to look for files below a relative path. `alone`: what is missing is compiled next, so
        one process should do that. Returns whether there was anything."""

    def made(self, path: str) -> None:
        """What was wanted `alone` is now there, as far as the compiler keeps it."""

    def landed(self) -> None:
        """This thread is through with compiling, with or without success."""

    def describe(self, path: str, make: Callable[[], KeyComponents | None]) -> None:
        """What the key of a path is made of, said before it is `wanted`; made only if it is missing."""

    def found(self, path: str) -> bool:
        """Whether something was there when a path was `wanted`."""

    def refused(self, path: str, reason: str) -> None:
        """The compiler does not use what was found below a path, or does not look."""

    @property
    def has_room_for_headers(self) -> bool:
        """Whether headers may be precompiled for what is missing."""

    def want_header(self, path: str) -> None:
        """A compiler is about to look for a precompiled header."""

    def made_header(self, path: str) -> None:
        """A precompiled header is there and whole."""

    def may_go_on(self, error: Exception) -> bool:
        """Whether a compilation that failed should be tried again, because files can be written elsewhere now."""

    def remember(self, question: str, ask: Callable[[], bool]) -> bool:
        """The answer to a question on this machine and its compiler; `ask` finds it out the first time."""


class TorchHooks:
    """Sets the hooks when torch's modules are imported, and takes them away again."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._replaced: list[tuple[Any, str, Any]] = []
        self._folders: dict[Any, Callable[[str], str | None]] = {}
        self._library = threading.local()  # `path`: the one that this thread looks for

    def watch(self, watcher: Watcher) -> None:
        """Have the hooks set as soon as torch's modules are there."""
        watcher.when_imported("torch._inductor.codecache", self._codecache)
        watcher.when_imported("torch._inductor.compile_fx", self._compile_fx)
        watcher.when_imported("torch._inductor.cpu_vec_isa", self._cpu_vec_isa)
        watcher.when_imported("torch._functorch._aot_autograd.autograd_cache", self._autograd_cache)
        watcher.when_imported("torch.fx.experimental.symbolic_shapes", self._symbolic_shapes)
        watcher.when_imported("torch.library", self._operators)

    def remove(self) -> None:
        """Take the hooks away."""
        for holder, name, original in reversed(self._replaced):
            setattr(holder, name, original)
            if name == "_precompile_header":
                original.cache_clear()  # it remembers paths in the live folder
        self._replaced.clear()

    def _codecache(self, module: ModuleType) -> None:
        self._folder_of(module.FxGraphCache, alone=True)
        self._replace(module.FxGraphCache, "_save_graph", "key", self._saving(module.FxGraphCache))
        self._replace(module.FxGraphCache, "prepare_key", "gm example_inputs", self._preparing)
        self._replace(module.FxGraphCache, "load_with_key", "key debug_lines", self._loading(module.FxGraphCache))
        self._replace(module.FxGraphCachePickler, "__init__", "self gm", self._pickling)
        self._replace(module, "write", "content extension extra hash_type specified_dir key", self._writing)
        for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
            self._replaced.append((module, name, getattr(module, name)))
        self._replace(module, "_precompile_header", "header hashable_cmd_line", self._precompiling(module))
        module.torch_key.prefetch()  # hashes the sources of torch, 0.2 s that the first lookup would wait for

    def _autograd_cache(self, module: ModuleType) -> None:
        self._folder_of(module.AOTAutogradCache, alone=False)
        lines = "_get_debug_lines_for_cache_key"
        self._replace(module, lines, "pickler details key", self._describing(module.AOTAutogradCache))
        self._replace(module, "autograd_cache_key", "mod example_inputs", self._keying(module))
        self._replace(module.AOTAutogradCachePickler, "_reduce_aot_config", "self aot_config", self._reducing)
        self._replace(module.AOTAutogradCache, "save", "key", self._saving(module.AOTAutogradCache))

    def _compile_fx(self, module: ModuleType) -> None:
        self._replace(module, "_compile_fx_inner", "gm example_inputs", self._compiling)
        self._replace(module, "fx_codegen_and_compile", "gm example_inputs", self._generating)

    def _cpu_vec_isa(self, module: ModuleType) -> None:
        self._replace(module.VecISA, "check_build", "self code", self._probing)

    def _symbolic_shapes(self, module: ModuleType) -> None:
        self._replace(module.ShapeEnv, "_generate_unique_id", "self source_name", self._numbering)

    def _operators(self, module: ModuleType) -> None:
        self._replace(module.Library, "impl", "self op_name fn dispatch_key", self._registering)

    def _replace(self, holder: Any, name: str, parameters: str, make: Callable[[Any], Any]) -> None:
        original = inspect.getattr_static(holder, name)
        function = getattr(original, "__func__", original)
        found = list(inspect.signature(function).parameters)
        if found[: len(parameters.split())] != parameters.split():
            raise TypeError(f"{name} of {holder.__name__} takes {', '.join(found)}; expected {parameters}")
        replacement = functools.wraps(function)(make(function))
        self._replaced.append((holder, name, original))
        setattr(holder, name, type(original)(replacement) if function is not original else replacement)

    def _folder_of(self, cache: Any, *, alone: bool) -> None:
        """Entries of a key lie in a folder of their own, and both lookups and saves ask for it."""

        def make(function: Any) -> Any:
            self._folders[cache] = lambda key: self._listener.inside(function(cache, key))

            def folder(cls: Any, key: str) -> str:
                if (inside := self._listener.inside(function(cls, key))) is not None:
                    self._listener.wanted(inside + "/", alone=alone or _is_bundled())
                return str(function(cls, key))  # again, for compilers may have been sent elsewhere

            return folder

        self._replace(cache, "_get_tmp_dir_for_key", "cls", make)

    def _saving(self, cache: Any) -> Callable[[Any], Any]:
        def make(function: Any) -> Any:
            def save(key: str, *args: Any, **kwargs: Any) -> None:
                function(key, *args, **kwargs)
                if (inside := self._listener.inside(cache._get_tmp_dir_for_key(key))) is not None:
                    self._listener.made(inside + "/")

            return save

        return make

    def _preparing(self, function: Any) -> Any:
        """torch's key has the names of operators alone; what they say of their results is added to it."""

        def prepare_key(gm: Any, *args: Any, **kwargs: Any) -> Any:
            key, info = function(gm, *args, **kwargs)
            if key is not None:
                try:
                    text, why = operators_text(gm), "what an operator of its graph does may be edited unseen"
                except Exception as error:
                    text, why = None, f"what its graph calls cannot be told: {error}"
                if text is None:
                    key, info = None, {
                        "cache_state": "bypass", "cache_bypass_reason": why, "cache_event_time": time.time_ns()
                    }  # fmt: skip
                elif text:
                    key = (_with_text(key[0], text), [*key[1], f"[{key[0]}] operators: {text}"])
            if key is None:
                self._listener.refused("inductor/fxgraph", f"Inductor does not look: {info.get('cache_bypass_reason')}")
            return key, info

        return prepare_key

    def _loading(self, cache: Any) -> Callable[[Any], Any]:
        def make(function: Any) -> Any:
            def load_with_key(key: str, debug_lines: list[str], *args: Any, **kwargs: Any) -> Any:
                inside = self._folders[cache](key)
                if inside is not None:
                    self._listener.describe(inside + "/", lambda: of_torch(debug_lines))
                try:
                    graph, info = function(key, debug_lines, *args, **kwargs)
                except OSError as error:  # what was found is written as a module, and a disk may be full
                    if not self._listener.may_go_on(error):
                        raise
                    graph, info = function(key, debug_lines, *args, **kwargs)
                if graph is None and inside is not None and self._listener.found(inside + "/"):
                    self._listener.refused(
                        inside + "/", "it is there, but torch does not take it: most often it is for other sizes"
                    )
                return graph, info

            return load_with_key

        return make

    def _describing(self, cache: Any) -> Callable[[Any], Any]:
        """Torch makes these lines only to debug, because they take time; so here only where something is missing."""

        def make(function: Any) -> Any:
            def lines(pickler: Any, details: Any, key: str) -> list[str]:
                if (inside := self._folders[cache](key)) is not None:
                    self._listener.describe(inside + "/", lambda: of_torch(pickler.debug_lines(details)))
                said: list[str] = function(pickler, details, key)
                return said

            return lines

        return make

    def _keying(self, module: ModuleType) -> Callable[[Any], Any]:
        """torch's key has the names of functions and operators alone; the modules that they come from are added. It
        has the names of variables, which nothing that is compiled depends on; they are left out."""

        def make(function: Any) -> Any:
            def autograd_cache_key(mod: Any, *args: Any, **kwargs: Any) -> Any:
                graph = getattr(mod, "gm", mod)
                try:
                    if reasons := why_not_known(graph):
                        raise module.BypassAOTAutogradCache("; ".join(reasons))
                    with _told_of(graph), _without_names(graph):
                        return function(mod, *args, **kwargs)
                except Exception as error:
                    self._listener.refused("inductor/aotautograd", f"AOTAutograd does not look: {error}")
                    raise

            return autograd_cache_key

        return make

    def _numbering(self, function: Any) -> Any:
        """A dynamic size's number is a hash of where it comes from; here of that without the variable's name."""

        def number(shapes: Any, source_name: str) -> int:
            found: int = function(shapes, _VARIABLE.sub("L", source_name))
            return found

        return number

    def _registering(self, function: Any) -> Any:
        def impl(library: Any, *args: Any, **kwargs: Any) -> None:
            function(library, *args, **kwargs)
            registers(library)

        return impl

    def _pickling(self, function: Any) -> Any:
        """Keys are hashes of pickles. Layouts, memory formats and dtypes pickle as a name in the first module of
        `sys.modules` that has it, which depends on who imported torch first; their names alone do not. Variables have
        numbers for names."""
        torch = sys.modules["torch"]
        named = {
            getattr(torch, name) for name in ("dtype", "layout", "memory_format", "qscheme") if hasattr(torch, name)
        }

        def init(pickler: Any, *args: Any, **kwargs: Any) -> None:
            function(pickler, *args, **kwargs)
            pickler.dispatch_table.update(dict.fromkeys(named, _by_name))
            source = sys.modules["torch._dynamo.source"].LocalSource
            pickler.dispatch_table[source] = functools.partial(_without_name, {})

        return init

    def _reducing(self, function: Any) -> Any:
        """A compilation for a package has a random id, which torch leaves in the key, though what it saves under it has
        none and any other compilation may use that."""

        def reduce_aot_config(pickler: Any, aot_config: Any) -> Any:
            return function(pickler, replace(aot_config, precompile_backend_id=None))

        return reduce_aot_config

    def _writing(self, function: Any) -> Any:
        """A source is written before its library is looked for. Its name is the hash of it and the command line, where
        the folders of torch and Python stand as they are on this machine; marks stand for them here."""
        folders = _folders()

        def write(content: Any, extension: str, extra: str = "", *args: Any, **kwargs: Any) -> tuple[str, str]:
            if extension not in ("main.cpp", "optimized.cpp", "cpp"):
                answer: tuple[str, str] = function(content, extension, extra, *args, **kwargs)
                if extension == "h" and (inside := self._listener.inside(answer[1])) is not None:
                    self._listener.want_header(inside + ".gch")
                return answer
            for folder, mark in folders:
                extra = extra.replace(folder, mark)
            basename, path = function(content, extension, extra, *args, **kwargs)
            if extension != "optimized.cpp" and (inside := self._listener.inside(path)) is not None:
                library = inside.removesuffix("cpp") + "so"
                self._library.path = Path(path).with_suffix(".so")
                self._listener.describe(library, lambda: of_source(content, extra))
                self._listener.wanted(library, alone=False)
            return basename, path

        return write

    def _precompiling(self, module: ModuleType) -> Callable[[Any], Any]:
        """Torch precompiles headers before it looks for the library, 0.2 s at every start, and leaves them under the
        temporary folder for ever. Here that is done for what must be compiled, where they count and are kept."""

        def make(function: Any) -> Any:
            def precompile_header(*args: Any, **kwargs: Any) -> str | None:
                library: Path | None = getattr(self._library, "path", None)
                if (library is not None and library.exists()) or not self._listener.has_room_for_headers:
                    return None
                folder = Path(module.cache_dir(), "precompiled_headers")
                if has_space(folder) or has_space(tempfile.gettempdir()):
                    return None
                vars(module).update(_HEADER_DIR=str(folder), _HEADER_LOCK_DIR=str(folder / "locks"))
                try:
                    path = str(function(*args, **kwargs))
                    if not Path(path).exists():  # of a live folder that compilers have left
                        function.cache_clear()
                        path = str(function(*args, **kwargs))
                except Exception as error:
                    _log.info("headers are not precompiled: %s", str(error).strip().rpartition("\n")[2])
                    return None
                if (inside := self._listener.inside(path + ".gch")) is not None:
                    self._listener.made_header(inside)
                return path

            return precompile_header

        return make

    def _compiling(self, function: Any) -> Any:
        def compile_graph(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                if not _is_bundled():
                    self._listener.landed()

        return compile_graph

    def _generating(self, function: Any) -> Any:
        """Compiling writes files, and a disk may be full. What changes the graph before it fails changes a copy."""

        def generate(gm: Any, *args: Any, **kwargs: Any) -> Any:
            graph = None
            with suppress(Exception):
                graph = copy.deepcopy(gm.graph)  # its nodes; what they refer to is shared
            try:
                return function(gm, *args, **kwargs)
            except Exception as error:
                if graph is None or not self._listener.may_go_on(error):
                    raise
            again = sys.modules["torch"].fx.GraphModule(gm, graph)
            again.meta = gm.meta
            return function(again, *args, **kwargs)

        return generate

    def _probing(self, function: Any) -> Any:
        """Whether an instruction set can be built and loaded is tried out in a process at every start: up to 0.8 s."""

        def check_build(isa: Any, code: str) -> bool:
            return self._listener.remember(f"{isa.build_arch_flags()}\n{code}", lambda: bool(function(isa, code)))

        return check_build


@contextmanager
def _told_of(graph: Any) -> Iterator[None]:
    """While this lasts, torch's key has the installed modules that a graph calls. It is made of graphs that enter and
    leave autocast, too, and of those with the program's own `autograd.Function`s: what both do is in the graph, but for
    the dtypes that autocast takes."""
    torch = sys.modules["torch"]
    devices = torch._C._autocast_supported_devices()
    dtypes = repr({device: torch.get_autocast_dtype(device) for device in devices})
    config = torch._inductor.config
    told = {**config.unsafe_marked_cacheable_functions, **dict.fromkeys(_OF_AUTOCAST, dtypes)}
    told["warmstore: called modules"] = modules_text(graph)
    functorch = sys.modules["torch._functorch.config"]
    with (
        config.patch(unsafe_marked_cacheable_functions=told),
        functorch.patch(autograd_cache_allow_custom_autograd_functions=True),
    ):
        yield


@contextmanager
def _without_names(graph: Any) -> Iterator[None]:
    """While this lasts, what a graph computes has numbers for names, as torch gives them to what it is passed."""
    named = [(node, node.name) for node in graph.graph.nodes if node.op not in ("placeholder", "output")]
    for number, (node, _) in enumerate(named):
        node.name = f"n_{number}"
    try:
        yield
    finally:
        for node, name in named:
            node.name = name


def _with_text(key: str, text: str) -> str:
    """A key of torch's, its first letter kept, for what is known beside."""
    return key[0] + hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()


def _is_bundled() -> bool:
    """Whether AOTAutograd keeps compiled graphs with its own entries: then Inductor keeps and looks up none."""
    return bool(sys.modules["torch._functorch.config"].bundled_autograd_cache)


def is_tested(version: str | None) -> bool:
    """Whether the hooks were tested with that version of torch. Of others only a job's artifacts are brought."""
    return version is not None and version.startswith(tuple(f"{tested}." for tested in TESTED))


def _by_name(value: object) -> tuple[type[str], tuple[str]]:
    return str, (str(value),)


def _without_name(numbers: dict[str, int], source: Any) -> tuple[type[tuple[Any, ...]], tuple[list[Any]]]:
    """A variable that something comes from, as a pickle has it."""
    _, *others = fields(source)
    number = numbers.setdefault(source.local_name, len(numbers))
    return tuple, ([number, *(getattr(source, one.name) for one in others)],)


def _folders() -> list[tuple[str, str]]:
    torch = str(Path(str(sys.modules["torch"].__file__)).parent)
    found = {
        torch: "<torch>",
        str(Path(torch).resolve()): "<torch>",
        sysconfig.get_path("include"): "<include>",
        str(sysconfig.get_config_var("LIBDIR") or ""): "<lib>",
    }
    return sorted(((path, mark) for path, mark in found.items() if len(path) > 1), key=lambda pair: -len(pair[0]))
