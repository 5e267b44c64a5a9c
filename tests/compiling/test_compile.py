"""`ws.compile`: the fast start, and every case in which it must not be taken."""

import enum
import os
import textwrap
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.compiling.programs import START, Report, run, with_torch_in

import warmstore as ws
from warmstore.compiling.environment import Environment
from warmstore.compiling.keys.call_sizes import cover, generalised
from warmstore.compiling.keys.identified import Identified
from warmstore.compiling.keys.object_texts import object_text
from warmstore.compiling.misses.lookup_log import Lookup
from warmstore.compiling.packages import compiled_program
from warmstore.compiling.packages.package import PROVEN, Package
from warmstore.errors import BadArtifact, Incompatible

MODEL = """
import torch
from torch import nn


SCALE = 2


class Gained:
    GAIN = 2.0

    def gained(self, x):
        return x * self.GAIN


class Other:
    def gained(self, x):
        return x * 7


def twice(x, shift=0.0):
    found = x * SCALE
    return found + shift


class Model(Gained, Other, nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.act = torch.sin

    def forward(self, x, times=1.0):
        return twice(self.act(self.linear(self.gained(x)))) * times
"""

STARTED = START + "import builtins; builtins.ws = ws\n"

USE = """
import torch
from model import Model
torch.manual_seed(0)
model, x = Model(), torch.randn(4, 8)
compiled = ws.compile(model)
values, right = compiled(x).detach(), model(x).detach()
assert type(compiled(x).grad_fn).__name__ == "CompiledFunctionBackward"  # and not the traced program, uncompiled
compiled(x).sum().backward()
assert model.linear.weight.grad is not None
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module and a store that has its package."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "model.py").write_text(MODEL)
    assert used(folder).kept
    return folder


def used(folder: Path, code: str = USE, store: str = "store", start: str = START, **options: Any) -> Report:
    """Run a program that uses the module of a folder."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    report = run(code, folder / store, env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}, start=start, **options)
    assert report.right
    return report


def edited(folder: Path, old: str, new: str) -> Path:
    """Another checkout: the module edited."""
    assert old in MODEL
    checkout = folder / f"checkout-{abs(hash(new))}"
    checkout.mkdir()
    (checkout / "model.py").write_text(MODEL.replace(old, new))
    (checkout / "store").symlink_to(folder / "store")
    return checkout


def package_was_used(report: Report) -> bool:
    """Whether nothing was traced: then no graph was looked for."""
    return not [one for one in report.lookups if "autograd" in one["key"] or "fxgraph" in one["key"]]


@pytest.mark.slow
def test_a_fresh_process_traces_nothing(made: Path) -> None:
    report = used(made)
    assert package_was_used(report)
    assert report.misses == []


@pytest.mark.slow
def test_comments_and_another_checkout_change_nothing(made: Path) -> None:
    report = used(edited(made, "def twice(x", "# what it says\n\n\ndef twice(x"))
    assert package_was_used(report)
    assert report.misses == []


@pytest.mark.slow
def test_torch_installed_elsewhere_finds_it(made: Path, tmp_path: Path) -> None:
    report = used(made, start=with_torch_in(tmp_path / "site"), fresh=True)
    assert package_was_used(report)
    assert report.misses == []


@pytest.mark.slow
def test_a_docstring_and_a_renamed_local_change_nothing(made: Path) -> None:
    names = "    found = x * SCALE\n    return found + shift"
    assert package_was_used(used(edited(made, names, "    'Doc.'\n" + names.replace("found", "scaled"))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("x * SCALE", "SCALE * x * 1.5", "the code of `model.twice` was edited"),
        ("GAIN = 2.0", "GAIN = 3.0", "`model.Gained.GAIN` was 2.0, is 3.0"),
        ("Gained, Other,", "Other, Gained,", "model.Model"),
        ("shift=0.0", "shift=1.0", "`model.twice(shift=)` was 0.0, is 1.0"),
        ("times=1.0", "times=3.0", "times=)` was 1.0, is 3.0"),
    ],
)
def test_an_edited_function_is_traced_anew_and_the_miss_says_why(made: Path, old: str, new: str, said: str) -> None:
    """In a function that forward calls, in defaults and in classes; torch's own loading looks at none of them."""
    report = used(edited(made, old, new))
    assert not package_was_used(report)
    missed = [one for one in report.lookups if one["key"].startswith("package/")]
    assert len(missed) == 1
    assert said in "; ".join(missed[0]["changed"])


