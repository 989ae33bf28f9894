"""One RPC in flight, as the layers around its handler see it."""

import asyncio
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

import grpc

from inferd_server.core.errors import InferdError, echo
from inferd_server.core.observer import UNTRACED, CallTrace
from inferd_server.serving.callers import Caller

from .account import Account

Context = grpc.aio.ServicerContext[Any, Any]
"""Any: one wrapper serves the messages of all methods."""


class Call:
    """One RPC.

    Attributes:
        method: full name, `/inferd.v1.InferenceService/Generate`.
        request_id: the caller's id, or the server's once it made one; safe to log.
        model: the name asked for; safe to log.
        model_as_asked: the same, whole: any text.
        client: the name in the client's certificate, "" without one; safe to log.
        caller: who asks; None until interceptors/authenticating.py knows.
        code, reason: how it ended; set by interceptors/edge.py.
        account: what its generation request came to.
        trace: its trace.
        facts: what every error that ends it tells beside its own facts; its handler keeps them current.
        is_answered: an error status is on its way.
        is_opening: the first write is pending. grpc notes only after it that the metadata went out, and an abort
            meanwhile would send them again and leave the RPC open; so `end` then takes effect when it is done.
        writing_since: when the write now pending began, by the clock of interceptors/around.py; None between writes.
    """

    def __init__(self, method: str, context: Context, started: float) -> None:
        self.method = method
        self.context = context
        self.started = started
        self.request_id = ""
        self.model = ""
        self.model_as_asked = ""
        self.client = ""
        self.caller: Caller | None = None
        self.code = grpc.StatusCode.OK
        self.reason = ""
        self.account = Account()
        self.trace: CallTrace = UNTRACED
        self.facts: dict[str, str | int] = {}
        self.writing_since: float | None = None
        self.is_answered = False
        self.is_opening = False
        self.has_written = False
        self.ending: InferdError | None = None
        self._task = asyncio.current_task()

    @property
    def service(self) -> str:
        """The service's full name."""
        return self.method.split("/")[1]

    @property
    def peer(self) -> str:
        """The other end of the connection, `127.0.0.1:40312` or `unix:`; safe to log."""
        transport, _, address = unquote(self.context.peer() or "").partition(":")
        return echo(address if transport in {"ipv4", "ipv6"} else f"{transport}:{address}")

    @property
    def key_id(self) -> str:
        """The id of the caller's key; "" without one."""
        return "" if self.caller is None else self.caller.id

    def end(self, error: InferdError) -> None:
        """End the RPC with `error`, wherever its handler stands; the first reason given counts.

        The handler's task is cancelled and the edge answers: cancelling alone would leave the RPC open.
        """
        if self.ending is None and not self.is_answered and self._task is not None:
            self.ending = error
            if not self.is_opening:
                self._task.cancel()

    def take_ending(self) -> InferdError | None:
        """The error of `end`, if the cancellation just caught was its."""
        if self.ending is not None and self._task is not None:
            self._task.uncancel()
        return self.ending


_CURRENT: ContextVar[Call] = ContextVar("call")


def enter(call: Call) -> None:
    """Make `call` the current one of this task."""
    _CURRENT.set(call)


def current_call() -> Call:
    """The RPC that this task serves."""
    return _CURRENT.get()


def current_caller() -> Caller:
    """Who asks for what this task does."""
    caller = current_call().caller
    assert caller is not None, "the layers around every handler say who asks"
    return caller
