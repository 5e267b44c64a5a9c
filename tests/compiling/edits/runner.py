"""Runs programs one after another in a process of its own, and says of each what came out and what was found.

`python runner.py TASK` with a JSON file. Each line of the output is the JSON of one case.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import re
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import warmstore as ws

TASK = json.loads(Path(sys.argv[1]).read_text())
cache = ws.compile_cache.init(local_dir=TASK["store"], job="edits")

import torch  # noqa: E402
import torch._inductor.config  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

torch.overrides.get_overridable_functions()  # kept for good; torch fails to make it where a function has no name
torch._inductor.config.fallback_by_default = not TASK["kernels"]
SAID: list[str] = []


class _Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        SAID.append(record.getMessage())


def imported(name: str) -> types.ModuleType:
    """A module of the program, anew."""
    for one in (name, f"{name}_other"):
        sys.modules.pop(one, None)
    torch.manual_seed(0)
    return importlib.import_module(name)


def edited(name: str, folder: str) -> types.ModuleType:
    """The edited module, beside the one that runs."""
    here = {one: sys.modules.pop(one, None) for one in (name, f"{name}_other")}
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
        sys.modules.update({key: one for key, one in here.items() if one is not None})


def made(module: types.ModuleType) -> Any:
    """What is compiled of a program."""
    torch.manual_seed(0)
    for name in ("make", "Model"):
        if hasattr(module, name):
            return getattr(module, name)()
    return module.root


def undone(module: types.ModuleType) -> None:
    """Take back what a program has done to torch."""
    if hasattr(module, "undo"):
        module.undo()


def arguments(module: types.ModuleType) -> list[tuple[Any, ...]]:
    """Of each call."""
    torch.manual_seed(1)
    return module.calls() if hasattr(module, "calls") else [(torch.randn(4, 8, requires_grad=True),)]


def fresh(value: Any) -> Any:
    """An argument without the gradients of earlier calls."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def outcome(call: Callable[..., Any], root: Any, module: types.ModuleType) -> list[Any]:
    """What each call gives, and its gradients."""
    seen = getattr(module, "seen", lambda result: result)
    parameters = list(root.parameters()) if isinstance(root, torch.nn.Module) else []
    parameters += getattr(module, "PARAMETERS", [])
    found: list[Any] = []
    for args in arguments(module):
        args = tree_map(fresh, args)
        torch.manual_seed(2)
        try:
            with contextlib.nullcontext() if getattr(module, "GRAD", True) else torch.no_grad():
                results = tree_leaves(call(*args))
                tensors = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
            for one in [*parameters, *tree_leaves(args)]:
                if isinstance(one, torch.Tensor) and one.is_leaf:
                    one.grad = None
            if tensors:
                sum(
                    (one * torch.linspace(1, 2, one.numel()).view(one.shape).to(one)).sum() for one in tensors
                ).backward()
            leaves = [one for one in [*parameters, *tree_leaves(args)] if isinstance(one, torch.Tensor) and one.is_leaf]
            found.append(
                [
                    [plain(seen(one)) for one in results],
                    [plain(one.grad if one.grad is None else seen(one.grad)) for one in leaves],
                ]
            )
        except Exception as error:
            found.append([f"raised {type(error).__name__}", "".join(traceback.format_exception(error))[-3000:]])
    return found


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, torch.Tensor):
        return [f"{value.dtype} {list(value.shape)}", value.requires_grad, value.detach().double().reshape(-1).tolist()]
    return value if isinstance(value, int | float | str | None) else repr(value)


def compiled(root: Any, module: types.ModuleType, compiler: Callable[..., Any]) -> Callable[..., Any]:
    """What is called instead."""
    torch._dynamo.reset()
    counters.clear()
    SAID.clear()
    return compiler(root, **getattr(module, "OPTIONS", {}))


def report(begun: int) -> dict[str, Any]:
    """What was found and traced since."""
    lookups = [one for one in cache.session.lookups[begun:] if one.key.startswith("package/")]
    return {
        "hits": sum(one.hit for one in lookups),
        "misses": [f"{one.key.rpartition('/')[2]}: {one.why} {one.changed}" for one in lookups if not one.hit],
        "traced": counters["frames"]["total"],
        "said": list(SAID),
    }


def in_turn(name: str, compiler: Callable[..., Any]) -> dict[str, Any]:
    """A program in eager mode, then compiled."""
    module = imported(name)
    try:
        root = made(module)
        eager = outcome(root, root, module)
        if hasattr(module, "undo"):  # made again, since calls may change the program itself
            undone(module)
        module = imported(name)
        root = made(module)
        begun = len(cache.session.lookups)
        got = outcome(compiled(root, module, compiler), root, module)
        return {"eager": eager, "got": got, **report(begun)}
    finally:
        undone(module)


def changed_live(name: str, compiler: Callable[..., Any], folder: str, change: str) -> dict[str, Any]:
    """A program compiled, changed, and called again."""
    module = imported(name)
    try:
        root = made(module)
        call = compiled(root, module, compiler)
        begun = len(cache.session.lookups)
        before = outcome(call, root, module)
        first = report(begun)
        new = edited(name, folder) if re.search(r"\bn\.", change) else None
        begun = len(cache.session.lookups)
        SAID.clear()
        counters.clear()
        exec(change, {"m": module, "n": new, "root": root, "torch": torch, "nn": torch.nn})
        got = outcome(call, root, module)
        said = report(begun)
        return {
            "before": before,
            "eager": outcome(root, root, module),
            "got": got,
            "hits_before": first["hits"],
            **said,
        }
    finally:
        undone(module)


def blinded() -> None:
    """Make keys that say nothing of what is called."""
    from warmstore.compiling.keys import call_keys

    key_of_call = call_keys.key_of_call
    call_keys.key_of_call = lambda identities, *rest: key_of_call((), *rest)


def main() -> None:
    if TASK.get("blind"):
        blinded()
    logging.getLogger("warmstore").addHandler(_Listener())
    logging.getLogger("warmstore").setLevel(logging.INFO)
    logging.getLogger("warmstore").propagate = False
    sys.path.insert(0, TASK["folder"])
    sys.dont_write_bytecode = True
    compilers = {"ws": ws.compile, "plain": torch.compile}
    with open(TASK["out"], "w") as out:
        for name, live in TASK["cases"]:
            said: dict[str, Any] = {"name": name}
            try:
                if TASK["live"]:
                    said |= changed_live(name, ws.compile, TASK["edited"], live)
                    wrong = said["got"] != said["eager"]
                    if wrong:
                        said["plain"] = changed_live(name, torch.compile, TASK["edited"], live)
                else:
                    said |= in_turn(name, compilers[TASK["compiler"]])
                    if said["got"] != said["eager"]:
                        said["plain"] = in_turn(name, torch.compile)
            except Exception:
                said["error"] = traceback.format_exc()[-4000:]
            out.write(json.dumps(said) + "\n")
            out.flush()
    cache.close()


if __name__ == "__main__":
    main()
