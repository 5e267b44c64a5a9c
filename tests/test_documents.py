"""The code in the README, the docs and the examples runs as it stands: nothing is given to it."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.pages import ROOT, Block, PageError, blocks_of, pages, run_page

import warmstore as ws
from warmstore.cli import app

CODE = ("python", "sh")
MANY = {
    "docs/callbacks.md",
    "docs/cli.md",
    "docs/compile.md",
    "docs/features.md",
    "docs/index.md",
    "docs/operate.md",
    "docs/pipeline.md",
    "docs/remote.md",
}
"""Pages of so many commands, trainers and profiles that they take up to half a minute; one has the README's program."""
RUN = [page for page in pages() if any(block.language in CODE for block in blocks_of(page))]
WITH_LIBRARIES = [page for page in RUN if any(" " not in name for block in blocks_of(page) for name in block.needs)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {"numpy", "pyarrow", "torch", "warmstore"}
"""Packages that a block may use without a word: of an installation with `warmstore[torch]`."""
LANGUAGES = {*CODE, "json", "text", "toml", "yaml"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page in MANY else page for page in RUN if page != "README.md"],
)
def test_a_page_runs_as_it_is_pasted(page: str, tmp_path: Path) -> None:
    said = run_page(page, _empty(tmp_path))
    for block in blocks_of(page):
        for promised in re.findall(r"# .*?`(.*?)` was", block.code):  # a message that a comment shows
            assert "..." in promised or promised in said, (block.place, promised)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a page may train with ten libraries
@pytest.mark.parametrize("page", WITH_LIBRARIES)
def test_a_page_runs_with_the_libraries_that_it_names(page: str, tmp_path: Path) -> None:
    run_page(page, _empty(tmp_path), libraries=True, strict=False)


def _empty(tmp_path: Path) -> Path:
    folder = tmp_path / "page"
    folder.mkdir()
    return folder


class TestRunner:
    """The runner finds what fails."""

    def run(self, tmp_path: Path, *blocks: str) -> str:
        (tmp_path / "page.md").write_text("A page.\n\n" + "\n".join(f"```{block}\n```\n" for block in blocks))
        return run_page("page.md", _empty(tmp_path), root=tmp_path)

    def test_blocks_share_names_and_the_folder(self, tmp_path: Path) -> None:
        assert "shared\n" in self.run(
            tmp_path,
            "python\nword = 'shared'",
            "python\n# other.py\nprint('a program of its own')",
            "sh\ntest -e other.py  # the page's folder\nexport WORD=exported",
            "python\nimport os\n\nassert os.environ['WORD'] == 'exported'\nprint(word)",
        )

    @pytest.mark.parametrize(
        ("block", "said"),
        [
            ("python\nprint(backbone)", "name 'backbone' is not defined"),
            ("python\nassert images is not None", "name 'images' is not defined"),
            ("python\n# train.py\nprint(loader)", "name 'loader' is not defined"),
            ("python\nimport warnings\n\nwarnings.warn('soon gone')", "UserWarning: soon gone"),
            ("sh\nwarmstore no-such-command", "No such command"),
            ("sh\ntest -e missing", "status 1"),
            ("python\nimport atexit, os\n\natexit.register(lambda: os._exit(3))", "status 3"),
        ],
    )
    def test_a_block_that_fails_is_named(self, tmp_path: Path, block: str, said: str) -> None:
        with pytest.raises(PageError, match=re.escape(said)) as caught:
            self.run(tmp_path, "python\nfirst = 1", block)
        assert re.match(r"page\.md:\d+: status", str(caught.value))

    def test_a_block_whose_needs_are_missing_does_not_run(self, tmp_path: Path) -> None:
        self.run(tmp_path, "python\n# needs: a bucket\nprint(bucket)", "sh\n# needs: nowhere\nno-such-command")


def test_every_block_says_what_it_is() -> None:
    for page in pages():
        for block in blocks_of(page):
            assert block.language in LANGUAGES, (block.place, block.language)
        text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.findall(r"^    (?:warmstore|python|pip|make|>>>|import|from) .*", text, re.MULTILINE), page


def test_every_block_says_what_it_needs() -> None:
    known = OWN | set(sys.stdlib_module_names)
    for page in RUN:
        blocks = [block for block in blocks_of(page) if block.language == "python"]
        files = {block.file[0].removesuffix(".py") for block in blocks if block.file}
        for block in blocks:
            needed = {name.partition(".")[0] for name in block.needs if " " not in name}
            assert _imported(block.code) - known - files <= needed, block.place
            assert needed <= _imported("\n".join(block.code for block in blocks)), block.place


def _imported(code: str) -> set[str]:
    return set(re.findall(r"^ *(?:import|from) (\w+)", code, re.MULTILINE))


def test_commands_that_do_not_run_exist() -> None:
    """Blocks that need a bucket or a cluster, and those of slow pages, name commands and options that there are."""
    lines = [
        line
        for block, line in _lines("warmstore ")
        if (block.page in MANY or any(" " in name for name in block.needs)) and " -- " not in line
    ]
    assert len(lines) > 40
    root: Any = typer.main.get_command(app)
    for line in lines:
        command = root
        words = shlex.split(line.replace(" || true", ""), comments=True)[1:]
        while words and hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= known, line