@pytest.mark.slow
def test_what_is_traced_anew_and_computes_the_same_is_not_compiled_anew(made: Path) -> None:
    twice = MODEL[MODEL.index("def twice") : MODEL.index("class Model")]
    report = used(edited(made, twice, twice.replace("shift", "offset")))
    assert not package_was_used(report)
    assert [key for key in report.hits if "aotautograd" in key]
    assert not [key for key in report.misses if not key.startswith("package/")]


@pytest.mark.slow
def test_a_third_size_finds_what_the_second_made(made: Path) -> None:
    second, third, other = (USE.replace("randn(4, 8)", f"randn({size}, 8)") for size in (6, 9, 1))
    assert not package_was_used(used(made, second))
    assert package_was_used(used(made, third))
    assert package_was_used(used(made))
    used(made, other)
    version = edited(made, "x * SCALE", "x / SCALE")
    assert not package_was_used(used(version))
    assert package_was_used(used(version, third))  # which sizes differ is known from the other versions


def test_sizes_that_differed_are_compiled_for_in_general() -> None:
    sizes = ((6, 8), (6,))
    assert generalised(sizes, []) == sizes
    assert generalised(sizes, [((4, 8), (4,))]) == ((None, 8), (None,))
    assert generalised(sizes, [((4, 8), (4,)), ((6, 7), (6,))]) == ((None, None), (None,))
    assert generalised(sizes, [((None, 8), (6,))]) == ((None, 8), (6,))
    assert generalised(sizes, [((1, 8), (0,)), ((4, 8),)]) == sizes
    assert generalised(sizes, [], dynamic=True) == ((None, None), (None,))
    assert generalised(sizes, [((4, 8), (4,))], dynamic=False) == sizes


def test_what_was_compiled_for_any_size_covers_each() -> None:
    assert cover(((None, 8),), ((4, 8),))
    assert [cover(((4, None),), sizes) for sizes in (((5, 9),), ((4,),), ())] == [False, False, False]


@pytest.mark.slow
def test_changes_while_the_program_runs_are_seen(made: Path) -> None:
    code = USE + textwrap.dedent("""
    import model as module
    def same(*args):
        assert torch.allclose(compiled(*args), model(*args), atol=1e-5)
    model.act = torch.cos
    same(x)
    model.act = torch.sin
    same(x)
    same(x[:2])
    module.SCALE = 7
    same(x)
    module.SCALE = 2
    same(x)
    module.twice = lambda x: x * 5
    same(x)
    model.register_forward_hook(lambda module, args, output: output + 1)
    same(x)
    """)
    assert used(made, code).hits


@pytest.mark.slow
def test_code_that_is_replaced_while_the_program_runs_is_seen(made: Path) -> None:
    """No guard of torch looks at methods of classes, nor at hooks of modules within."""
    code = """
    import torch
    import model as module
    torch.manual_seed(0)
    model, x = module.Model(), torch.randn(4, 8)
    compiled = ws.compile(model)
    def same():
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
    with torch.no_grad():
        same()
        gained, module.Gained.gained = module.Gained.gained, lambda self, x: x * 9
        same()
        module.Gained.gained = gained
        same()
        module.twice.__code__ = (lambda x, shift: x - 3 + shift).__code__
        same()
        module.twice.__defaults__ = (1.0,)
        same()
        hook = model.linear.register_forward_hook(lambda module, args, output: output + 1)
        same()
        hook.remove()
        same()
        values, right = compiled(x), model(x)
    """
    report = used(made, code)
    assert len([one for one in report.lookups if one["key"].startswith("package/")]) == 5  # and none for the way back


BROKEN = """
import torch
def shifted(x):
    return x + 0.5
def broken(x, y):
    x = torch.sin(x)
    torch._dynamo.graph_break()
    if x.sum() > 100:
        return x - y
    return shifted(x) * y
x, y = torch.arange(4.0), torch.full((4,), 3.0, requires_grad=True)
values, right = ws.compile(broken)(x, y), broken(x, y)
values.sum().backward()
assert torch.allclose(y.grad, torch.sin(x) + 0.5)
values, right = values.detach(), right.detach()
"""


