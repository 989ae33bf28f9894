"""Which texts share a batch: bounded, little padding, and nobody starves."""

from hypothesis import given
from hypothesis import strategies as st

from inferd_server.engine.text_queue import QueuedText, TextQueue

BATCH_TOKENS = 64
Lengths = st.lists(st.integers(1, 100), min_size=1, max_size=30)


def texts(*lengths: int) -> list[tuple[int, tuple[int, ...]]]:
    return [(i, (7,) * length) for i, length in enumerate(lengths)]


def drain(queue: TextQueue) -> list[list[QueuedText]]:
    batches = []
    while queue._texts:
        batches.append(queue.next_batch())
    return batches


@given(st.lists(Lengths, min_size=1, max_size=5))
def test_every_text_comes_once_in_a_batch_that_is_bounded_and_at_least_half_full(requests: list[list[int]]) -> None:
    queue = TextQueue(BATCH_TOKENS)
    for uid, lengths in enumerate(requests):
        queue.add(uid, texts(*lengths))
    batches = drain(queue)
    found = [(text.uid, text.index) for batch in batches for text in batch]
    assert sorted(found) == [(uid, i) for uid, lengths in enumerate(requests) for i in range(len(lengths))]
    for batch in batches:
        lengths = [len(text.ids) for text in batch]
        assert len(batch) == 1 or len(batch) * max(lengths) <= BATCH_TOKENS
        assert 2 * min(lengths) > max(lengths) == lengths[0]


@given(st.lists(Lengths, min_size=2, max_size=5))
def test_each_request_has_its_turn_before_any_has_two(requests: list[list[int]]) -> None:
    queue = TextQueue(BATCH_TOKENS)
    for uid, lengths in enumerate(requests):
        queue.add(uid, texts(*lengths))
    begun = [batch[0].uid for batch in drain(queue)]
    for i, uid in enumerate(begun):
        later = begun[i + 1 :]
        if uid in later:
            between = later[: later.index(uid)]
            waiting = set(later) - {uid}
            assert waiting <= set(between)


def test_short_requests_ride_along_with_each_other() -> None:
    queue = TextQueue(BATCH_TOKENS)
    for uid in range(20):
        queue.add(uid, texts(6))
    assert [len(batch) for batch in drain(queue)] == [10, 10]


def test_a_removed_request_is_forgotten_and_others_stay() -> None:
    queue = TextQueue(BATCH_TOKENS)
    queue.add(1, texts(5, 6))
    queue.add(2, texts(5))
    queue.remove(1)
    queue.remove(1)
    assert [[text.uid for text in batch] for batch in drain(queue)] == [[2]]


def test_without_batching_each_text_goes_alone() -> None:
    queue = TextQueue(BATCH_TOKENS)
    queue.batches = False
    queue.add(1, texts(5, 5, 5))
    assert [len(batch) for batch in drain(queue)] == [1, 1, 1]
