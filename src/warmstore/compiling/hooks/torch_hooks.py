"""Hooks on the caches of torch: they report each lookup just before it happens, and each save right after.

Documented environment variables point torch at the scratch directory. With these alone, every version of torch finds
the artifacts that a job is known to use. The hooks bring other artifacts when torch looks them up. They replace private
functions of torch, each only if its signature is as expected. torch works without any of the hooks.
"""

import copy
import ctypes
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from functools import partial, wraps
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from warmstore.compiling.hooks.import_hooks import Watcher
from warmstore.compiling.hooks.listener import Listener
from warmstore.compiling.keys.operators import modules_text, operators_text, registers, why_not_known
from warmstore.compiling.keys.vector_isa import vector_isa_of
from warmstore.compiling.misses.key_descriptions import of_source, of_torch
from warmstore.compiling.scratch.scratch_dir import has_space

_log = logging.getLogger("warmstore")

TESTED = ("2.11", "2.12", "2.13")
"""Tested versions of torch, major and minor. With other versions only the environment variables are set."""

_VARIABLE = re.compile(r"L\['\w+'\]")
_OF_AUTOCAST = ("torch.amp.autocast_mode._enter_autocast", "torch.amp.autocast_mode._exit_autocast")


_EXCHANGES = {
    "torch._inductor.config": (
        "aten_distributed_optimizations.spmd_check", "aten_distributed_optimizations.enable_overlap_scheduling",
        "distributed_max_autotune_gemm",
    ),
    "torch._inductor.config_comms": ("runtime_estimations_align_across_all_distributed_ranks",),
    "torch._functorch.config": ("_sync_decision_cross_ranks",),
}  # fmt: skip
"""Options of configurations with which torch exchanges data between ranks while it compiles."""


