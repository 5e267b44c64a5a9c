"""Every command says what was wrong in one line on stderr, in words of its options, and ends with status 1 or 2."""

import errno
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from tests.cli.runner import runner
from tests.inventory.making import features

from warmstore.cli import app
from warmstore.cli.command_group import with_options
from warmstore.errors import Damaged, NotAStore, WriteFailed, message_of


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotAStore("it has no store.json"), "it has no store.json"),
        (ValueError("size=-1 is below zero"), "size=-1 is below zero"),
        (WriteFailed(errno.ENOSPC, "the disk refused a write", "/a/store"), "/a/store: the disk refused a write"),
        (Damaged(errno.EIO, "a blob was damaged", None), "a blob was damaged"),
        (OSError(errno.EXDEV, "other device", "/a", None, "/b"), "/a: /b: other device"),
        (FileNotFoundError(errno.ENOENT, "no such file", b"/bin/none"), "/bin/none: no such file"),
        (ConnectionError(), "ConnectionError"),
    ],
)  # fmt: skip
def test_a_message_begins_with_the_file_and_has_no_numbers(error: Exception, said: str) -> None:
    assert message_of(error) == said


COMMANDS = {
    "store inspect {}/none": "{}/none is not a warmstore store",
    "store export {}/none {}/a.npy": "{}/none is not a warmstore store",
    "store verify {}/none": "{}/none is not a warmstore store",
    "store seal {}/none": "{}/none is not a warmstore store",
    "store rebalance {}/none": "{}/none is not a warmstore store",
    "store convert {}/none {}/store": "{}/none does not exist",
    "features stats {}/none": "{}/none",
    "features clear {}/none": "{}/none",
    "pipelines plan none:none": "there is no module 'none'",
    "store push {}/none {}/remote": "{}/none",
    "store pull {}/remote {}/none": "{}/remote",
    "run --profile quick -- python": "--profile 'quick' is not known",
    "run -- {}/none": "{}/none: No such file or directory",
    "compiled stats --dir {}/none": "there is no compile cache in {}/none",
    "compiled clear --dir {}/none": "there is no compile cache in {}/none",
    "compiled import {}/none --dir {}/new": "{}/none: No such file or directory",
    "compiled prune --dir {}/none": "no remote is given",
    "signing-keys show --file {}/none": "{}/none: the file with keys cannot be read: No such file or directory\n",
    "signing-keys generate --kind none": "",
    "demo --folder {}/file/in": "{}/file/in: Not a directory\n",
    "gc": "nothing says what to remove; pass --older-than",
    "gc --max-size none": "'none' is not a size",
    "ls {}/none": "{}/none is not a folder",
    "diff {}/none {}/none": "{}/none has no feature cache",
    "features merge {}/none {}/other": "{}/none",
    "features fill none:none --shard 3": "--shard '3' must be I/N",
    "compiled import {}/file --dir {}/new --max-size 1kB": "--max-size '1kB' is less than the ",
}
MISUSES = {
    *("pipelines plan none:none", "run --profile quick -- python", "compiled prune --dir {}/none", "gc"),
    *("signing-keys generate --kind none", "gc --max-size none", "features fill none:none --shard 3"),
    "compiled import {}/file --dir {}/new --max-size 1kB",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_its_error_on_one_line(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMSTORE_REMOTE_URL", raising=False)
    (tmp_path / "file").touch()
    arguments = [argument.replace("{}", str(tmp_path)) for argument in command.split()]
    done = runner().invoke(app, arguments)
    assert done.exit_code == (2 if command in MISUSES else 1)
    assert done.stderr.startswith("Error: " + COMMANDS[command].replace("{}", str(tmp_path)))
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_size=3 is too small", "--max-size 3 is too small"),
        ("max_size='3 kB', a limit; pass a larger max_size", "--max-size '3 kB', a limit; pass a larger --max-size"),
        ("verify=True reads all; other_verify=True does not", "--verify reads all; other_verify=True does not"),
        ("verify it with verify()", "verify it with verify()"),
        ("unknown_name=3", "unknown_name=3"),
        ("runs/max_size=3/x, runs/a=1,max_size=3: gone", "runs/max_size=3/x, runs/a=1,max_size=3: gone"),
        ("/data/max_size is not a folder", "/data/max_size is not a folder"),
    ],
)
def test_messages_speak_of_the_options_of_their_command(text: str, said: str) -> None:
    options = [
        SimpleNamespace(name="max_size", opts=["--max-size"]),
        SimpleNamespace(name="verify", opts=["--verify"]),
        SimpleNamespace(name="url", opts=["url"]),
    ]
    assert with_options(text, options) == said


