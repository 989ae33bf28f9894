"""Which prefixes are found, what is evicted first, and that nothing is ever lost track of."""

import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from inferd_server.engine.prefix_tree import BLOCK_TOKENS, PrefixTree, encode


def put(tree: PrefixTree, tokens: list[int], *, identity: str = "", is_kept: bool = False) -> int:
    """Store a byte for each token, as an engine would; how many tokens' bytes were added."""
    data = encode(tokens)
    missing = tree.missing(identity, data)
    if not missing:
        return 0
    room = tree.make_room(len(tokens) - missing[0][0], identity, data)
    fitting = [(a, b) for a, b in missing if b - missing[0][0] <= room]
    tree.insert(identity, data, [(tuple(tokens[a:b]), b - a) for a, b in fitting])
    if is_kept:
        tree.keep(identity, data)
    return sum(b - a for a, b in fitting)


def found(tree: PrefixTree, tokens: list[int], identity: str = "") -> list[int]:
    """The tokens of the match, by what the blocks hold."""
    match = tree.find(identity, encode(tokens))
    whole = [token for block in match.blocks for token in block.content]
    return whole[: match.tokens]


def sequence(length: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(50_000) for _ in range(length)]


def test_any_beginning_of_a_stored_sequence_is_found() -> None:
    tree, tokens = PrefixTree(10_000), sequence(300)
    put(tree, tokens)
    for length in (1, 63, 64, 65, 128, 200, 299, 300):
        assert found(tree, [*tokens[:length], 99_999, *tokens[length + 1 :]]) == tokens[:length]
    assert found(tree, [99_999]) == []
    assert found(tree, []) == []


def test_sequences_share_what_they_have_in_common() -> None:
    tree, common = PrefixTree(10_000), sequence(256)
    assert put(tree, [*common, *sequence(64, 1)]) == 320
    assert put(tree, [*common, *sequence(64, 2)]) == 64
    assert put(tree, [*common, *sequence(64, 2)]) == 0
    assert put(tree, common[:130]) == 0
    assert tree.nbytes == 384


def test_a_longer_sequence_replaces_the_partial_block_it_begins_with() -> None:
    tree, tokens = PrefixTree(10_000), sequence(200)
    put(tree, tokens[:100])
    assert put(tree, tokens) == 136
    assert tree.nbytes == 200
    assert found(tree, tokens) == tokens


def test_the_least_recently_used_goes_first_and_ends_go_before_beginnings() -> None:
    tree = PrefixTree(256)
    first, second, third = (sequence(128, seed) for seed in (1, 2, 3))
    put(tree, first)
    put(tree, second)
    assert found(tree, first) == first
    put(tree, third[:64])
    assert found(tree, second) == second[:64]
    put(tree, third)
    assert (found(tree, second), found(tree, first), found(tree, third)) == (second[:64], first[:64], third)


def test_what_is_too_large_is_stored_as_far_as_it_fits() -> None:
    tree, tokens = PrefixTree(200), sequence(300)
    assert put(tree, tokens) == 192
    assert found(tree, tokens) == tokens[:192]
    assert put(tree, tokens) == 0
    assert tree.nbytes == 192


def test_kept_sequences_go_last() -> None:
    tree = PrefixTree(512)
    kept = sequence(192, 1)
    put(tree, kept, is_kept=True)
    for seed in range(2, 20):
        put(tree, sequence(256, seed))
        assert found(tree, kept) == kept
    tree.bound(192)
    assert found(tree, kept) == kept
    assert len(tree) == 3
    tree.bound(100)
    assert found(tree, kept) == kept[:64]


def test_kept_sequences_that_fill_everything_make_room_for_each_other_and_for_ordinary_ones() -> None:
    tree = PrefixTree(256)
    first, second, third = (sequence(128, seed) for seed in (1, 2, 3))
    put(tree, first, is_kept=True)
    put(tree, second, is_kept=True)
    assert put(tree, third) == 128
    assert (found(tree, first), found(tree, second)) == ([], second)


def test_identities_never_see_each_other_s() -> None:
    tree, tokens = PrefixTree(10_000), sequence(200)
    put(tree, tokens, identity="a")
    assert found(tree, tokens, "b") == []
    assert put(tree, tokens, identity="b") == 200
    assert found(tree, tokens, "a") == found(tree, tokens, "b") == tokens


def test_nothing_is_left_after_a_bound_of_nothing() -> None:
    tree = PrefixTree(10_000)
    for seed in range(5):
        put(tree, sequence(150, seed), identity=str(seed), is_kept=seed % 2 == 0)
    tree.bound(0)
    assert (len(tree), tree.nbytes, tree._roots) == (0, 0, {})


def test_a_lookup_of_sixteen_thousand_tokens_takes_less_than_a_millisecond() -> None:
    tree, tokens = PrefixTree(1 << 30), sequence(16_000)
    put(tree, tokens)
    for seed in range(40):
        put(tree, [*tokens[:15_990], *sequence(10, seed + 1)])
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        match = tree.find("", encode(tokens))
        times.append(time.perf_counter() - begin)
    assert match.tokens == 16_000
    assert min(times) < 0.001


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "keep", "find", "bound"]),
            st.lists(st.integers(0, 2), min_size=1, max_size=5),
            st.integers(0, 63),
            st.sampled_from(["", "other"]),
        ),
        max_size=40,
    )
)
def test_whatever_happens_the_books_are_right(steps: list[tuple[str, list[int], int, str]]) -> None:
    """Sequences of few different blocks, so that they share much."""
    tree = PrefixTree(900)
    bound = 900
    for verb, blocks, rest, identity in steps:
        tokens = [token for block in blocks for token in [block] * BLOCK_TOKENS] + [blocks[0]] * rest
        if verb == "bound":
            bound = 100 * len(blocks) + 400
            tree.bound(bound)
        elif verb == "find":
            match = found(tree, tokens, identity)
            assert match == tokens[: len(match)]
        else:
            put(tree, tokens, identity=identity, is_kept=verb == "keep")
            if bound >= len(tokens):
                assert found(tree, tokens, identity) == tokens
        every = [*tree._ordinary, *tree._kept]
        assert tree.nbytes == sum(block.nbytes for block in every) <= bound
        for block in every:
            assert block.parent is not None
            assert block.parent.children[block.key] is block
            assert block.parent.parent is None or block.parent in every
            assert block.is_kept <= (block.parent.is_kept or block.parent.parent is None)
