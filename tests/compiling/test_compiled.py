"""`ws.compile`: the fast start, and every case in which it must not be taken."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tests.compiling.programs import Report, run

import warmstore as ws
from warmstore.compiling.packages import Package, code_digest, describe, find_code
from warmstore.errors import BadArtifact, Incompatible

MODEL = """
import torch
from torch import nn


SCALE = 2


def twice(x):
    return x * SCALE


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.act = torch.sin

    def forward(self, x):
        return twice(self.act(self.linear(x)))
"""

USE = """
import torch
from model import Model
torch.manual_seed(0)
model, x = Model(), torch.randn(4, 8)
compiled = ws.compile(model)
values, right = compiled(x).detach(), model(x).detach()
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


def used(folder: Path, code: str = USE, store: str = "store") -> Report:
    """Run a program that uses the module of a folder."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    report = run(code, folder / store, env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"})
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


def test_a_fresh_process_traces_nothing(made: Path) -> None:
    report = used(made)
    assert package_was_used(report)
    assert report.misses == []


def test_comments_and_another_checkout_change_nothing(made: Path) -> None:
    assert package_was_used(used(edited(made, "def twice(x):", "# what it says\n\n\ndef twice(x):")))


def test_an_edited_function_is_traced_anew(made: Path) -> None:
    """A function that forward calls, which torch's own loading does not look at."""
    report = used(edited(made, "x * SCALE", "SCALE * x * 1.5"))
    assert not package_was_used(report)


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
def test_what_cannot_be_packaged_is_left_to_torch(tmp_path: Path) -> None:
    code = """
    import torch
    def broken(x):
        torch._dynamo.graph_break()
        return x + 1
    x = torch.arange(4.0)
    values, right = ws.compile(broken, backend="inductor")(x), x + 1
    """
    report = run(code, tmp_path / "store", env={"TORCHINDUCTOR_COMPILE_THREADS": "1"})
    assert report.right


def test_without_a_cache_it_is_torch_compile() -> None:
    compiled = ws.compile(torch.nn.Linear(2, 2), backend="eager")
    assert type(compiled).__name__ == "OptimizedModule"
    assert compiled(torch.ones(1, 2)).shape == (1, 2)


def test_packages_survive_bytes_and_others_are_refused() -> None:
    package = Package(b"saved", (("m", "f", "digest"),), (("L['x']", "module torch"),), ("name",))
    assert Package.from_bytes(package.to_bytes()) == package
    with pytest.raises(BadArtifact, match="not a package"):
        Package.from_bytes(b"something else")
    with pytest.raises(Incompatible, match=r"m\.f has changed"):
        package.check_sources()


@pytest.mark.parametrize(
    "value", [torch, torch.sin, torch.nn.functional.gelu, torch.nn.Linear, iter, Path, textwrap.dedent, None, True]
)
def test_objects_that_every_process_has_are_described(value: object) -> None:
    assert describe(value)


@pytest.mark.parametrize("value", [object(), lambda x: x, [], torch.nn.Linear(1, 1)])
def test_others_are_not(value: object) -> None:
    assert describe(value) is None


def test_code_is_found_by_name_and_digested_by_what_it_does() -> None:
    def inner(x: int) -> int:
        return x + 1

    found = find_code(__name__, inner.__code__.co_qualname)
    assert found is inner.__code__
    assert find_code(__name__, "nothing") is None
    spaces: list[dict[str, object]] = [{}, {}, {}]
    for space, source in zip(
        spaces, ["def f(x): return x + 1", "# same\n\ndef f(x):\n  return x + 1", "def f(x): return x + 2"], strict=True
    ):
        exec(source, space)
    digests = [code_digest(space["f"].__code__) for space in spaces]  # type: ignore[attr-defined]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_of_code_is_the_same_in_every_process() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\nfrom warmstore.compiling.packages import code_digest\n"
    )
    code += "def f(x):\n  return x in {'a', 'b', 'c', (1, 'd')}\nprint(code_digest(f.__code__))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