class TorchHooks:
    """Sets the hooks when torch's modules are imported, and removes them."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._replaced: list[tuple[Any, str, Any]] = []
        self._folders: dict[Any, Callable[[str], str | None]] = {}
        self._library = threading.local()  # `path` of the library that this thread looks for

    def watch(self, watcher: Watcher) -> None:
        """Set each hook as soon as its module of torch is imported."""
        watcher.when_imported("torch._inductor.codecache", self._codecache)
        watcher.when_imported("torch._inductor.compile_fx", self._compile_fx)
        watcher.when_imported(
            "torch._inductor.cpu_vec_isa",
            lambda module: self._replace(module.VecISA, "check_build", "self code", self._check_build),
        )
        watcher.when_imported("torch._functorch._aot_autograd.autograd_cache", self._autograd_cache)
        watcher.when_imported(
            "torch.fx.experimental.symbolic_shapes",
            lambda module: self._replace(
                module.ShapeEnv, "_generate_unique_id", "self source_name", _generate_unique_id
            ),
        )
        watcher.when_imported(
            "torch.library",
            lambda module: self._replace(module.Library, "impl", "self op_name fn dispatch_key", _impl),
        )

    def remove(self) -> None:
        """Restore the functions of torch."""
        replaced, self._replaced = self._replaced, []
        with ExitStack() as stack:  # calls in reverse order, each even if another one fails
            for holder, name, original in replaced:
                if name == "_precompile_header":
                    stack.callback(original.cache_clear)  # of paths in the scratch directory
                stack.callback(setattr, holder, name, original)

    def _codecache(self, module: ModuleType) -> None:
        cache = module.FxGraphCache
        self._folder_of(cache, alone=True)
        self._replace(cache, "_save_graph", "key", partial(self._save, cache))
        self._replace(cache, "prepare_key", "gm example_inputs", self._prepare_key)
        self._replace(cache, "load_with_key", "key debug_lines", partial(self._load_with_key, cache))
        self._replace(module.FxGraphCachePickler, "__init__", "self gm", self._init_pickler)
        parameters = "content extension extra hash_type specified_dir key"
        self._replace(module, "write", parameters, partial(self._write, _folders()))
        for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
            self._replaced.append((module, name, getattr(module, name)))
        parameters = "header hashable_cmd_line"
        self._replace(module, "_precompile_header", parameters, partial(self._precompile_header, module))
        if hasattr(module.torch_key, "prefetch"):  # from torch 2.13 on
            module.torch_key.prefetch()  # starts to hash the sources of torch, which takes 0.2 s

    def _autograd_cache(self, module: ModuleType) -> None:
        cache = module.AOTAutogradCache
        self._folder_of(cache, alone=False)
        lines = "_get_debug_lines_for_cache_key"
        if hasattr(module, lines):  # from torch 2.13 on; keys of older ones come with their lines
            self._replace(module, lines, "pickler details key", partial(self._debug_lines, cache))
        self._replace(module, "autograd_cache_key", "gm/mod example_inputs", partial(self._autograd_cache_key, module))
        self._replace(module.AOTAutogradCachePickler, "_reduce_aot_config", "self aot_config", _reduce_aot_config)
        self._replace(cache, "save", "key", partial(self._save, cache))

    def _compile_fx(self, module: ModuleType) -> None:
        self._replace(module, "_compile_fx_inner", "gm example_inputs", self._compile_graph)
        self._replace(module, "fx_codegen_and_compile", "gm example_inputs", self._generate)
        self._replace(module, "compile_fx", "model_ example_inputs_", self._compile_program)

    def _replace(self, holder: Any, name: str, parameters: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Replace a function by a hook, which gets the function and its arguments. Returns the function."""
        if reason := unexpected_signature(holder, name, parameters):
            raise TypeError(reason)
        original = inspect.getattr_static(holder, name)
        function: Callable[..., Any] = getattr(original, "__func__", original)

        @wraps(function)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return hook(function, *args, **kwargs)

        self._replaced.append((holder, name, original))
        setattr(holder, name, type(original)(replacement) if function is not original else replacement)
        return function

    def _folder_of(self, cache: Any, *, alone: bool) -> None:
        """Each key has a folder for its entries. Lookups and saves both ask for this folder."""

        def folder(function: Any, cls: Any, key: str) -> str:
            if (inside := self._listener.inside(function(cls, key))) is not None:
                self._listener.wanted(inside + "/", alone=(alone or _is_bundled()) and not ranks_exchange_data())
            return str(function(cls, key))  # again: `wanted` may move the scratch directory

        function = self._replace(cache, "_get_tmp_dir_for_key", "cls", folder)
        self._folders[cache] = lambda key: self._listener.inside(function(cache, key))

    def _save(self, cache: Any, function: Any, key: str, *args: Any, **kwargs: Any) -> None:
        function(key, *args, **kwargs)
        if (inside := self._listener.inside(cache._get_tmp_dir_for_key(key))) is not None:
            self._listener.made(inside + "/")

    def _prepare_key(self, function: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the vector instructions and the switches of torch to torch's key, and the schemas and fake
        implementations of operators, which it names only."""
        key, info = function(gm, *args, **kwargs)
        if key is not None:
            try:
                text, why = operators_text(gm), "an operator of its graph has no identity"
                vectors, switches = vector_isa_of(gm), _switches()
            except Exception as error:
                text, vectors, switches, why = None, "", "", f"the calls of its graph cannot be identified: {error}"
            if text is None:
                key = None
                info = {"cache_state": "bypass", "cache_bypass_reason": why, "cache_event_time": time.time_ns()}
            else:
                parts = {"operators": text, "vector instructions": vectors, "switches of torch": switches}
                lines = [f"[{_digest(part)}] {name}: {part}" for name, part in parts.items() if part]
                combined = key[0][0] + _digest("\n".join([key[0], text, vectors, switches]))
                key = (combined, [*key[1], *lines])
        if key is None:
            self._listener.refused("inductor/fxgraph", f"Inductor does not look: {info.get('cache_bypass_reason')}")
        return key, info

    def _load_with_key(
        self, cache: Any, function: Any, key: str, debug_lines: list[str], *args: Any, **kwargs: Any
    ) -> Any:
        inside = self._folders[cache](key)
        if inside is not None:
            self._listener.describe(inside + "/", lambda: of_torch(debug_lines))
        try:
            graph, info = function(key, debug_lines, *args, **kwargs)
        except OSError as error:  # torch writes the entry as a module; the disk may be full
            if not self._listener.may_go_on(error):
                raise
            graph, info = function(key, debug_lines, *args, **kwargs)
        if graph is None and inside is not None and self._listener.found(inside + "/"):
            self._listener.refused(
                inside + "/", "it is stored, but torch rejects it, most often because of other sizes"
            )
        return graph, info

    def _debug_lines(self, cache: Any, function: Any, pickler: Any, details: Any, key: str) -> Any:
        """Describe keys by torch's debug lines. Making them is slow, so they are made only on a miss."""
        if (inside := self._folders[cache](key)) is not None:
            self._listener.describe(inside + "/", lambda: of_torch(pickler.debug_lines(details)))
        return function(pickler, details, key)

    def _autograd_cache_key(self, module: ModuleType, function: Any, mod: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the modules of called functions to torch's key, which has only their names, and the switches of
        torch. Remove the names of variables from the key: compiled code does not depend on them."""
        graph = getattr(mod, "gm", mod)
        try:
            if reasons := why_not_known(graph):
                raise module.BypassAOTAutogradCache("; ".join(reasons))
            with _with_modules(graph), _without_names(graph):
                key, lines = function(mod, *args, **kwargs)
        except Exception as error:
            self._listener.refused("inductor/aotautograd", f"AOTAutograd does not look: {error}")
            raise
        if lines and (inside := self._folders[module.AOTAutogradCache](key)) is not None:
            self._listener.describe(inside + "/", lambda: of_torch(lines))
        return key, lines

    def _init_pickler(self, function: Any, pickler: Any, *args: Any, **kwargs: Any) -> None:
        """Keys are hashes of pickles. A layout, memory format or dtype pickles as a name in the first module of
        `sys.modules` that has it, which depends on the order of imports. Pickle only the name. Variables get numbers
        for names."""
        function(pickler, *args, **kwargs)
        torch = sys.modules["torch"]
        for name in ("dtype", "layout", "memory_format", "qscheme"):
            if hasattr(torch, name):
                pickler.dispatch_table[getattr(torch, name)] = _by_name
        source = sys.modules["torch._dynamo.source"].LocalSource
        pickler.dispatch_table[source] = partial(_without_name, {})

    def _write(
        self,
        folders: list[tuple[str, str]],
        function: Any,
        content: Any,
        extension: str,
        extra: str = "",
        *args: Any,
        **kwargs: Any,
    ) -> tuple[str, str]:
        """torch writes a source before it looks for the library of the source. The name is a hash of the source and of
        the command line. Replace the folders of torch and Python in it, which differ between machines."""
        is_source = extension in ("main.cpp", "optimized.cpp", "cpp")
        for folder, mark in folders if is_source else ():
            extra = extra.replace(folder, mark)
        name: str
        path: str
        name, path = function(content, extension, extra, *args, **kwargs)
        inside = self._listener.inside(path) if extension in ("h", "main.cpp", "cpp") else None
        if inside is not None and not is_source:
            self._listener.want_header(inside + ".gch")
        elif inside is not None:
            library = inside.removesuffix("cpp") + "so"
            self._library.path = Path(path).with_suffix(".so")
            self._listener.describe(library, lambda: of_source(content, extra))
            if self._listener.wanted(library, alone=False) and extension == "main.cpp":
                self._check_loads(library, self._library.path)
        return name, path

    def _check_loads(self, library: str, path: Path) -> None:
        """Load a library that was found, as torch does next. One that this machine cannot load is removed, and torch
        compiles it: it may need another version of the C++ compiler's own libraries, or one that is not installed."""
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            path.unlink(missing_ok=True)
            self._listener.refused(library, f"it cannot be loaded here: {error}")

    def _precompile_header(self, module: ModuleType, function: Any, *args: Any, **kwargs: Any) -> str | None:
        """torch precompiles headers before it looks for the library: 0.2 s at every start, in a temporary folder that
        it never empties. Precompile them only when the library is missing, in the scratch directory."""
        library: Path | None = getattr(self._library, "path", None)
        if (library is not None and library.exists()) or not self._listener.has_room_for_headers:
            return None
        folder = Path(module.cache_dir(), "precompiled_headers")
        if has_space(folder) or has_space(tempfile.gettempdir()):
            return None
        vars(module).update(_HEADER_DIR=str(folder), _HEADER_LOCK_DIR=str(folder / "locks"))
        try:
            path = str(function(*args, **kwargs))
            if not Path(path).exists():  # in a former scratch directory
                function.cache_clear()
                path = str(function(*args, **kwargs))
        except Exception as error:
            _log.info("headers are not precompiled: %s", str(error).strip().rpartition("\n")[2])
            return None
        if (inside := self._listener.inside(path + ".gch")) is not None:
            self._listener.made_header(inside)
        return path

    def _compile_graph(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            if not _is_bundled():
                self._listener.landed()

    def _compile_program(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A bundled entry may be saved much later, when the first backward pass compiles its graph. Nobody waits for it
        while the program's own code runs."""
        try:
            return function(*args, **kwargs)
        finally:
            self._listener.landed()

    def _generate(self, function: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        """Repeat a compilation that failed on a full disk, with a copy of the graph: compiling changes the graph."""
        graph = None
        with suppress(Exception):
            graph = copy.deepcopy(gm.graph)  # copies the nodes, and not the values that they refer to
        try:
            return function(gm, *args, **kwargs)
        except Exception as error:
            if graph is None or not self._listener.may_go_on(error):
                raise
        again = sys.modules["torch"].fx.GraphModule(gm, graph)
        again.meta = gm.meta
        return function(again, *args, **kwargs)

    def _check_build(self, function: Any, isa: Any, code: str) -> bool:
        """torch tests in a subprocess at every start whether an instruction set builds and loads: up to 0.8 s. Keep the
        answer."""
        return self._listener.remember(f"{isa.build_arch_flags()}\n{code}", lambda: bool(function(isa, code)))


def unexpected_signature(holder: Any, name: str, parameters: str) -> str:
    """How the first parameters of a function differ from the expected names; "" if they are the same.

    parameters: names with spaces between them; "gm/mod" is either of two, of different versions.
    """
    function = inspect.getattr_static(holder, name)
    found, expected = list(inspect.signature(getattr(function, "__func__", function)).parameters), parameters.split()
    if len(found) >= len(expected) and all(
        name in known.split("/") for name, known in zip(found, expected, strict=False)
    ):
        return ""
    return f"{name} of {holder.__name__} takes {', '.join(found)}; expected {parameters}"


def _generate_unique_id(function: Any, shapes: Any, source_name: str) -> Any:
    """The number of a dynamic size is a hash of its source. Hash the source without the variable's name."""
    return function(shapes, _VARIABLE.sub("L", source_name))


def _impl(function: Any, library: Any, *args: Any, **kwargs: Any) -> None:
    function(library, *args, **kwargs)
    registers(library)


def _reduce_aot_config(function: Any, pickler: Any, aot_config: Any) -> Any:
    """Remove the random id of a compilation for a package from the key. The saved entry does not have the id, so any
    compilation can use it."""
    return function(pickler, replace(aot_config, precompile_backend_id=None))


@contextmanager
def _with_modules(graph: Any) -> Iterator[None]:
    """Within this context torch's key has the installed modules that a graph calls, the switches of torch, and the
    vector instructions.
    torch also makes keys of graphs that enter and leave autocast, and of graphs with `autograd.Function`s of the
    program. The graph says what these do, except for the dtypes of autocast, which are added."""
    torch = sys.modules["torch"]
    devices = torch._C._autocast_supported_devices()
    dtypes = repr({device: torch.get_autocast_dtype(device) for device in devices})
    config = torch._inductor.config
    cacheable = {**config.unsafe_marked_cacheable_functions, **dict.fromkeys(_OF_AUTOCAST, dtypes)}
    cacheable["warmstore: called modules"] = modules_text(graph)
    cacheable["warmstore: vector instructions"] = vector_isa_of(graph)
    cacheable["warmstore: switches of torch"] = _switches()
    functorch = sys.modules["torch._functorch.config"]
    with (
        config.patch(unsafe_marked_cacheable_functions=cacheable),
        functorch.patch(autograd_cache_allow_custom_autograd_functions=True),
    ):
        yield


@contextmanager
def _without_names(graph: Any) -> Iterator[None]:
    """Within this context the computed nodes of a graph have numbered names, as torch names the inputs."""
    named = [(node, node.name) for node in graph.graph.nodes if node.op not in ("placeholder", "output")]
    for number, (node, _) in enumerate(named):
        node.name = f"n_{number}"
    try:
        yield
    finally:
        for node, name in named:
            node.name = name


def _switches() -> str:
    """The settings of the process that decide which kernels a graph gets, and with which precision. torch has only some
    of them in its keys, and no guard on them."""
    from warmstore.identity.kinds.torch_settings import OF_OPERATORS, settings_text  # imports torch

    return settings_text(OF_OPERATORS)


def _is_bundled() -> bool:
    """Whether entries of AOTAutograd contain the compiled graphs. Then Inductor has no entries of its own."""
    return bool(sys.modules["torch._functorch.config"].bundled_autograd_cache)


def ranks_exchange_data() -> bool:
    """Whether torch may exchange data between ranks while it compiles. Then all ranks must compile at the same time."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    if distributed.get_world_size() < 2:
        return False
    for name, options in _EXCHANGES.items():
        known = getattr(sys.modules.get(name), "_config", {})
        if any(option in known and attrgetter(option)(sys.modules[name]) for option in options):
            return True
    return False


def is_tested(version: str | None) -> bool:
    """Whether the hooks were tested with a version of torch. With others only a job's artifacts are used."""
    return version is not None and version.startswith(tuple(f"{tested}." for tested in TESTED))


def _by_name(value: object) -> tuple[type[str], tuple[str]]:
    return str, (str(value),)


def _without_name(numbers: dict[str, int], source: Any) -> tuple[type[tuple[Any, ...]], tuple[list[Any]]]:
    """The pickle of a source: its variable has a number for its name."""
    _, *others = fields(source)
    number = numbers.setdefault(source.local_name, len(numbers))
    return tuple, ([number, *(getattr(source, other.name) for other in others)],)


def _folders() -> list[tuple[str, str]]:
    """The folders of torch and Python, longest first, and the marks that stand for them in hashed command lines."""
    torch = str(Path(str(sys.modules["torch"].__file__)).parent)
    found = {
        torch: "<torch>",
        str(Path(torch).resolve()): "<torch>",
        sysconfig.get_path("include"): "<include>",
        str(sysconfig.get_config_var("LIBDIR") or ""): "<lib>",
    }
    return sorted(((path, mark) for path, mark in found.items() if len(path) > 1), key=lambda pair: -len(pair[0]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
