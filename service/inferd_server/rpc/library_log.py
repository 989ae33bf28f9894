"""What grpc itself logs: never what a caller sent."""

import logging

_LOGGER = "grpc._cython.cygrpc"
_REPEATS_A_HEADER = "Invalid encoding on"


def keep_headers_out_of_the_log() -> None:
    """grpc logs a header that is no UTF-8 with all its bytes and a traceback, and then goes on: a key with one stray
    byte would stand in the log. Idempotent."""
    logging.getLogger(_LOGGER).addFilter(_repeats_no_header)  # a filter that is there already is not added again


def _repeats_no_header(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_REPEATS_A_HEADER)
