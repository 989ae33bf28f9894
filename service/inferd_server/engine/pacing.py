"""How much prefill fits between two tokens of the running streams. Pure: the clock is passed in.

Running streams get a token each time the engine reads one from the device; whatever was prefilled in between lengthens
that gap. So each gap is measured as a whole, and the next piece of prefill is made as large as lets the gap come out at
the target: with few rows on a fast device, large; beside many rows, or deep in a long prompt, small.
"""

from collections.abc import Callable

SMALLEST_PIECE = 64
"""Tokens. Smaller pieces hardly take less time: a model call costs about as much as a decode step. (With 16, SmolLM2
gave 16 short prompts that came together 58 tokens/s and their first token after 2.7 s; with 64, 86 tokens/s and 1.4 s.)
"""
LEAST_TARGET_SECONDS = 0.1
"""Default target of a fast model: about what readers notice."""
DECODE_STEPS_PER_GAP = 2.0
"""Default target of a slow one, in decode steps: at least half of the time is left to prefill."""
MOST_SURPRISE = 4.0
"""A measurement counts as at most so many times what was expected: one hiccup of the machine is not a trend."""


class Pacing:
    """The size of the next piece of prefill.

    Args:
        most_tokens: a piece's size while nothing decodes, and the most it may have at all.
        target_gap_seconds: wished between two tokens of a stream; None: 100 ms, or two decode steps where that is more.
        clock: seconds.
    """

    def __init__(self, most_tokens: int, target_gap_seconds: float | None, clock: Callable[[], float]) -> None:
        self._most_tokens = most_tokens
        self._least_tokens = min(SMALLEST_PIECE, most_tokens)
        self._stated_target = target_gap_seconds
        self._clock = clock
        self._gap_began = clock()
        self._prefilled = 0
        self._has_pictures = False
        self._decode_seconds = 0.0
        self._token_seconds = 0.0  # of one prefilled token; 0 until measured

    @property
    def target_gap_seconds(self) -> float:
        """The gap aimed at."""
        if self._stated_target is not None:
            return self._stated_target
        return max(LEAST_TARGET_SECONDS, DECODE_STEPS_PER_GAP * self._decode_seconds)

    def piece_tokens(self, is_decoding: bool) -> int:
        """Most tokens that the next piece of prefill should have.

        Args:
            is_decoding: whether streams wait for their next token meanwhile.
        """
        if not is_decoding:
            return self._most_tokens
        if not self._token_seconds:
            return self._least_tokens
        room = (self.target_gap_seconds - self._decode_seconds) / self._token_seconds
        return int(min(max(room, self._least_tokens), self._most_tokens))

    @property
    def look_seconds(self) -> float:
        """For how long pictures may be looked at between two decode steps."""
        return max(0.0, self.target_gap_seconds - self._decode_seconds)

    def resume(self) -> None:
        """Work begins after there was none: the time without is no gap."""
        self._gap_began, self._prefilled = self._clock(), 0

    def note_prefill(self, tokens: int) -> None:
        """A piece of prefill was launched."""
        self._prefilled += tokens

    def note_pictures(self) -> None:
        """Pictures were looked at: the gap they fall in measures neither decoding nor prefill."""
        self._has_pictures = True

    def note_read(self) -> None:
        """A decode step's tokens were read: the gap since the last time, or since work began, is over."""
        now = self._clock()
        gap, tokens = now - self._gap_began, self._prefilled
        self._gap_began, self._prefilled = now, 0
        if self._has_pictures:
            self._has_pictures = False
            return
        if not tokens:
            self._decode_seconds = _blend(self._decode_seconds, gap, weight=0.2)
            return
        # A much smaller piece than would fit says little about a full one: a call has its fixed cost.
        if 2 * tokens >= self.piece_tokens(is_decoding=True) or gap > self.target_gap_seconds:
            # What a stale idea of the decode step puts wrong here, it puts right in `piece_tokens`: the whole counts.
            spent = max(gap - self._decode_seconds, gap / MOST_SURPRISE)
            self._token_seconds = _blend(self._token_seconds, spent / tokens, weight=0.5)


def _blend(average: float, sample: float, weight: float) -> float:
    """The moving average with one more sample; the first is taken as it is."""
    if not average:
        return sample
    return average + weight * (min(max(sample, average / MOST_SURPRISE), average * MOST_SURPRISE) - average)
