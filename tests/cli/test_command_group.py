"""Every command says what was wrong in one line on stderr, and ends with status 1."""

import errno
from pathlib import Path

import pytest
from typer.testing import CliRunner

from warmstore.cli import app
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
    "run --profile quick -- python": "profile='quick' is not known",
    "run -- {}/none": "{}/none: No such file or directory",
    "compiled stats --dir {}/none": "there is no compile cache in {}/none",
    "compiled clear --dir {}/none": "there is no compile cache in {}/none",
    "compiled import {}/none --dir {}/new": "{}/none: No such file or directory",
    "compiled prune --dir {}/none": "no remote is given",
    "signing-keys show --file {}/none": "{}/none: the file with keys cannot be read: No such file or directory\n",
    "signing-keys generate --kind none": "",
    "demo --folder {}/file/in": "{}/file/in: Not a directory\n",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_its_error_on_one_line(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMSTORE_REMOTE_URL", raising=False)
    (tmp_path / "file").touch()
    arguments = [argument.replace("{}", str(tmp_path)) for argument in command.split()]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: " + COMMANDS[command].replace("{}", str(tmp_path)))
    assert done.stderr.count("\n") == 1
