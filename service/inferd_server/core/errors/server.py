"""Errors about the server: it starts, is about to stop, or has a bug."""

from .error import InferdError, Reason


def server_starting() -> InferdError:
    """Preloads are still running."""
    return InferdError(Reason.SERVER_STARTING, "the server is starting", retry_after_seconds=1.0)


def server_draining() -> InferdError:
    """The server takes no new work: it is about to stop."""
    return InferdError(Reason.SERVER_DRAINING, "the server is draining", retry_after_seconds=5.0)


def server_shutdown() -> InferdError:
    """The drain is over; the request was cut."""
    return InferdError(Reason.SERVER_SHUTDOWN, "the server stopped before the request ended", retry_after_seconds=5.0)


def internal_error() -> InferdError:
    """An exception of ours that nobody expected; its text stays in the log."""
    return InferdError(Reason.ENGINE_FAILED, "internal error; the server's log has the cause")
