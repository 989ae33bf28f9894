"""How much longer than any other a step may take for its prefill before the engine counts as stuck. Pure.

While nothing decodes, one step may prefill as much as `prefill_step_size` tokens, and a slow device may rightly need
longer for that than the watchdog waits for a step. So each step gets time for what it may prefill, at a multiple of
what prefill was measured to take.
"""

from collections.abc import Collection

PATIENCE = 4.0
"""A piece may take so many times what the measured ones took: deep in a long context it does take longer."""
UNMEASURED_TOKEN_SECONDS = 0.05
"""What a token is taken to need before the first measurement: a large model on a slow CPU."""
UNMEASURED_MEDIA_NBYTE_SECONDS = 1e-6
"""The same of a byte that looking at media takes (a picture of a million pixels: about a gigabyte)."""
MEASURED_TOKENS = 4096
"""About so many of the last tokens make the measurement."""


class PrefillAllowance:
    """Written by the thread that steps; `seconds` may be read by any.

    A piece may be computed in the step that launches it or in the next, which waits for it: both have its time, and
    the time of both is its measurement, other sequences' decoding included.

    Args:
        most_tokens: of one piece of prefill.
    """

    def __init__(self, most_tokens: int) -> None:
        self.seconds = 0.0
        self._most_tokens = most_tokens
        self._last_piece = 0
        self._measured_tokens = 0.0
        self._measured_seconds = 0.0
        self._last_media = 0
        self._measured_media_nbytes = 0
        self._measured_media_seconds = 0.0

    def begin(self, lengths: Collection[int], media_nbytes: int = 0) -> None:
        """A step begins. `lengths`: context tokens of each sequence whose first token has not come; `media_nbytes`: the
        most that one of them brings."""
        piece = min(len(lengths) * max(lengths, default=0), self._most_tokens)  # a piece is padded to its longest
        prefill_seconds = max(piece, self._last_piece) * self._token_seconds
        media_seconds = max(media_nbytes, self._last_media) * self._media_nbyte_seconds
        self.seconds = PATIENCE * (prefill_seconds + media_seconds)

    def end(self, seconds: float, tokens: int, media_nbytes: int = 0) -> None:
        """The step has ended: it took so long, launched the prefill of so many tokens and looked at such media."""
        if media_nbytes or self._last_media:
            self._measured_media_seconds += seconds
            self._measured_media_nbytes += media_nbytes
        elif tokens or self._last_piece:
            self._measured_seconds += seconds
            self._measured_tokens += tokens
        if self._measured_tokens > MEASURED_TOKENS:
            self._measured_seconds /= 2
            self._measured_tokens /= 2
        self._last_piece, self._last_media = tokens, media_nbytes

    @property
    def _media_nbyte_seconds(self) -> float:
        if not self._measured_media_nbytes:
            return UNMEASURED_MEDIA_NBYTE_SECONDS
        return self._measured_media_seconds / self._measured_media_nbytes

    @property
    def _token_seconds(self) -> float:
        if not self._measured_tokens:
            return UNMEASURED_TOKEN_SECONDS
        return self._measured_seconds / self._measured_tokens
