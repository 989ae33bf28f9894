"""What the `inferd` command writes: text for people on a terminal, plain lines and JSON for pipes."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from inferd_client.errors import DeadlineExceeded, InferdError, Unavailable, connection_problem
from inferd_client.results import MemoryBudget, Model, Waiting

_HINTS = {
    "MODEL_NOT_FOUND": "`inferd models` lists them",
    "MODEL_NOT_LOADED": "`inferd load` loads it",
    "CAPACITY_EXHAUSTED": "wait with --strategy wait, make room with `inferd unload`, or raise memory_budget_gb",
    "WAIT_TIMEOUT": "make room with `inferd unload`, or raise memory_budget_gb or wait_timeout_s",
    "CREDENTIALS_MISSING": "--api-key-file or the variable INFERD_API_KEY gives it",
    "CREDENTIALS_INVALID": "--api-key-file or the variable INFERD_API_KEY gives another",
    "MODEL_CORRUPT": "fetch its files again, then `inferd load {model}`",
    "MODEL_BUSY": "`--mode drain` waits, `--mode force` ends the requests",
    "MODEL_PINNED": "`--mode drain` unloads it all the same",
    "DRAIN_TIMEOUT": "`--mode force` ends the requests",
}


def write_text(text: str) -> None:
    """Writes a piece of an answer at once; on a terminal without control characters (a model may emit any)."""
    if sys.stdout.isatty():
        text = "".join(c for c in text if c.isprintable() or c in "\n\t")
    sys.stdout.write(text)
    sys.stdout.flush()


def write_line(line: str = "") -> None:
    """Writes one line at once."""
    write_text(line + "\n")


def write_note(line: str) -> None:
    """Writes one line for people, to stderr."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # the one place that may


def write_aside(line: str) -> None:
    """Writes one dim line for whoever looks on; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        write_note(f"\033[2m{line}\033[0m")


def write_json(record: Any) -> None:
    """Writes a result (a dataclass) or a mapping as one line of JSON."""
    plain = record if isinstance(record, dict) else asdict(record)
    write_line(json.dumps(plain, ensure_ascii=False, default=str))


class WaitLine:
    """On a terminal, a passing line that tells what a request waits for."""

    def __init__(self) -> None:
        self._is_shown = False

    def show(self, waiting: Waiting) -> None:
        """Shows the line, in place of the one before."""
        if not sys.stderr.isatty():
            return
        text = f"{waiting.state}, {waiting.queue_position} ahead"
        if waiting.state == "loading":
            text = f"loading the model: {waiting.load_progress:.0%}"
        self._write(text)
        self._is_shown = True

    def clear(self) -> None:
        """Takes the line away, if there is one."""
        if self._is_shown:
            self._write("")
            self._is_shown = False

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text}\033[K")
        sys.stderr.flush()


def write_error(message: str) -> None:
    """Writes `error: …` as one line to stderr."""
    write_note("error: " + " ".join(message.split()))


def explain(error: InferdError, address: str, timeout: float | None) -> str:
    """An error of a call to `address` in one line: what, why, and what to do next."""
    if isinstance(error, Unavailable) and not error.reason:
        return _unreachable(error.message, address)
    if isinstance(error, DeadlineExceeded) and not error.reason and timeout is not None:
        return f"time ran out after {timeout:g} s; --timeout sets it"
    steps = []
    if "completion_tokens" in error.metadata:
        steps.append(f"{error.metadata['completion_tokens']} tokens had been made")
    if error.retry_after is not None:
        steps.append(f"retry after {error.retry_after:g} s")
    if error.reason in _HINTS:
        steps.append(_HINTS[error.reason].format(model=error.metadata.get("model", "MODEL")))
    return "; ".join([str(error), *steps])


def _unreachable(message: str, address: str) -> str:
    """gRPC's account of every address that it tried ends with the cause."""
    if not message.startswith(("connections to all", "failed to connect to all", "errors resolving")):
        return f"the server at {address} is gone: {message}"
    if problem := connection_problem(message):
        return f"can't connect to {address}: {problem}; see --tls, --ca, --cert and --key"
    cause = message.rpartition(": ")[2].strip("]")
    return (
        f"no server answers at {address}: {cause[:1].lower()}{cause[1:]}; "
        "start one with `inferd serve` or name one with --address"
    )


def write_models(models: Sequence[Model], memory: MemoryBudget) -> None:
    """Writes a table on a terminal, else one line per model with tabs between the columns."""
    header = ["NAME", "STATE", "MEMORY", "CONTEXT", "RUNNING", "WAITING", "CAPABILITIES", "ALIASES"]
    rows = [_row(model) for model in models]
    if not sys.stdout.isatty():
        for row in [header, *rows]:
            write_line("\t".join(row))
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, *rows]:  # never cut: what a narrow terminal wraps can still be read and copied
        write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    write_line(f"{size(memory.used_bytes)} of {size(memory.limit_bytes)} used")


def state_line(model: Model) -> str:
    """A model's state in one line."""
    line = f"{model.name}\t{model.state}"
    if model.state == "loading":
        line += f"\t{model.load_progress:.0%}"
    if model.last_error is not None:
        line += f"\t{model.last_error.reason}: {model.last_error.message}"
    return line


def size(nbytes: int) -> str:
    """Bytes for people: `1.25 GiB`, in MiB where that is little."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 // 10 else f"{nbytes / 2**20:.1f} MiB"


def _row(model: Model) -> list[str]:
    return [
        model.name,
        model.state if model.last_error is None else f"{model.state} ({model.last_error.reason})",
        size(model.memory.charged_bytes or model.memory.estimated_bytes),
        str(model.context_length),
        str(model.running_requests),
        str(model.waiting_requests),
        ",".join(model.capabilities),
        ",".join(model.aliases),
    ]
