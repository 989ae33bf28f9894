"""Log lines whose reader does not read, and that can't be written, hold nobody up."""

import logging
import os
import threading
import time
from collections.abc import Iterator

import pytest

from inferd_server.telemetry.log_writer import MAX_WAITING_NBYTES, LogWriter


class Pipe:
    """A logger that writes into a pipe."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.writer = LogWriter(self.write_end)
        self.log = logging.Logger("piped")
        self.log.addHandler(self.writer)
        self.reader: threading.Thread | None = None
        self.text = b""

    def read(self) -> None:
        """Read from now on."""

        def run() -> None:
            while chunk := os.read(self.read_end, 65536):
                self.text += chunk

        self.reader = threading.Thread(target=run)
        self.reader.start()

    def close(self) -> None:
        if self.reader is None:
            self.read()
        self.writer.close()
        assert self.writer._thread is None or not self.writer._thread.join(10)
        os.close(self.write_end)
        assert self.reader is not None
        self.reader.join(10)
        os.close(self.read_end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_lines_come_whole_and_in_order() -> None:
    pipe = Pipe()
    pipe.read()
    for number in range(5000):
        pipe.log.info("line %d", number)
    pipe.writer.flush()
    pipe.close()
    assert pipe.text.decode().splitlines() == [f"line {number}" for number in range(5000)]


def test_a_reader_that_does_not_read_blocks_nobody_and_what_is_lost_is_told_later(pipe: Pipe) -> None:
    began = time.monotonic()
    for number in range(2 * MAX_WAITING_NBYTES // 1000):
        pipe.log.info("%d %s", number, "x" * 1000)
    pipe.writer.flush()
    assert time.monotonic() - began < 20
    lost = pipe.writer.lost
    assert lost > 0
    assert pipe.writer._waiting_nbytes <= MAX_WAITING_NBYTES
    pipe.read()
    deadline = time.monotonic() + 20
    while b"log lines were lost" not in pipe.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert f"{lost} log lines were lost" in pipe.text.decode()
    numbers = [int(line.split()[0]) for line in pipe.text.decode().splitlines() if line.endswith("x")]
    assert numbers == list(range(len(numbers)))


def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(full)
    log = logging.Logger("full")
    log.addHandler(writer)
    for _ in range(10):
        log.error("lost")
        writer.flush()
    assert writer.lost == 10
    writer.close()
    os.close(full)


def test_a_closed_reader_loses_lines_and_nothing_else() -> None:
    pipe = Pipe()
    os.close(pipe.read_end)
    pipe.log.error("lost")
    pipe.writer.flush()
    assert pipe.writer.lost == 1
    pipe.writer.close()
    os.close(pipe.write_end)


def test_a_record_that_can_t_be_formatted_is_lost_alone(pipe: Pipe) -> None:
    pipe.read()
    pipe.log.info("%d", "no number")
    pipe.log.info("fine \ud800")
    pipe.writer.flush()
    assert pipe.writer.lost == 1


def test_a_descriptor_that_does_not_block_gets_everything(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_end, False)
    for number in range(1000):
        pipe.log.info("%d %s", number, "x" * 1000)
    pipe.read()
    pipe.writer.flush()
    deadline = time.monotonic() + 20
    while pipe.text.count(b"\n") < 1000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert pipe.writer.lost == 0
