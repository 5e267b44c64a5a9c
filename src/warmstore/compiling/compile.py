"""`compile`: `torch.compile` that starts in a fraction of a second if another process has compiled the same.

A warm cache of torch still traces the program, and reads only the results of later stages. `compile` reads the complete
result of compiling a frame, if the identity of all that tracing may look at is the same and all guards hold. Otherwise
`torch.compile` compiles, and one warning says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial, wraps
from typing import Any

from warmstore.compiling.packages.compiled_program import CompiledProgram


def compile(  # noqa: A001
    model: Callable[..., Any] | None = None,
    *,
    version: str | None = None,
    ignore: Collection[str] = (),
    **options: Any,
) -> Any:
    """`torch.compile(model, **options)`, with a first call that reads what another process has compiled.

    Needs `compile_cache.init` before the first call. Without it, this is `torch.compile`. A compiled program is kept
    for one mode (training or not, with gradients or without) and for the dtypes, devices and structure of the
    arguments. The first process compiles for the sizes of its arguments. The first process with other sizes compiles
    once more, for any size, as `torch.compile` does.

    Args:
        model: An `nn.Module` or a function. Without one, this returns a decorator.
        version: Stands for all parts of the model without an identity. Without a version, such a model is left to
            `torch.compile`.
        ignore: Places that do not count, as logs and the reasons of misses show them, such as "Model.cfg.seed".
        options: The options of `torch.compile`.

    Raises:
        Exception: Any error of `torch.compile`.
    """
    import torch

    if model is None:
        return partial(compile, version=version, ignore=ignore, **options)
    kept = {**options, "options": dict(options.get("options") or {})}  # a copy: torch empties its own dict
    plain: Any = torch.compile(model, **options)
    if plain is model or isinstance(model, type):
        return plain
    program = CompiledProgram(model, kept, version, ignore)
    if isinstance(model, torch.nn.Module):
        program.listen(plain, plain.forward, partial(_why_not, kept))
        plain.forward = program
        return plain
    program.listen(plain, plain, partial(_why_not, kept))
    return wraps(plain)(lambda *args, **kwargs: program(*args, **kwargs))


def _why_not(options: Mapping[str, Any]) -> str:
    """Why no result of `torch.compile` with these options and torch's present settings is stored; "" if results are."""
    import torch
    import torch._inductor

    from warmstore.compiling.hooks.torch_hooks import TESTED, is_tested

    if (backend := options.get("backend") or "inductor") != "inductor":
        return f"nothing is stored with backend={backend!r}, only with Inductor"
    if options.get("disable"):
        return "nothing is stored with disable=True"
    config = torch._inductor.config
    settings = {**torch._inductor.list_mode_options(options.get("mode") or "default"), **options["options"]}
    # With the last one ranks exchange data as they trace, and a rank with a package does not trace.
    for name in ("caching_precompile", "compiled_autograd", "enable_compiler_collectives"):
        if getattr(torch._dynamo.config, name):
            return f"nothing is stored with torch._dynamo.config.{name}"
    for name in ("triton.cudagraphs", "freezing", "guard_filter_fn", "use_aoti", "cpp_wrapper"):
        value = settings.get(name)
        if value is None and "_fn" not in name and "aoti" not in name:
            value = config.triton.cudagraphs if "." in name else getattr(config, name)
        if value:
            return f"nothing is stored with the option {name}"
    if not is_tested(torch.__version__):
        return f"nothing is stored with torch {torch.__version__}; tested: {', '.join(TESTED)}"
    return ""
