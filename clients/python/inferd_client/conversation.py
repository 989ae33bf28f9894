"""Answers on the terminal: one, or a conversation of them."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Unpack

from inferd_client import terminal
from inferd_client.errors import InferdError
from inferd_client.media import Image
from inferd_client.options import Message, StreamOptions
from inferd_client.readiness import when_ready
from inferd_client.results import Delta, Generation, Waiting
from inferd_client.sync import Client

_CUTS = {
    "max_tokens": "cut at max_tokens; --max-tokens sets it",
    "context_length": "cut: the model's context is full",
}


def write_answer(
    client: Client,
    model: str,
    as_json: bool,
    timeout: float | None,
    *,
    prompt: str | None = None,
    messages: Sequence[Message] | None = None,
    **options: Unpack[StreamOptions],
) -> Generation:
    """Streams one answer to stdout, once the server is ready; leaving early (Ctrl-C) cancels it on the server. Raises
    InferdError."""
    result = when_ready(
        lambda: _stream_answer(client, model, as_json, timeout, prompt=prompt, messages=messages, **options), timeout
    )
    if as_json:
        terminal.write_json(result)
    elif result.finish_reason in _CUTS:
        terminal.write_aside(_CUTS[result.finish_reason])
    return result


def _stream_answer(
    client: Client,
    model: str,
    as_json: bool,
    timeout: float | None,
    *,
    prompt: str | None,
    messages: Sequence[Message] | None,
    **options: Unpack[StreamOptions],
) -> Generation:
    wait_line = terminal.WaitLine()
    written = ""
    try:
        with client.stream(model, prompt, messages=messages, timeout=timeout, **options) as answer:
            for event in answer:
                if isinstance(event, Waiting):
                    wait_line.show(event)
                    continue
                wait_line.clear()
                if isinstance(event, Delta) and event.text and not as_json:
                    terminal.write_text(written := event.text)
    finally:
        wait_line.clear()
        if written and not written.endswith("\n"):
            terminal.write_line()
    return answer.result


def converse(
    client: Client,
    model: str,
    messages: list[Message],
    images: list[Image],
    address: str,
    timeout: float | None,
    options: StreamOptions,
) -> None:
    """Questions and answers until the end of input; an answer that fails or that Ctrl-C stops ends its turn only.
    `images` go with the first question that is answered."""
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415  # gives input() its line editing, where the platform has it
    terminal.write_aside("Ctrl-D ends the conversation; Ctrl-C stops an answer")
    while True:
        try:
            question = input(f"{model}> ")
        except EOFError:
            terminal.write_line()
            return
        if not question.strip():
            continue
        messages.append(("user", [*images, question]))
        try:
            result = write_answer(client, model, False, timeout, messages=messages, **options)
            messages.append(("assistant", result.text))
            images = []
        except KeyboardInterrupt:
            messages.pop()
            terminal.write_aside("stopped; the turn is forgotten")
        except InferdError as error:
            messages.pop()
            terminal.write_error(terminal.explain(error, address, timeout))
