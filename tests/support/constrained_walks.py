"""Outputs drawn at random under a matcher's mask: a model that knows nothing but its constraint."""

import numpy as np

from inferd_server.core.constraints import Matcher
from inferd_server.text.tokenizer import Tokenizer

CLOSING = '"}],'


def allowed_ids(matcher: Matcher) -> list[int]:
    bits = np.unpackbits(np.frombuffer(matcher.allowed(), dtype=np.uint8), bitorder="little")
    return [int(token_id) for token_id in np.flatnonzero(bits)]


def walk(matcher: Matcher, tokenizer: Tokenizer, seed: int, *, most: int = 8000) -> tuple[list[int], bool]:
    """(ids without the end, whether the output was completed). Closes what is open in half of the cases, since a
    uniform draw would hardly ever end a string."""
    random = np.random.default_rng(seed)
    closing = frozenset(tokenizer.encode(character)[0] for character in CLOSING)
    output: list[int] = []
    while len(output) < most:
        allowed = allowed_ids(matcher)
        assert allowed, "a matcher always allows something"
        likely = [i for i in allowed if i in tokenizer.end_ids] or [i for i in allowed if i in closing]
        pool = likely if likely and random.random() < 0.5 else allowed
        token_id = pool[random.integers(len(pool))]
        if token_id in tokenizer.end_ids:
            return output, True
        matcher.accept([token_id])
        output.append(token_id)
    return output, False


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = tokenizer.detokenizer(keeps_space=True)
    return detokenizer.add(ids) + detokenizer.flush()
