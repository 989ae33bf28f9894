"""The size of pieces of prefill beside running streams, on a virtual clock and a simulated device."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from inferd_server.engine.pacing import SMALLEST_PIECE, Pacing

STEP_SIZE = 512


@dataclass
class Device:
    """A model call costs its fixed part, and every prefilled token its own; `noise` may lengthen or shorten it."""

    decode_seconds: float
    call_seconds: float
    token_seconds: float
    now: float = 0.0
    noise: Callable[[], float] = lambda: 1.0

    def clock(self) -> float:
        return self.now

    def decode(self, pacing: Pacing) -> None:
        self.now += self.decode_seconds * self.noise()
        pacing.note_read()

    def decode_beside_prefill(self, pacing: Pacing, tokens: int | None = None) -> float:
        """One piece as large as wished (or as given) and one decode step; the gap."""
        tokens = tokens or pacing.piece_tokens(is_decoding=True)
        pacing.note_prefill(tokens)
        gap = (self.call_seconds + tokens * self.token_seconds + self.decode_seconds) * self.noise()
        self.now += gap
        pacing.note_read()
        return gap


DEVICES = {
    "a small model": Device(0.002, 0.002, 0.000_05),
    "a mid model": Device(0.020, 0.015, 0.000_4),
    "a large model": Device(0.030, 0.030, 0.002),
    "a slow device": Device(0.200, 0.150, 0.003),
}


def decoding(device: Device, target: float | None = None) -> Pacing:
    device.now = 0.0
    pacing = Pacing(STEP_SIZE, target, device.clock)
    for _ in range(20):
        device.decode(pacing)
    return pacing


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
@pytest.mark.parametrize("target", [None, 0.05, 0.3, 1.0])
def test_gaps_settle_at_the_target_or_at_the_bounds_of_a_piece(device: Device, target: float | None) -> None:
    pacing = decoding(device, target)
    gaps = [device.decode_beside_prefill(pacing) for _ in range(30)]
    wished = max(0.1, 2 * device.decode_seconds) if target is None else target
    assert pacing.target_gap_seconds == pytest.approx(wished)
    fixed = device.decode_seconds + device.call_seconds
    ideal = min(max((wished - fixed) / device.token_seconds, SMALLEST_PIECE), STEP_SIZE)
    assert pacing.piece_tokens(is_decoding=True) == pytest.approx(ideal, rel=0.1)
    assert max(gaps) <= 1.3 * max(wished, fixed + SMALLEST_PIECE * device.token_seconds)


def test_nothing_bounds_a_piece_while_nothing_decodes() -> None:
    pacing = decoding(DEVICES["a large model"])
    assert pacing.piece_tokens(is_decoding=False) == STEP_SIZE
    assert pacing.piece_tokens(is_decoding=True) == SMALLEST_PIECE
    assert Pacing(4, None, lambda: 0.0).piece_tokens(is_decoding=True) == 4


def test_what_a_prompt_took_alone_tells_how_much_fits_beside_others() -> None:
    device = Device(0.02, 0.01, 0.0004)
    pacing = Pacing(STEP_SIZE, None, device.clock)
    device.now += 1000.0
    pacing.resume()  # the idle time is no gap
    for _ in range(3):
        device.now += STEP_SIZE * device.token_seconds
        pacing.note_prefill(STEP_SIZE)
    device.decode_beside_prefill(pacing, tokens=STEP_SIZE)
    for _ in range(10):
        device.decode(pacing)
    assert device.decode_beside_prefill(pacing) == pytest.approx(0.1, rel=0.2)


def test_pieces_shrink_as_a_context_grows_and_grow_again_with_the_next_prompt() -> None:
    device = Device(0.02, 0.01, 0.0002)
    pacing = decoding(device)
    gaps, sizes = [], []
    for prompt in range(2):
        for _ in range(60):
            device.token_seconds = 0.0002 + 0.0004 * (_ / 60)
            sizes.append(pacing.piece_tokens(is_decoding=True))
            gaps.append(device.decode_beside_prefill(pacing))
        assert sizes[-1] < max(sizes[60 * prompt :]) / 2
    assert max(gaps) < 0.13


def test_a_hiccup_of_the_machine_is_forgotten_in_a_few_pieces() -> None:
    device = Device(0.02, 0.01, 0.0004)
    pacing = decoding(device)
    for _ in range(10):
        device.decode_beside_prefill(pacing)
    before = pacing.piece_tokens(is_decoding=True)
    device.now += 5.0
    device.decode_beside_prefill(pacing)
    assert pacing.piece_tokens(is_decoding=True) > before / 4
    for _ in range(6):
        device.decode_beside_prefill(pacing)
    assert pacing.piece_tokens(is_decoding=True) == pytest.approx(before, rel=0.1)
    device.now += 5.0
    device.decode(pacing)
    assert pacing.target_gap_seconds == pytest.approx(0.1)


def test_small_prompts_do_not_make_large_pieces_smaller() -> None:
    device = Device(0.02, 0.02, 0.0004)
    pacing = decoding(device)
    for _ in range(10):
        device.decode_beside_prefill(pacing)
    before = pacing.piece_tokens(is_decoding=True)
    for _ in range(10):
        device.decode_beside_prefill(pacing, tokens=5)
    assert pacing.piece_tokens(is_decoding=True) == before


def test_gaps_stay_near_the_target_on_a_noisy_machine() -> None:
    source = random.Random(1)
    device = Device(0.02, 0.01, 0.0004, noise=lambda: source.choice([0.7, 1.0, 1.0, 1.0, 1.6]))
    pacing = decoding(device)
    gaps = sorted(device.decode_beside_prefill(pacing) for _ in range(500))
    assert gaps[250] < 0.12
    assert gaps[495] < 0.25


def test_a_small_prompt_that_takes_too_long_does_make_pieces_smaller() -> None:
    device = Device(0.02, 0.01, 0.0004)
    pacing = decoding(device)
    for _ in range(10):
        device.decode_beside_prefill(pacing)
    before = pacing.piece_tokens(is_decoding=True)
    device.token_seconds = 0.02
    device.decode_beside_prefill(pacing, tokens=5)
    assert pacing.piece_tokens(is_decoding=True) < before / 2


def test_gaps_reach_the_target_after_rows_left_and_decode_got_faster() -> None:
    device = Device(0.09, 0.01, 0.0002)
    pacing = decoding(device, target=0.1)
    device.decode_seconds = 0.01
    gaps = [device.decode_beside_prefill(pacing) for _ in range(30)]
    assert max(gaps) < 0.11
    assert pacing.piece_tokens(is_decoding=True) > SMALLEST_PIECE


def test_a_gap_in_which_pictures_were_looked_at_measures_nothing() -> None:
    device = Device(decode_seconds=0.01, call_seconds=0.0, token_seconds=0.001)
    pacing = Pacing(STEP_SIZE, None, device.clock)
    for _ in range(20):
        device.decode_beside_prefill(pacing)
    settled = pacing.piece_tokens(is_decoding=True)
    device.now += 30.0
    pacing.note_pictures()
    pacing.note_prefill(100)
    device.decode(pacing)
    assert pacing.piece_tokens(is_decoding=True) == settled
