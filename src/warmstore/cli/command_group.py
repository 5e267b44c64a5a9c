"""Errors of all commands: one line on stderr without a traceback, which speaks of options, and the exit status.

The status is 2 if the call is wrong (an option, a value, a combination of them), and 1 if the command failed, or found
what it looks for. docs/cli.md has the list.
"""

import re
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperGroup

from warmstore.cli.tables import echo
from warmstore.errors import UsageError, WarmstoreError, message_of
from warmstore.extras import is_of_extra, not_installed

FAILED, MISUSED = 1, 2
"""Exit statuses."""

_COMMAND = "warmstore.command"
_BEFORE = r"(?<![\w,/-])"  # what is behind a "/" is part of a path, such as runs/lr=0.1,batch_size=64
_VALUE = r"('[^']*'|\"[^\"]*\"|[\w.+/-]+)"


class Commands(TyperGroup):
    """A group of commands. The outermost prints errors of warmstore, bad values and errors of the system."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.parent is None and "" in args and args[0] != "run":  # whose arguments are those of another program
            ctx.fail("an argument is empty; name a folder, a version or a host. Is a variable of the shell unset?")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = super().resolve_command(ctx, args)
        ctx.meta[_COMMAND] = found[1]  # the innermost command comes last
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their first sentences, which are wrapped and never cut."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(command.help or "")) for name, command in self.commands.items()])

    def invoke(self, ctx: Any) -> Any:
        if ctx.parent is not None:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (WarmstoreError, ValueError, OSError) as error:
            failure: Exception = error
        except ImportError as error:
            if not is_of_extra(error):
                raise
            failure = not_installed(f"warmstore {ctx.invoked_subcommand}", error)
        options = getattr(ctx.meta.get(_COMMAND), "params", ())
        echo(f"Error: {with_options(message_of(failure), options)}", err=True)
        is_misuse = isinstance(failure, UsageError) or not isinstance(failure, WarmstoreError | OSError)
        raise typer.Exit(MISUSED if is_misuse else FAILED)


def noun(help: str) -> typer.Typer:
    """The commands of one noun. Help is plain text, without rich, which takes longer to import than everything else."""
    return typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None, help=help)


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."


def with_options(text: str, options: Iterable[Any]) -> str:
    """A message in which keyword arguments are the options of a command: `max_size=3` is `--max-size 3`."""
    for option in options:
        name, written = option.name, next((one for one in option.opts if one.startswith("--")), None)
        if written is None:
            continue
        text = re.sub(rf"{_BEFORE}{name}=True\b", written, text)
        text = re.sub(rf"{_BEFORE}{name}={_VALUE}", rf"{written} \1", text)
        if "_" in name:
            text = re.sub(rf"{_BEFORE}(?<!\.){name}(?![\w(])", written, text)
    return text
