"""What may change while the server runs: its models and limits at a hangup, its keys and certificate with their
files."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence

from inferd_server.config import (
    Config,
    ConfigError,
    IdentityWatch,
    entries,
    file_stamp,
    look_again,
    read_keys,
    reload_config,
)
from inferd_server.core.access import Key
from inferd_server.core.model import CheckedFiles, ModelEntry

from .background import Background
from .rooms import Rooms

log = logging.getLogger("inferd.app")

CERTIFICATE_SECONDS = 1.0
"""How often the certificate's files are looked at."""
KEYS_SECONDS = 1.0
"""How often the keys file is looked at."""


class Reloads:
    """Holds the configuration that counts now; one writer, one reload after the other."""

    def __init__(self, config: Config, rooms: Rooms, background: Background) -> None:
        self._config = config
        self._rooms = rooms
        self._background = background
        self._asked = asyncio.Event()
        self._are_keys_to_be_reloaded = False
        self._is_all_to_be_reloaded = False
        rooms.loader.look_again = self._look_again

    def ask(self) -> None:
        """Have the whole configuration read again, soon."""
        self._is_all_to_be_reloaded = True
        self._asked.set()

    def begin(self) -> None:
        """Watch, and carry out what is asked for."""
        self._background.begin(self._reload_on_request())
        self._background.begin(self._watch_certificate())
        self._background.begin(self._watch_keys())

    def _look_again(self, entry: ModelEntry) -> CheckedFiles:
        return look_again(self._config, entry)

    async def _watch_certificate(self) -> None:
        while self._rooms.certificate is not None:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            await self._look_at_certificate(self._rooms.certificate)

    async def _look_at_certificate(self, certificate: IdentityWatch) -> None:
        identity = await asyncio.to_thread(certificate.look)
        if identity is not None:
            self._rooms.server.present(identity)
            log.info("certificate replaced; open connections keep the old one")

    async def _watch_keys(self) -> None:
        path = self._config.keys_path
        if path is None:
            return
        seen = self._config.keys_stamp  # of before it was read: it may have changed while we started
        while True:
            await asyncio.sleep(KEYS_SECONDS)
            stamp = await asyncio.to_thread(file_stamp, path)
            if stamp != seen:
                seen = stamp
                self._are_keys_to_be_reloaded = True
                self._asked.set()

    async def _reload_on_request(self) -> None:
        """One reload after the other, so that no older keys replace newer ones; several requests during one are one
        more."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            # Keys that have changed count even where the rest of a configuration is refused.
            if self._are_keys_to_be_reloaded:
                self._are_keys_to_be_reloaded = False
                await self._attempt(self._reload_keys())
            if self._is_all_to_be_reloaded:
                self._is_all_to_be_reloaded = False
                await self._attempt(self._reload())

    async def _attempt(self, reload: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(reload)
        task.add_done_callback(self._background.settle)
        await asyncio.wait([task])

    async def _reload_keys(self) -> None:
        """Read the keys file again and apply it, or change nothing and say why."""
        path = self._config.keys_path
        assert path is not None, "only a keys file is watched"
        try:
            keys = await asyncio.to_thread(read_keys, path, self._config.request_overrides)
        except ConfigError as error:
            _log_refusal("keys", error)
            return
        self._apply_keys(keys)

    def _apply_keys(self, keys: Sequence[Key]) -> None:
        self._rooms.callers.replace_keys(keys)
        self._rooms.server.end_revoked_watches()
        log.info("keys reloaded", extra={"keys": len(keys)})

    async def _reload(self) -> None:
        """Read the configuration again and apply it as one transaction, or change nothing and say why."""
        try:
            fresh = await asyncio.to_thread(reload_config, self._config)
        except ConfigError as error:
            _log_refusal("configuration", error)
            return
        self._rooms.callers.limit(fresh.caller_limits)
        if fresh.keys is not None:
            self._apply_keys(fresh.keys)
        before = {entry.name: entry for entry in entries(self._config)}
        self._config = fresh
        if self._rooms.certificate is not None:
            await self._look_at_certificate(self._rooms.certificate)
        self._rooms.limit_work(fresh)
        await self._replace_models(before, entries(fresh))

    async def _replace_models(self, before: dict[str, ModelEntry], fresh: Sequence[ModelEntry]) -> None:
        await self._rooms.registry.replace_entries(fresh)
        for entry in fresh:
            if before.get(entry.name) != entry:
                self._rooms.forget_files(entry.name)
        removed = before.keys() - {entry.name for entry in fresh}
        for name in removed:
            self._rooms.forget_files(name)
        log.info("configuration reloaded", extra={"models": len(fresh), "removed": len(removed)})
        # Not those that were to be preloaded before: what an operator unloaded stays unloaded.
        preloaded = {entry.name for entry in before.values() if entry.preload}
        names = {entry.name for entry in fresh if entry.name not in preloaded}
        self._background.begin(self._rooms.registry.preload(names))


def _log_refusal(what: str, error: ConfigError) -> None:
    for problem in error.problems:
        log.error("%s: %s", what, problem)
    log.error("%s refused; nothing changed", what, extra={"problems": len(error.problems)})