@pytest.mark.slow
def test_a_program_of_several_graphs_is_found_whole(tmp_path: Path) -> None:
    made, found = run(BROKEN, tmp_path / "store"), run(BROKEN, tmp_path / "store")
    assert (made.right, found.right) == (True, True)
    assert len([key for key in made.misses if key.startswith("package/")]) == 3
    assert package_was_used(found)
    assert found.misses == []


LAMBDAS = """
import torch
def broken(x):
    torch._dynamo.graph_break()
    return x
F, G = (lambda x: broken(x).sin() + 1), (lambda x: broken(x).cos() * 100)
"""


@pytest.mark.slow
def test_functions_of_an_installed_package_on_one_line_have_packages_of_their_own(tmp_path: Path) -> None:
    record = {"lambdas.py": LAMBDAS, "lambdas-1.0.dist-info/METADATA": "Name: lambdas\nVersion: 1.0\n"}
    record["lambdas-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in record)
    (tmp_path / "lambdas-1.0.dist-info").mkdir()
    for name, text in record.items():
        (tmp_path / name).write_text(text)
    start = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{START}"
    code = """
    import torch
    import lambdas
    def both(x):
        return lambdas.F(x), lambdas.G(x)
    x = torch.ones(8)
    values, right = (torch.stack(f(x)) for f in (ws.compile(both), both))
    """
    made, found = run(code, tmp_path / "store", start=start), run(code, tmp_path / "store", start=start)
    assert (made.right, found.right) == (True, True)
    assert len([key for key in made.misses if ":<lambda>:" in key]) == 2
    assert found.misses == []


@pytest.mark.slow
def test_options_of_inductor_hold_where_a_package_is_used(tmp_path: Path) -> None:
    """Its source has vectors of the width that the option names, and so must the library."""
    code = """
    import torch
    x = torch.arange(2000.0)
    f = lambda x: torch.sin(x) * 2 + 1
    values, right = ws.compile(f, options={"cpp.simdlen": 256})(x), f(x)
    """
    made, found = run(code, tmp_path / "store"), run(code, tmp_path / "store")
    assert (made.right, found.right, found.misses) == (True, True, [])


@pytest.mark.slow
def test_what_surrounds_a_function_is_seen_while_it_runs(tmp_path: Path) -> None:
    code = """
    import torch
    def surrounded():
        scale = 2.0
        def f(x, y, shift=1.0):
            x.add_(shift)
            return x * scale + y
        def change(value):
            nonlocal scale
            scale = value
        return f, change
    f, change = surrounded()
    compiled = ws.compile(f)
    x, y = torch.arange(8.0), torch.ones(8)
    def same(x, y):
        assert torch.equal(compiled(x.clone(), y), f(x.clone(), y))
    try:
        compiled(x, torch.ones(3))
    except Exception as error:
        said = type(error).__name__
    same(x, y)
    assert len([one for one in ws.compile_cache.lookups() if one.key.startswith("package/") and not one.hit]) == 2, said
    change(5.0)
    same(x, y)
    f.__defaults__ = (3.0,)
    same(x, y)
    memory = [torch.arange(12.0) for _ in range(2)]
    assert torch.equal(compiled(memory[0][:8], memory[0][4:]), f(memory[1][:8], memory[1][4:]))
    values, right = compiled(x.clone(), y), f(x.clone(), y)
    """
    (tmp_path / "surrounded.py").write_text("from __future__ import annotations\n" + textwrap.dedent(code))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    report = run("from surrounded import values, right", tmp_path / "store", env={"PYTHONPATH": path}, start=STARTED)
    assert report.right


class Asked:
    """A session that knows nothing, and what was asked of it."""

    is_open = True
    environment = Environment()

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.said: list[str] = []

    def note(self, lookup: Lookup) -> None:
        self.said.append(f"{lookup.key} is left to torch.compile: {lookup.why}")

    def __getattr__(self, name: str) -> object:
        self.asked.append(name)
        raise OSError("no store")


def asked(
    function: Any,
    monkeypatch: pytest.MonkeyPatch,
    *args: Any,
    later: AbstractContextManager[object] | None = None,
    **options: Any,
) -> Asked:
    """What is looked for and kept as a function is called twice, of which Dynamo has a question each time, the second
    time in the context `later`."""
    session = Asked()
    monkeypatch.setattr(compiled_program, "_session", lambda: session)
    wrapper = ws.compile(function, **options)
    held = next(one.cell_contents for one in wrapper.__closure__ if hasattr(one.cell_contents, "_plain"))
    question: Any = SimpleNamespace(compile=lambda: "torch's own")
    held._plain = lambda *args: held._answer(question)
    assert wrapper(*args) == "torch's own"
    with later or nullcontext():
        assert wrapper(*args) == "torch's own"
    return session


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_what_cannot_be_told_is_left_to_torch_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (one for one in "ab")

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x if next(given) else -x

    first = asked(reads, monkeypatch, torch.ones(2))
    second = asked(lambda x, y: x, monkeypatch, torch.ones(2), given)
    assert first.asked == second.asked == []
    said = first.said + second.said
    assert len(said) == 2
    assert "reads is left to torch.compile: it is unknown whether this changes: " in said[0]
    assert "<given>: the items of a generator are unknown before it runs. Pass version='1'" in said[0]
    assert "arguments[1]: the items of a generator are unknown" in said[1]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_version_and_what_is_ignored_stand_for_what_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (one for one in "ab")

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x if next(given) else -x

    place = next(iter(Identified(reads, None, ()).identity.unknown))
    for vouched in ({"version": "1"}, {"ignore": (place,)}):
        assert asked(reads, monkeypatch, torch.ones(2), **vouched).asked == ["describe"] * 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(
    ("config", "setting", "named"),
    [
        ("torch._dynamo.config", "caching_precompile", "torch._dynamo.config.caching_precompile"),
        ("torch._dynamo.config", "enable_compiler_collectives", "torch._dynamo.config.enable_compiler_collectives"),
        ("torch._inductor.config", "freezing", "the option freezing"),
        ("torch._inductor.config", "triton.cudagraphs", "the option triton.cudagraphs"),
    ],
)
def test_a_setting_that_is_made_after_the_first_call_counts(
    config: str, setting: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = import_module(config).patch({setting: True})
    session = asked(lambda x: x + 1, monkeypatch, torch.ones(2), later=later)
    assert session.asked == ["describe"]
    assert len(session.said) == 2
    assert session.said[1].endswith(f"nothing is stored with {named}")


def test_without_a_model_it_is_a_decorator() -> None:
    @ws.compile(backend="eager")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert doubled(torch.ones(2)).tolist() == [2, 2]


def test_without_a_cache_it_is_torch_compile() -> None:
    model = ws.compile(torch.nn.Linear(2, 2), backend="eager")
    assert type(model).__name__ == "OptimizedModule"
    assert model(torch.ones(1, 2)).shape == (1, 2)


def test_packages_survive_bytes_and_others_are_refused() -> None:
    package = Package(
        "root",
        installed=(("m", "version 1"),),
        objects=(("L['x']", "module 1"),),
        sizes=((4, None), ()),
        mutates=True,
        vectors="avx2 256",
        data=b"data",
    )
    whole = package.to_bytes()
    assert Package.from_bytes(whole) == package
    for other in (
        b"something else",
        whole.replace(b"package ", b"package of ", 1),
        whole[:30],
        whole.replace(b"{", b"[", 1),
    ):
        with pytest.raises(BadArtifact, match="not a package"):
            Package.from_bytes(other)
    with pytest.raises(Incompatible, match="m is not loaded, and was version 1 when it was compiled"):
        package.check_installed()
    with pytest.raises(Incompatible, match="it was compiled for avx2 256, and torch now compiles for "):
        package.check_vectors()


def test_a_package_is_for_the_same_objects() -> None:
    package = Package("root", (), (("L['f']", object_text(torch.sin) or ""), ("L['x']", PROVEN)), (), False, "", b"")
    package.check_objects([torch.sin, object()])
    with pytest.raises(Incompatible, match=r"L\['f'\] is a different object here"):
        package.check_objects([torch.cos, object()])


def test_only_of_what_has_a_name_it_is_said_which_object_it_is() -> None:
    class Named(enum.Enum):
        A = 1
        B = 2

    texts = [
        object_text(one) for one in (1, 1.0, True, "1", None, Named.A, Named.B, Named, torch.sin, enum, textwrap.dedent)
    ]
    assert None not in texts
    assert len(set(texts)) == len(texts)
    assert [object_text(one) for one in (object(), [object()], torch.nn.Linear(1, 1))] == [None] * 3
    assert object_text(torch.ones(1)) == object_text(torch.zeros(1)) != object_text(torch.ones(2))