def test_wrong_options_are_misuse() -> None:
    for arguments in (
        ["nonsense"],
        ["store", "inspect"],
        ["ls", "--nonsense"],
        ["store", "inspect", "x", "--samples", "-1"],
    ):
        assert runner().invoke(app, arguments).exit_code == 2, arguments


def leaves(group: Any, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """All commands by their words."""
    found = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= leaves(command, (*words, name))
        else:
            found[" ".join((*words, name))] = command
    return found


@pytest.mark.parametrize("columns", ["40", "80"])
def test_help_lists_every_command_with_a_whole_sentence(columns: str) -> None:
    for words in ([], ["store"], ["compiled"]):
        said = runner().invoke(app, [*words, "--help"], env={"COLUMNS": columns, "TERMINAL_WIDTH": columns}).stdout
        assert "..." not in said.partition("Commands:")[2]
    assert "Read every byte of stores and caches of all kinds, and compare it with its hash." in " ".join(
        runner().invoke(app, ["--help"]).stdout.split()
    )


def test_help_does_not_import_rich() -> None:
    code = "import sys, typer\nif 'rich' in sys.modules: sys.exit(2)\n"
    code += "from warmstore.cli import app\napp(['--help'], standalone_mode=False)\nsys.exit('rich' in sys.modules)"
    status = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
    if status == 2:
        pytest.skip("typer imports rich, as old versions do")
    assert status == 0


def test_every_command_but_run_prints_json() -> None:
    commands = leaves(typer.main.get_command(app))
    assert len(commands) > 45
    without = {name for name, command in commands.items() if "as_json" not in {one.name for one in command.params}}
    assert without == {"run"}
    assert all(command.help for command in commands.values())


def test_the_page_has_an_example_of_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    examples = set(re.findall(r"^warmstore ([a-z- ]+)", page, re.MULTILINE))
    for name in leaves(typer.main.get_command(app)):
        assert any(f"{example} ".startswith(f"{name} ") for example in examples), name


@pytest.mark.parametrize(
    ("shell", "words", "completes"),
    [
        ("bash", "warmstore sto", "store"),
        ("bash", "warmstore store ver", "verify"),
        ("zsh", "warmstore gc --max", "--max-size"),
        ("fish", "warmstore signing", "signing-keys"),
    ],
)
def test_shells_complete_commands_and_options(shell: str, words: str, completes: str) -> None:
    environment = {"_WARMSTORE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": words}
    environment |= {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = runner().invoke(app, [], prog_name="warmstore", env=environment)
    assert completes in done.stdout


@pytest.mark.parametrize("words", [["gc", "", "--older-than", "0s", "--yes"], ["features", "clear", "", "--yes"]])
def test_an_empty_argument_is_not_the_current_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = features(tmp_path, "net")
    monkeypatch.chdir(tmp_path)
    result = runner().invoke(app, words)
    assert result.exit_code == 2
    assert "an argument is empty" in result.stderr
    assert path.exists()


def test_a_program_may_have_empty_arguments() -> None:
    code = "import sys; sys.exit(sys.argv[1:] != [''])"
    assert (
        subprocess.run(
            [sys.executable, "-m", "warmstore", "run", sys.executable, "-c", code, ""], check=False
        ).returncode
        == 0
    )
