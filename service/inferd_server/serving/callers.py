"""Who asks: keys, and the callers that they stand for.

A caller lives as long as its key's id is in the keys file, whatever else changes there: a reload changes what it may
do from now on, and takes back nothing of what it used.

Keys are looked up by their SHA-256. They are random (`inferd keys create` draws 256 bits), so no list of likely keys
can be tried against a stolen file, and a slow hash would only slow every request down. What the time of a lookup tells
is about digests, and nobody can choose a key by the first bytes of its digest further than by guessing; the digest
found is compared in constant time all the same.
"""

import hashlib
import hmac
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from inferd_server.core.access import FULL_ACCESS, NO_ACCESS, NO_LIMITS, Access, Key, Limits
from inferd_server.core.errors import InferdError, credentials_invalid
from inferd_server.core.model import Clock

from .meter import SERVER, Meter


class Caller:
    """Somebody who asks, as requests see it.

    Attributes:
        id: the key's id; "" where no key was asked for.
        access: what it may do now.
        cache_identity: prefix caches are shared by callers of the same identity alone.
    """

    def __init__(self, caller_id: str, access: Access, server: Meter, clock: Clock, cache_identity: str = "") -> None:
        self.id = caller_id
        self.cache_identity = cache_identity
        self._own = Meter(caller_id)
        self._meters = (self._own, server)
        self._clock = clock
        self.permit(access)

    def permit(self, access: Access) -> None:
        """From now on it may do this."""
        self.access = access
        self._own.limits = access.limits

    @contextmanager
    def calling(self) -> Iterator[None]:
        """One inference RPC, from its start to its end.

        Raises:
            InferdError: RATE_LIMITED; then nothing was taken.
        """
        now = self._clock()
        _raise_first(meter.call_refusal(now) for meter in self._meters)
        for meter in self._meters:
            meter.begin(now)
        try:
            yield
        finally:
            for meter in self._meters:
                meter.end()

    def take_prompt(self, tokens: int) -> None:
        """A prompt of so many tokens is taken.

        Raises:
            InferdError: RATE_LIMITED; then nothing was taken.
        """
        now = self._clock()
        _raise_first(meter.tokens_refusal(tokens, now) for meter in self._meters)
        self._charge(tokens, now)

    def charge_output(self, tokens: int) -> None:
        """So many tokens were made. Never refused: what runs may finish, and the next prompt waits the longer."""
        self._charge(tokens, self._clock())

    def _charge(self, tokens: int, now: float) -> None:
        for meter in self._meters:
            meter.charge(tokens, now)

    @property
    def max_prompt_tokens(self) -> int | None:
        """Most tokens of one prompt, by its own limit or the server's."""
        return _least(meter.limits.max_prompt_tokens for meter in self._meters)

    @property
    def max_output_tokens(self) -> int | None:
        """Most tokens of one output."""
        return _least(meter.limits.max_output_tokens for meter in self._meters)


class Callers:
    """Every caller that there may be. With `keys` None nobody needs a key, and all callers are `anonymous`.

    Attributes:
        needs_key: whether anybody needs one.
        anonymous: who asks without a key.
    """

    def __init__(
        self,
        keys: Sequence[Key] | None = None,
        limits: Limits = NO_LIMITS,
        *,
        shares_prefix_cache: bool = False,
        nobody: Access = NO_ACCESS,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
    ) -> None:
        """`nobody`: what is open without a key where one is needed."""
        self.needs_key = keys is not None
        self._server = Meter(SERVER, limits)
        self._shares_prefix_cache = shares_prefix_cache
        self._clock = clock
        self._wall_clock = wall_clock
        self._by_digest: dict[bytes, Key] = {}
        self._by_id: dict[str, Key] = {}
        self._callers: dict[str, Caller] = {}
        self.anonymous = Caller("", nobody if self.needs_key else FULL_ACCESS, self._server, clock)
        self.replace_keys(keys or ())

    def limit(self, limits: Limits) -> None:
        """Bound all callers together by this from now on."""
        self._server.limits = limits

    def replace_keys(self, keys: Sequence[Key]) -> None:
        """Only these count from now on (ids and digests are unique); callers go on by their id."""
        self._by_digest = {key.digest: key for key in keys}
        self._by_id = {key.id: key for key in keys}
        before, self._callers = self._callers, {}
        for key in keys:
            caller = before.pop(key.id, None)
            if caller is None:
                identity = "" if self._shares_prefix_cache else key.id
                caller = Caller(key.id, key.access, self._server, self._clock, identity)
            caller.permit(key.access)
            self._callers[key.id] = caller
        for gone in before.values():
            gone.permit(NO_ACCESS)

    def authenticate(self, secret: str) -> Caller:
        """The caller whose key this is.

        Raises:
            InferdError: CREDENTIALS_INVALID: unknown, disabled or expired; which, is not told.
        """
        digest = hashlib.sha256(secret.encode(errors="surrogatepass")).digest()
        key = self._by_digest.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest) or not key.is_valid(self._wall_clock()):
            raise credentials_invalid()
        return self._callers[key.id]

    def is_valid(self, caller: Caller) -> bool:
        """Whether it could still authenticate. The anonymous caller always can."""
        if caller is self.anonymous:
            return True
        key = self._by_id.get(caller.id)
        return key is not None and key.is_valid(self._wall_clock())


def _raise_first(refusals: Iterator[InferdError | None]) -> None:
    for refusal in refusals:
        if refusal is not None:
            raise refusal


def _least(limits: Iterator[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
