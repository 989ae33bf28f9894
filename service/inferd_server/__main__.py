"""The server's commands: serve, check, config, keys, demo-model.

They join the client's `inferd` through the entry-point group `inferd.commands`; `python -m inferd_server` has them
alone. Errors are one clear line each on stderr, one for each problem of a configuration, and an exit code other than
0; a wrong command line is 2.
"""

import asyncio
import contextlib
import errno
import functools
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any, NoReturn, Self

import typer

from inferd_server import demo
from inferd_server.config import Config, ConfigError, load_config
from inferd_server.config.plan import plan_lines
from inferd_server.config.settings import SETTINGS, Setting
from inferd_server.config.single import single_model_document, single_model_problem
from inferd_server.config.template import default_file, reference, yaml_scalar
from inferd_server.core.errors import InferdError
from inferd_server.key_commands import keys_commands
from inferd_server.service_commands import service_commands

commands = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
config_commands = typer.Typer(no_args_is_help=True, help="Write configuration files.")
commands.add_typer(config_commands, name="config")
commands.add_typer(keys_commands, name="keys")
commands.add_typer(service_commands, name="service")

Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow an address that other machines can reach, without TLS and keys.")
]
DemoDirectory = Annotated[
    Path | None, typer.Option(envvar="INFERD_DEMO_DIR", help="Where the demo's models live; default: the user's cache.")
]
Command = Callable[..., None]


def _variable_and_default(setting: Setting) -> str:
    """`[INFERD_MAX_QUEUE=1024]`; without a value where the setting's meaning says what none means."""
    default = "" if setting.default is None else f"={yaml_scalar(setting.default)}"
    return f"[{setting.variable}{default}]"


def _parameter(setting: Setting) -> inspect.Parameter:
    """A setting as a parameter of a command. Its text is read by the configuration, as a variable's is."""
    option = typer.Option(
        setting.flag,
        metavar={bool: "true|false", int: "NUMBER", float: "NUMBER"}.get(setting.kind, "TEXT"),
        help=f"{setting.meaning} {_variable_and_default(setting)}",
        rich_help_panel="Settings: each is a key of the configuration file and a variable too",
    )
    annotation = Annotated[str | None, option]
    return inspect.Parameter(
        setting.flag[2:].replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _with_settings(command: Command) -> Command:
    """Give a command a flag for every setting; it gets those given as `flags`, text by setting path."""
    settings = {_parameter(setting).name: setting for setting in SETTINGS}

    @functools.wraps(command)
    def with_flags(**given: Any) -> None:
        texts = {setting.path: given.pop(name) for name, setting in settings.items()}
        command(**given, flags={path: text for path, text in texts.items() if text is not None})

    signature = inspect.signature(command)
    own = [parameter for name, parameter in signature.parameters.items() if name != "flags"]
    parameters = [*own, *(_parameter(setting) for setting in SETTINGS)]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_flags


@commands.command("serve")
@_with_settings
def serve(
    *,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Serve the models of a configuration.")] = None,
    model: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Serve one model, by its folder's name.")] = None,
    demo_model: Annotated[
        bool, typer.Option("--demo", help="Serve a chat model, an embedder and a tiny vision model.")
    ] = False,
    demo_dir: DemoDirectory = None,
    insecure: Insecure = False,
    flags: dict[str, str],
) -> None:
    """Serve models over gRPC until SIGTERM. Prints `listening on ADDRESS` when the port is open."""
    if sum((config is not None, model is not None, demo_model)) != 1:
        _fail("serve needs exactly one of --config FILE, --model FOLDER and --demo", code=2)
    with _EarlySignals() as early:
        if config is not None:
            loaded = _load(config, {}, flags, insecure=insecure)
        elif model is not None:
            loaded = _load_single(model, flags, insecure=insecure)
        else:
            loaded = _load(None, _demo_document(demo_dir), flags, insecure=insecure)
        _run(loaded, early)


@commands.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration file.")], insecure: Insecure = False
) -> None:
    """Validate a configuration and print its memory plan, without starting anything."""
    config = _load(file, {}, {}, insecure=insecure)
    from inferd_server.engine import device  # noqa: PLC0415  # it imports mlx, which a refused file does not need

    for line in plan_lines(config, device.report().working_set_nbytes):
        typer.echo(line)


@config_commands.command("init")
def config_init() -> None:
    """Print a configuration file with every key at its default."""
    typer.echo(default_file(), nl=False)


@config_commands.command("reference")
def config_reference() -> None:
    """Print every key, its default, what is allowed and what it means, as Markdown."""
    typer.echo(reference(), nl=False)


