"""How many inference RPCs are taken: max_concurrent and requests_per_minute, of the caller and of all together.

Every one counts that has a valid key, whatever becomes of it: a bad request costs time too. Nothing else counts:
health, reflection, looking at models and cancelling are open to a caller whose limits are used up.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .call import Call

LIMITED = frozenset(
    f"/inferd.v1.InferenceService/{name}" for name in ("Generate", "StreamGenerate", "Embed", "Rerank", "Tokenize")
)


@asynccontextmanager
async def limiting(call: Call) -> AsyncIterator[None]:
    """The layer that refuses with RATE_LIMITED."""
    if call.method not in LIMITED:
        yield
        return
    assert call.caller is not None, "authentication comes first"
    with call.caller.calling():
        yield
