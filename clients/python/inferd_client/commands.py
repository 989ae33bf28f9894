"""The client's commands of `inferd`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, get_args

import grpc
import typer

from inferd_client import terminal
from inferd_client.channel import LOOK_UP_SECONDS
from inferd_client.conversation import converse, write_answer
from inferd_client.endpoint import Endpoint, with_endpoint
from inferd_client.errors import DeadlineExceeded, InferdError, Unavailable
from inferd_client.media import Image
from inferd_client.options import Message, StreamOptions
from inferd_client.options import Strategy as StrategyWord
from inferd_client.options import UnloadMode as UnloadModeWord
from inferd_client.outcome import ClientCommand
from inferd_client.readiness import when_ready
from inferd_client.results import Changed, LoadResult, Snapshot
from inferd_client.sync import Client

_MODEL_SERVICE = "inferd.v1.Model/"

Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="Give up after so long.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name or alias of the model.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
MaxTokens = Annotated[int | None, typer.Option(metavar="N", help="Most tokens to generate.")]
Temperature = Annotated[float | None, typer.Option(metavar="T", help="0 is greedy.")]
TopP = Annotated[float | None, typer.Option(metavar="P", help="Nucleus mass in (0, 1].")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Makes sampling repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Text that ends the output; may be repeated.")]
Priority = Annotated[int | None, typer.Option(metavar="N", help="Higher runs first, within ±100.")]
# Words and not an enumeration: the refusal of a wrong one then reads the same here and in the library.
Strategy = Annotated[
    str | None, typer.Option(metavar="|".join(get_args(StrategyWord)), help="If the model does not fit now.")
]
RequestId = Annotated[str | None, typer.Option(metavar="ID", help="Names the request for `inferd cancel`.")]
Images = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="A PNG, JPEG, WebP or GIF to show; may be repeated."),
]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="Instructions for the model.")]


def add_to(app: typer.Typer) -> None:
    """Adds every command of the client to the `inferd` command."""
    for command in (generate, chat, embed, rerank, models, load, unload, watch, cancel, health):
        app.command(cls=ClientCommand)(with_endpoint(command))


def generate(
    endpoint: Endpoint,
    model: Model,
    prompt: Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="Raw text; - or none: from stdin.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = None,
    stop: Stop = None,
    priority: Priority = None,
    strategy: Strategy = None,
    request_id: RequestId = None,
    image: Images = None,
    as_json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Continue a prompt as it is, without a chat template; with images it is a question of a chat, which needs one."""
    options = _options(max_tokens, temperature, top_p, seed, stop, priority, strategy, request_id)
    images, text = _read(image), _or_stdin(prompt, "PROMPT")
    with endpoint.connect() as client:
        if images:
            write_answer(client, model, as_json, timeout, messages=[("user", [*images, text])], **options)
        else:
            write_answer(client, model, as_json, timeout, prompt=text, **options)