@commands.command("demo-model")
def demo_model(
    directory: Annotated[
        Path | None, typer.Option("--dir", envvar="INFERD_DEMO_DIR", help="Where to; default: the user's cache.")
    ] = None,
) -> None:
    """Make the demo's models where they are missing, and print their folders, the chat model's first."""
    try:
        for folder in _demo_folders(directory):
            typer.echo(folder)
    except demo.Terminated:
        raise typer.Exit(143) from None


def _demo_folders(directory: Path | None) -> list[Path]:
    try:
        place = _demo_directory(directory)
        with demo.progress_bars(place) as progress:
            return demo.prepare(place, progress)
    except demo.DemoError as error:
        _fail(str(error))


def _demo_directory(directory: Path | None) -> Path:
    return (directory or demo.default_directory()).absolute()


def _demo_document(directory: Path | None) -> dict[str, Any]:
    try:
        _demo_folders(directory)
    except demo.Terminated:
        raise typer.Exit(0) from None  # a server that was told to stop, and did
    typer.echo(f"serving {', '.join(part.name for part in demo.MODELS)}; {demo.BUDGET_NOTE}", err=True)
    return demo.demo_document(_demo_directory(directory))


def _load_single(folder: Path, flags: dict[str, str], *, insecure: bool) -> Config:
    if problem := single_model_problem(folder):
        _fail(f"--model {folder}: {problem}")
    config = _load(None, single_model_document(folder), flags, insecure=insecure)
    entry = config.entries[0]
    typer.echo(
        f"serving {entry.engine.path} as {entry.name}; budget {config.manager.memory_budget_gb:.3g} GiB: its size "
        "and 5 % slack",
        err=True,
    )
    return config


def _load(file: Path | None, document: dict[str, Any], flags: dict[str, str], *, insecure: bool) -> Config:
    """The configuration of a file, or of a document where there is none."""
    try:
        return load_config(file, flags, document=document, insecure=insecure)
    except ConfigError as error:
        origin = f"{file}: " if file else ""
        for problem in error.problems:
            typer.echo(f"error: {origin}{problem}", err=True)
        raise typer.Exit(1) from None


class _EarlySignals:
    """Until the server itself listens to signals there is nothing to clean up, and to be stopped is no failure; to be
    asked to read the configuration again, by default a reason to end, waits until the server listens."""

    def __init__(self) -> None:
        self._has_hung_up = False

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
        signal.signal(signal.SIGHUP, self._on_hangup)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self._has_hung_up = True

    def repeat(self) -> None:
        """The server listens: it is told what came before."""
        if self._has_hung_up:
            signal.raise_signal(signal.SIGHUP)


def _run(config: Config, early: _EarlySignals) -> NoReturn:
    # Tokenizers need no PyTorch: transformers' advice to install it would be the first line of every log.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # grpc's core writes its own lines, one for each failed handshake: they would be no log lines, and could block.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _open_standard_files()
    # Imported here: they bring grpc and mlx, which the other commands do not need.
    from inferd_server.app import serve as serve_app  # noqa: PLC0415
    from inferd_server.telemetry import logs  # noqa: PLC0415

    def announce(line: str) -> None:
        _announce(line)
        early.repeat()

    async def serve_to_the_end() -> NoReturn:
        _exit_now(await serve_app(config, announce=announce))

    logs.configure(config.logging.format, config.logging.level)
    try:
        asyncio.run(serve_to_the_end())
    except OSError as error:
        logs.flush()
        is_taken = error.errno == errno.EADDRINUSE
        _fail((error.strerror or str(error)) + ("; choose another address with --listen" if is_taken else ""))
    except InferdError as error:
        logs.flush()
        _fail(error.message)


def _open_standard_files() -> None:
    """Give those that our starter has closed to nobody: the next socket would get their numbers, and what is written
    to them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number


def _announce(line: str) -> None:
    """Whoever started us may have left: that is no reason not to serve."""
    with contextlib.suppress(OSError):
        typer.echo(line)


def _exit_now(code: int) -> NoReturn:
    """End the process without asyncio's and the interpreter's own ends. Everything of ours has ended by now; but
    asyncio would wait for a long tokenization on some thread, and MLX's CPU threads can outlive their streams, and then
    its static destructors abort (measured: 1 of 36 stops under load, exit code -6)."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by our starter
            with contextlib.suppress(OSError):
                stream.flush()
    os._exit(code)


def _fail(message: str, code: int = 1) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    commands(prog_name="inferd")
