"""The `inferd` command: the client's commands, joined by the server's when the extra `server` is installed."""

import sys
from functools import cache
from importlib.metadata import entry_points, version
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from inferd_client import commands, terminal
from inferd_client.outcome import INTERRUPTED, MEANINGS

# click's ClickException, wherever this version of typer keeps it.
_COMMAND_LINE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[2])


@cache
def _server_commands() -> tuple[dict[str, Any], str]:
    """The server's commands by name, and why there are none (or "")."""
    found: dict[str, Any] = {}
    problem = ""
    for entry in entry_points(group="inferd.commands"):
        try:
            group = typer.main.get_group(entry.load())
        except ImportError as error:
            problem = str(error)
        else:
            found.update(group.commands)
    return found, problem


class Commands(TyperGroup):
    """The client's commands at hand; the server's are imported for an unknown word or for --help only."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        own = super().get_command(ctx, cmd_name)
        return own if own is not None else _server_commands()[0].get(cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands that are there."""
        return [*super().list_commands(ctx), *_server_commands()[0]]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name; where the server is missing, the error says so."""
        try:
            return super().resolve_command(ctx, args)
        except _COMMAND_LINE_ERROR as error:
            problem = _server_commands()[1]
            if problem:
                ctx.fail(f"{_message(error)} The server's commands need `pip install 'inferd[server]'` ({problem}).")
            raise

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs the command line and exits with its code; every error is one line on stderr."""
        standalone_mode = extra.get("standalone_mode", True)
        try:
            outcome = super().main(*args, **{**extra, "standalone_mode": False})
        except _COMMAND_LINE_ERROR as error:
            # Empty where a group without a command has shown its help.
            if message := _message(error):
                terminal.write_error(f"{message} (`{_command_of(error)} --help` shows how)")
            outcome = getattr(error, "exit_code", 2)
        except typer.Abort:
            outcome = INTERRUPTED
        code = outcome if isinstance(outcome, int) else 0
        if not standalone_mode:
            return code
        sys.exit(code)


def _command_of(error: Exception) -> str:
    """The command whose line was wrong, `inferd chat`; `inferd` where the line did not get so far."""
    context = getattr(error, "ctx", None)
    return "inferd" if context is None else str(context.command_path)


def _message(error: Exception) -> str:
    return str(cast("Any", error).format_message())


_EXIT_CODES = "\n".join(
    [
        "Exit codes:",
        *(f"{code}: {meaning}" for code, meaning in MEANINGS.items()),
        "Of `inferd health`: 0 serving, 1 not serving, 2 unreachable.",
    ]
)

app = typer.Typer(
    cls=Commands,
    name="inferd",
    help="A typed gRPC inference daemon for Apple MLX: many models, one memory budget.",
    epilog=_EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
)
commands.add_to(app)


@app.callback(invoke_without_command=True)
def _without_command(
    ctx: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show_version:
        terminal.write_line(f"inferd {version('inferd')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        terminal.write_line(ctx.get_help())


def main() -> None:
    """The `inferd` command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character of an answer must not end the answer.
        cast("Any", stream).reconfigure(errors="replace")
    app()