def chat(
    endpoint: Endpoint,
    model: Model,
    question: Annotated[
        str | None, typer.Argument(metavar="[QUESTION]", help="None: a conversation, or the question from a pipe.")
    ] = None,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = None,
    stop: Stop = None,
    priority: Priority = None,
    strategy: Strategy = None,
    request_id: RequestId = None,
    image: Images = None,
    as_json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Ask a question, or hold a conversation (Ctrl-D ends it), whose first question comes with the images."""
    options = _options(max_tokens, temperature, top_p, seed, stop, priority, strategy, request_id)
    messages: list[Message] = [] if system is None else [("system", system)]
    images = _read(image)
    with endpoint.connect() as client:
        if question is None and sys.stdin.isatty():
            converse(client, model, messages, images, endpoint.address, timeout, options)
            return
        messages.append(("user", [*images, _or_stdin(question, "QUESTION")]))
        write_answer(client, model, as_json, timeout, messages=messages, **options)


def embed(
    endpoint: Endpoint,
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="None: each line of stdin.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long, and say so.")] = False,
    dimensions: Annotated[int | None, typer.Option(metavar="N", help="Keep the first N numbers.")] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Scale each vector to length 1.")
    ] = None,
    prompt_name: Annotated[
        str | None, typer.Option("--prompt", metavar="NAME", help="The model's prompt to put before each text.")
    ] = None,
    priority: Priority = None,
    strategy: Strategy = None,
    request_id: RequestId = None,
    as_json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Turn texts into vectors: a line of numbers for each."""
    given = texts or _or_stdin(None, "TEXT").splitlines()
    with endpoint.connect() as client:
        embedding = when_ready(
            lambda: client.embed(
                model,
                given,
                truncation="end" if truncate else None,
                dimensions=dimensions,
                normalize=normalize,
                prompt_name=prompt_name,
                priority=priority,
                strategy=strategy,  # type: ignore[arg-type]  # a wrong word is refused by name
                request_id=request_id,
                timeout=timeout,
            ),
            timeout,
        )
    if as_json:
        terminal.write_json({**asdict(embedding), "vectors": [list(vector) for vector in embedding.vectors]})
        return
    for vector in embedding.vectors:
        terminal.write_line(" ".join(f"{number:.7g}" for number in vector))
    for index in embedding.truncated_texts:
        terminal.write_note(f"cut, since it is too long: {given[index][:64]!r} …")


def rerank(
    endpoint: Endpoint,
    model: Model,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the documents should answer.")],
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOCUMENT]...", help="None: each line of stdin.")
    ] = None,
    top: Annotated[int | None, typer.Option(metavar="N", help="Only the best N.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut documents that are too long, and say so.")] = False,
    priority: Priority = None,
    strategy: Strategy = None,
    request_id: RequestId = None,
    as_json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Order documents by how well they answer a query: score and document, the best first."""
    given = documents or _or_stdin(None, "DOCUMENT").splitlines()
    with endpoint.connect() as client:
        reranking = when_ready(
            lambda: client.rerank(
                model,
                query,
                given,
                top_n=top,
                truncation="end" if truncate else None,
                priority=priority,
                strategy=strategy,  # type: ignore[arg-type]  # a wrong word is refused by name
                request_id=request_id,
                timeout=timeout,
            ),
            timeout,
        )
    if as_json:
        terminal.write_json(reranking)
        return
    for each in reranking.results:
        terminal.write_line(f"{each.score:.6g}\t{each.document}")
    for index in reranking.truncated_documents:
        terminal.write_note(f"cut, since it is too long: {given[index][:64]!r} …")


def models(endpoint: Endpoint, as_json: Json = False, timeout: Timeout = LOOK_UP_SECONDS) -> None:
    """List the models, resident or not, and the memory they take."""
    with endpoint.connect() as client:
        listed = client.models(timeout=timeout)
    if as_json:
        terminal.write_json(listed)
    else:
        terminal.write_models(listed.models, listed.memory)


def load(
    endpoint: Endpoint,
    model: Model,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; follow with `inferd watch`.")] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Tell whether it would fit; change nothing. Exit code 5 if not.")
    ] = False,
    pin: Annotated[bool | None, typer.Option("--pin/--unpin", help="Whether others may evict it.")] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Load again even if it is resident.")] = False,
    strategy: Strategy = None,
    as_json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Make a model resident and wait for it."""
    with endpoint.connect() as client:
        loaded = client.load(
            model,
            detach=detach,
            validate_only=validate_only,
            pin=pin,
            reload=reload,
            timeout=timeout,
            strategy=strategy,  # type: ignore[arg-type]  # a wrong word is refused by name
        )
    if as_json:
        terminal.write_json(loaded)
    elif validate_only:
        terminal.write_line(_fit(loaded))
    else:
        terminal.write_line(terminal.state_line(loaded.model))
    if validate_only and not loaded.fits:
        raise typer.Exit(5)


