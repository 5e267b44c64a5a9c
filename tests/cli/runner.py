"""The runner of commands in this process."""

import inspect

from typer.testing import CliRunner


def runner() -> CliRunner:
    """One that keeps stdout and stderr apart, which click does from 8.2 on and before if told."""
    options = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**options)
