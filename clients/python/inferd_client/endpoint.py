"""The server that a command talks to: its address and how to reach it, as options that every command has."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from inferd_client.channel import DEFAULT_ADDRESS, MAX_KEY_CHARACTERS
from inferd_client.errors import invalid_parameter
from inferd_client.sync import Client
from inferd_client.tls import tls_credentials

_PANEL = "The server"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the options of one command say."""

    address: Annotated[
        str,
        typer.Option(
            envvar="INFERD_ADDRESS", metavar="ADDRESS", help="HOST:PORT or unix:/PATH.", rich_help_panel=_PANEL
        ),
    ] = DEFAULT_ADDRESS
    tls: Annotated[
        bool, typer.Option("--tls", envvar="INFERD_TLS", help="Encrypt; --ca implies it.", rich_help_panel=_PANEL)
    ] = False
    ca: Annotated[
        Path | None,
        typer.Option(envvar="INFERD_CA", metavar="FILE", help="Who may vouch for the server.", rich_help_panel=_PANEL),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(envvar="INFERD_CERT", metavar="FILE", help="Our own certificate.", rich_help_panel=_PANEL),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(envvar="INFERD_KEY", metavar="FILE", help="Our certificate's key.", rich_help_panel=_PANEL),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="INFERD_API_KEY_FILE",
            metavar="FILE",
            help="Our API key is its first line; else the variable INFERD_API_KEY.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    plaintext_key: Annotated[
        bool,
        typer.Option("--plaintext-key", help="Send it even where the network can read it.", rich_help_panel=_PANEL),
    ] = False

    def connect(self) -> Client:
        """A client; connects at its first call. Raises InvalidParameter for files that are no good."""
        wants_tls = self.tls or self.ca is not None or self.cert is not None or self.key is not None
        credentials = tls_credentials(self.ca, self.cert, self.key) if wants_tls else None
        key = None if self.api_key_file is None else _first_line(self.api_key_file)
        return Client(self.address, credentials=credentials, api_key=key, plaintext_key=self.plaintext_key)


def _first_line(path: Path) -> str:
    """A key comes from a file, or from the environment: others can read the arguments of a command."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.readline(MAX_KEY_CHARACTERS + 2).strip()
    except OSError as error:
        raise invalid_parameter("api_key_file", f"{path} cannot be read: {error.strerror or error}") from None


def with_endpoint(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that takes an `endpoint` the options of Endpoint in its place."""
    names = [field.name for field in fields(Endpoint)]

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        command(endpoint=Endpoint(**{name: given.pop(name) for name in names}), **given)

    signature = inspect.signature(command)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "endpoint"]
    options = inspect.signature(Endpoint).parameters.values()
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *options)]
    with_options.__annotations__ = {each.name: each.annotation for each in keywords}
    with_options.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
    return with_options
