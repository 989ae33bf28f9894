"""Logs: structured, one line, bounded."""

import json
import logging
import subprocess
import sys

import pytest

PROGRAM = """
import logging
from inferd_server.telemetry.logs import configure
configure({format!r})
log = logging.getLogger("inferd.access")
log.info("rpc", extra={{"request_id": "r1", "code": "OK", "long": "x" * 10_000, "key_id": "", "seconds": None}})
def fail(prompt):
    raise ValueError("boom")
try:
    fail("private " + "text")
except ValueError:
    log.exception("failed")
logging.getLogger("other").info("not shown")
"""


def _run(log_format: str) -> list[str]:
    program = PROGRAM.format(format=log_format)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def test_json_lines_carry_the_fields_of_a_record_and_cut_long_values() -> None:
    first, second = (json.loads(line) for line in _run("json"))
    assert first["event"] == "rpc"
    assert first["request_id"] == "r1"
    assert first["logger"] == "inferd.access"
    assert (first["key_id"], first["seconds"]) == ("", None)
    assert len(first["long"]) == 2001
    assert "ValueError: boom" in second["exception"]


def test_console_lines_name_the_fields() -> None:
    line = _run("console")[0]
    assert "request_id=r1" in line
    assert not any(field in line for field in ("key_id", "seconds"))  # empty: left out for people


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_libraries_are_quiet_below_warning(log_format: str) -> None:
    assert not any("not shown" in line for line in _run(log_format))


def test_configuring_twice_keeps_one_handler() -> None:
    from inferd_server.telemetry.logs import configure

    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        configure()
        configure("json")
        assert len(root.handlers) == 1
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def test_a_traceback_tells_no_local_variables() -> None:
    for log_format in ("console", "json"):
        lines = _run(log_format)
        assert "ValueError: boom" in "".join(lines)
        assert "private text" not in "".join(lines)


QUOTING = """
import asyncio, logging
from inferd_server.telemetry.logs import configure
configure({format!r})
def tell(name):
    try:
        try:
            raise KeyError("private text")
        except KeyError:
            raise ValueError("broke on 'private text'")
    except ValueError:
        logging.getLogger(name).exception("failed")
tell("inferd.rpc")
tell("some.library")
async def leave_behind():
    async def fail():
        raise ValueError("private text")
    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
    asyncio.get_running_loop().call_soon(lambda text: 1 / 0, "private text")
    await asyncio.sleep(0)
asyncio.run(leave_behind())
"""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_an_exception_that_may_quote_a_caller_is_told_by_its_types_and_places(log_format: str) -> None:
    program = QUOTING.format(format=log_format)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "private text" not in done.stderr
    assert done.stderr.count("builtins.ValueError") == 3
    assert done.stderr.count("builtins.KeyError") == 2
    assert "builtins.ZeroDivisionError" in done.stderr
    assert "in tell" in done.stderr
    assert "never retrieved" in done.stderr


HOSTILE = """
import logging
from inferd_server.telemetry.logs import configure
configure({format!r})
log = logging.getLogger("inferd.hostile")
fake = "x\\n2026-01-01T00:00:00Z [info] forged line \\r\\x1b[2J \\u202e"
log.info("value " + fake, extra={{"field": fake, "object": [fake]}})
log.error("long %s", "y" * 102_400)
try:
    raise ValueError(fake + "z" * 102_400)
except ValueError:
    log.exception("failed")
import warnings
warnings.warn("a warning " + fake)
"""


def _run_hostile(log_format: str) -> list[str]:
    program = HOSTILE.format(format=log_format)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return done.stderr.decode().split("\n")[:-1]


def test_no_text_can_forge_a_line_or_move_the_cursor() -> None:
    for log_format in ("console", "json"):
        lines = _run_hostile(log_format)
        assert not [line for line in lines if line.startswith("2026-01-01")]
        assert all(line.isprintable() for line in lines)
        if log_format == "json":
            assert [json.loads(line)["level"] for line in lines] == ["info", "error", "error", "warning"]
            assert "\n2026-01-01T00:00:00Z [info] forged line" in json.loads(lines[0])["field"]
        else:
            assert "\\n2026-01-01T00:00:00Z [info] forged" in lines[0]


def test_no_text_makes_a_line_without_end() -> None:
    for log_format in ("console", "json"):
        lines = _run_hostile(log_format)
        assert sum(map(len, lines)) < 40_000
        assert "ValueError" in "".join(lines)
