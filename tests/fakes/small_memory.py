"""A real server with little memory for requests: `python -m fakes.small_memory serve --config FILE`.

INFERD_TEST_WORK_LIMIT is its limit in bytes. On SIGUSR1 it logs the most that was allocated since it was ready (beside
what was allocated then).
"""

import logging
import os
import signal
import sys
from functools import partial
from typing import Any

from inferd_server import app

log = logging.getLogger("inferd.test")


class MeasuredApp(app.App):
    """Measures from `ready` on."""

    async def _preload(self) -> None:
        import mlx.core as mx

        await super()._preload()
        before = mx.get_active_memory()
        mx.reset_peak_memory()

        def tell(*_: Any) -> None:
            log.warning("memory", extra={"peak_nbytes": mx.get_peak_memory() - before})

        signal.signal(signal.SIGUSR1, tell)
        log.warning("measuring")


def main() -> None:
    from inferd_client.cli import main as inferd

    app.app.App = MeasuredApp  # type: ignore[misc]
    limit = int(os.environ["INFERD_TEST_WORK_LIMIT"])
    app.serve = partial(app.serve, work_limit=limit)  # type: ignore[assignment]
    sys.argv[0] = "inferd"
    inferd()


if __name__ == "__main__":
    main()
