"""`inferd service`: have the system's service manager run the server, from login or boot on."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from inferd_server.config import Config, ConfigError, load_config
from inferd_server.service_files import ServiceSettings, stop_seconds
from inferd_server.service_managers import ServiceError, manager_of

service_commands = typer.Typer(no_args_is_help=True, help="Run the server under launchd (macOS) or systemd (Linux).")

LOG = Path("Library/Logs/inferd.log")
NOT_RUNNING, NOT_INSTALLED = 1, 3


@service_commands.command("install")
def install(
    config: Annotated[Path, typer.Option(metavar="FILE", help="The configuration to serve.")],
    insecure: Annotated[bool, typer.Option("--insecure", help="As of `inferd serve`.")] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the file; install nothing.")] = False,
) -> None:
    """Start the server now and whenever this user's session starts, and again when it fails."""
    settings = _settings(config.absolute(), insecure=insecure)
    with _errors_as_lines():
        manager = manager_of()
        if only_print:
            typer.echo(manager.text(settings), nl=False)
            return
        manager.install(settings)
    typer.echo(f"installed as {manager.file}")


@service_commands.command("uninstall")
def uninstall() -> None:
    """Stop the server (it drains first) and forget it."""
    with _errors_as_lines():
        manager = manager_of()
        manager.uninstall()
    typer.echo(f"{manager.file} is gone")


@service_commands.command("status")
def status() -> None:
    """Tell whether it runs; exit code 0: it does, 1: it does not, 3: it is not installed."""
    with _errors_as_lines():
        found = manager_of().status()
    if found.pid:
        typer.echo(f"running, process {found.pid}")
        return
    typer.echo("not running" if found.is_installed else "not installed")
    raise typer.Exit(NOT_RUNNING if found.is_installed else NOT_INSTALLED)


def _settings(file: Path, *, insecure: bool) -> ServiceSettings:
    """What to run for a configuration, which has to be valid."""
    server = _load(file, insecure=insecure).server
    flags = ["--insecure"] if insecure else []
    return ServiceSettings(
        command=[sys.executable, "-m", "inferd_server", "serve", "--config", str(file), *flags],
        stop_seconds=stop_seconds(server.drain_delay_s, server.drain_timeout_s),
        log=Path.home() / LOG,
    )


def _load(file: Path, *, insecure: bool) -> Config:
    try:
        # Without variables: the service will not have those of this shell.
        return load_config(file, environ={}, insecure=insecure)
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(f"error: {file}: {problem}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def _errors_as_lines() -> Iterator[None]:
    try:
        yield
    except ServiceError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
