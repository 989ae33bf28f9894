"""`inferd keys`: make API keys and look at a keys file. No key is ever an argument: others can read those."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from inferd_server.config import ConfigError
from inferd_server.config.keys import entry_text, hash_of, key_rows, new_key, read_keys
from inferd_server.core.model import Strategy

keys_commands = typer.Typer(no_args_is_help=True, help="Make API keys for a keys file, and look at one.")

KeyId = Annotated[str, typer.Argument(metavar="ID", help="Names the key in logs and errors.")]


@keys_commands.command("create")
def create(
    key_id: KeyId,
    models: Annotated[list[str] | None, typer.Option("--model", help="A model it may use, with * and ?.")] = None,
    methods: Annotated[list[str] | None, typer.Option("--method", help="generate, observe or admin.")] = None,
) -> None:
    """Make a key: itself on stdout, this once, and its entry for the keys file on stderr."""
    key = new_key()
    options = {name: words for name, words in (("models", models), ("methods", methods)) if words}
    try:
        entry = entry_text(id=key_id, hash=hash_of(key), **options)
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"# below `keys:` of the keys file; the key itself is not kept anywhere\n{entry}", err=True)
    typer.echo(key)


@keys_commands.command("hash")
def hash_key() -> None:
    """Print the hash of a key that is read from stdin."""
    try:
        typer.echo(hash_of(sys.stdin.readline().strip()))
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@keys_commands.command("list")
def list_keys(file: Annotated[Path, typer.Argument(metavar="FILE", help="A keys file.")]) -> None:
    """Validate a keys file and print what each key may do."""
    try:
        # Whether a strategy is among the configuration's is `inferd check`'s to say.
        keys = read_keys(file, frozenset(Strategy))
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(f"error: {file}: {problem}", err=True)
        raise typer.Exit(1) from None
    rows = list(key_rows(keys, time.time()))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