def test_the_list_of_blocks_that_need_more_is_complete() -> None:
    table = (ROOT / "docs/develop/documents.md").read_text()
    rows = re.findall(r"^\| \[[^]]*\]\(([^)]*)\) \| ([^|]*) \| (\d+) \|$", table, re.MULTILINE)
    listed = {
        (str((ROOT / "docs/develop" / page).resolve().relative_to(ROOT)), needs): int(n) for page, needs, n in rows
    }
    counted: dict[tuple[str, str], int] = {}
    for page in RUN:
        for block in blocks_of(page):
            if block.needs:
                key = page, ", ".join(block.needs)
                counted[key] = counted.get(key, 0) + 1
    assert listed == counted


def _lines(command: str) -> list[tuple[Block, str]]:
    blocks = (block for page in RUN for block in blocks_of(page) if block.language == "sh")
    return [(block, line) for block in blocks for line in block.code.splitlines() if line.startswith(command)]


def test_extras_that_pages_install_exist() -> None:
    lines = _lines("pip install")
    assert lines
    for block, line in lines:
        for extras in re.findall(r"warmstore\[([\w,]+)\]", line):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), (block.place, line)


def test_versions_on_the_page_are_those_that_are_required() -> None:
    page = (ROOT / "docs/install.md").read_text()
    requirements = [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["torch"],
        *PROJECT["optional-dependencies"]["jax"],
    ]
    lowest = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(requirements), re.MULTILINE))
    for name, package in (("PyTorch", "torch"), ("JAX", "jax"), ("NumPy", "numpy"), ("pyarrow", "pyarrow")):
        assert f"| {name} | {lowest[package]} and newer" in page, name
    pythons = [entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if "Python :: 3." in entry]
    assert f"| Python | {', '.join(pythons)} |" in page
    assert f">={pythons[0]}" == PROJECT["requires-python"]


def test_targets_that_pages_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    lines = _lines("make ")
    assert lines
    for block, line in lines:
        assert re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE), (block.place, line)


def test_the_readme_runs_and_its_first_block_is_faster_the_second_time(tmp_path: Path) -> None:
    block = next(block for block in blocks_of("README.md") if block.language == "python")
    (tmp_path / "again.md").write_text(f"```python\n{block.code}```\n")
    folder = _empty(tmp_path)
    for said in (run_page("README.md", folder), run_page("again.md", folder, root=tmp_path)):
        assert re.findall(r"^epoch (\d): ", said, re.MULTILINE) == ["0", "1", "2"]
    with ws.FeatureCache(folder / "cache", "backbone_v1") as cache:
        assert len(cache) == 512  # each sample was computed once


def test_the_picture_shows_the_figures_of_the_benchmark() -> None:
    from docs.figures_picture import figures

    data = (ROOT / "docs/figures.png").read_bytes()
    held = json.loads(re.search(rb"tEXtDescription\0({.*?})", data)[1])  # type: ignore[index]
    assert held == figures()
    readme = (ROOT / "README.md").read_text()
    assert all(f"{held[name]:,.0f}" in readme for name in ("LMDB", "Lance", "warmstore, from disk"))


@pytest.mark.slow
def test_example_computes_nothing_the_second_time(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "cache_a_module.py", tmp_path]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first.splitlines() == ["epoch 0: 0 read, 2000 computed", "epoch 1: 2000 read, 0 computed"]
    assert second.splitlines() == ["epoch 0: 2000 read, 0 computed", "epoch 1: 2000 read, 0 computed"]


@pytest.mark.parametrize(
    ("title", "count"), [("Record stores", 17), ("Loading", 19), ("Feature caches", 16), ("Pipelines", 19)]
)
def test_every_promise_names_tests_that_exist(title: str, count: int) -> None:
    text = (ROOT / "docs/develop/promises.md").read_text()
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:[A-Z]\d+(?:, )?)+) \|.*\| ([^|]*) \|$", section, re.MULTILINE)
    promised = [promise for promises, _ in rows for promise in promises.split(", ")]
    assert promised == [f"{title[0]}{number}" for number in range(1, count + 1)]
    named = re.findall(r"`([\w/]+(?:\.py)?/?)(?:::(\w+))?`", section)
    assert len(named) >= len(rows)
    for file, test in named:
        path = ROOT / "tests" / file
        if path.exists():
            assert not test or re.search(rf"^(class|def) {test}\b", path.read_text(), re.MULTILINE), (file, test)
        else:
            assert "/" not in file, file  # a name of the library, such as `drop_last`


@pytest.mark.slow
def test_flax_training_resumes_exactly(tmp_path: Path) -> None:
    for package in ("jax", "flax", "optax"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    command = [sys.executable, ROOT / "examples" / "flax_training.py", tmp_path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0].startswith("24 steps, loss ")
    assert said[1] == "resumed after 11 steps: the same losses"