def unload(
    endpoint: Endpoint,
    model: Model,
    mode: Annotated[
        str | None, typer.Option(metavar="|".join(get_args(UnloadModeWord)), help="What to do with running requests.")
    ] = None,
    drain_timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Longest drain.")] = None,
    as_json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Make a model non-resident and wait until its memory is free."""
    with endpoint.connect() as client:
        unloaded = client.unload(model, mode=mode, drain_timeout=drain_timeout, timeout=timeout)  # type: ignore[arg-type]  # a wrong word is refused by name
    if as_json:
        terminal.write_json(unloaded)
    else:
        terminal.write_line(f"{terminal.state_line(unloaded.model)}\t{terminal.size(unloaded.freed_bytes)} freed")


def watch(
    endpoint: Endpoint,
    names: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Only these models.")] = None,
    as_json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Follow the models' states: all of them once, then every change."""
    with endpoint.connect() as client, client.watch(*names or (), timeout=timeout) as events:
        for event in events:
            if as_json:
                terminal.write_json({"event": type(event).__name__.lower(), **asdict(event)})
            elif isinstance(event, Snapshot):
                for model in event.models:
                    terminal.write_line(terminal.state_line(model))
            elif isinstance(event, Changed):
                terminal.write_line(terminal.state_line(event.model))
            else:
                terminal.write_line(f"{event.name}\tremoved")


def cancel(
    endpoint: Endpoint,
    request_id: Annotated[str, typer.Argument(metavar="ID", help="The request's id.")],
    timeout: Timeout = LOOK_UP_SECONDS,
) -> None:
    """Cancel a running or waiting request. One that is unknown or over is no error."""
    with endpoint.connect() as client:
        cancelled = client.cancel(request_id, timeout=timeout)
    terminal.write_line("cancelled" if cancelled else "nothing to cancel")


def health(
    endpoint: Endpoint,
    service: Annotated[str, typer.Argument(help="readiness, liveness, a service's name, or a model's.")] = "readiness",
    timeout: Timeout = LOOK_UP_SECONDS,
) -> None:
    """Tell whether the server serves; the exit code is for containers: 0 serving, 1 not, 2 unreachable."""
    try:
        with endpoint.connect() as client:
            status = _health(client, service, timeout)
    except InferdError as error:
        terminal.write_error(terminal.explain(error, endpoint.address, timeout))
        raise typer.Exit(2 if isinstance(error, Unavailable | DeadlineExceeded) else 1) from error
    terminal.write_line(status)
    if status != "serving":
        raise typer.Exit(1)


def _health(client: Client, service: str, timeout: float | None) -> str:
    """The health of a service, or of the model of that name where there is no such service."""
    try:
        return client.health(service, timeout=timeout)
    except InferdError as error:
        if error.code is not grpc.StatusCode.NOT_FOUND or service.startswith(_MODEL_SERVICE):
            raise
    return client.health(_MODEL_SERVICE + service, timeout=timeout)


def _fit(loaded: LoadResult) -> str:
    if loaded.fits:
        evicted = ", ".join(loaded.evicted_models)
        return f"fits after evicting {evicted}" if evicted else "fits"
    blocking = ", ".join(loaded.blocking_models) or "nothing"
    return f"does not fit: {terminal.size(loaded.missing_bytes)} missing; in the way: {blocking}"


def _options(
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    stop: list[str] | None,
    priority: int | None,
    strategy: str | None,
    request_id: str | None,
) -> StreamOptions:
    return {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "stop": stop,
        "priority": priority,
        "strategy": strategy,  # type: ignore[typeddict-item]  # a wrong word is refused by name
        "request_id": request_id,
        # They commit the call (no retries), so only where someone looks on.
        "waiting_events": sys.stderr.isatty(),
    }


def _read(files: list[Path] | None) -> list[Image]:
    try:
        return [Image.from_file(file) for file in files or ()]
    except OSError as error:
        raise typer.BadParameter(f"--image {error.filename}: {error.strerror}") from None


def _or_stdin(text: str | None, name: str) -> str:
    if text is not None and text != "-":
        return text
    if text is None and sys.stdin.isatty():
        raise typer.BadParameter(f"give a {name}, or pipe one in")
    return sys.stdin.read().removesuffix("\n")
