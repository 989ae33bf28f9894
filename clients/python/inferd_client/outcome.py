"""How a command of the client ends: with an exit code, and after an error with one line that says what to do."""

from typing import Any

import typer
from typer.core import TyperCommand

from inferd_client import errors, terminal

INTERRUPTED = 130
MEANINGS = {
    0: "done",
    1: "any other failure",
    2: "a wrong command line, or a request refused as invalid",
    3: "no such model",
    4: "the server can't be reached, starts or stops",
    5: "too little room or too many requests: retry later",
    6: "time ran out",
    7: "not allowed",
    8: "the server ended the request",
    INTERRUPTED: "Ctrl-C",
}
"""Every exit code of the client's commands but `inferd health`; stable."""

_CODES: tuple[tuple[type[errors.InferdError], int], ...] = (
    (errors.InvalidParameter, 2),
    (errors.ModelNotFound, 3),
    (errors.Unavailable, 4),
    (errors.ResourceExhausted, 5),
    (errors.DeadlineExceeded, 6),
    (errors.Unauthenticated, 7),
    (errors.PermissionDenied, 7),
    (errors.Aborted, 8),
    (errors.Cancelled, 8),
)


def exit_code(error: errors.InferdError) -> int:
    """The exit code for an error, as MEANINGS lists them."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1)


class ClientCommand(TyperCommand):
    """A command that talks to the server at `--address`; a call that fails is one line and the command's end."""

    def invoke(self, ctx: Any) -> Any:
        """Runs it."""
        try:
            return super().invoke(ctx)
        except errors.InferdError as error:
            terminal.write_error(terminal.explain(error, ctx.params["address"], ctx.params["timeout"]))
            raise typer.Exit(exit_code(error)) from error
