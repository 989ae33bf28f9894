"""How a request's output is taken apart: by its model's markers, and by what its chat offers."""

import asyncio

from inferd_server.core.generation import ChatPrompt, GenerationRequest
from inferd_server.core.model import ModelEntry
from inferd_server.engine.tool_parsers import open_tool_parser
from inferd_server.text.calls import CallReader
from inferd_server.text.families import REASONING, TOOL_CALLS, ReasoningMarkers
from inferd_server.text.markup import Splitter


async def splitter_for(request: GenerationRequest, entry: ModelEntry, rendered: str) -> Splitter | None:
    """What takes the output apart; None where all of it is the answer.

    So it is for raw prompts, which are answered as they are put, and under a constraint, which speaks of the whole
    output. Tool calls are looked for only where the chat offers tools.

    Args:
        rendered: the prompt's text; where it ends with the marker, the output begins in the reasoning.
    """
    chat = request.prompt
    if not isinstance(chat, ChatPrompt) or request.output.constraint is not None:
        return None
    reasoning = REASONING.get(entry.reasoning_parser)
    in_reasoning = reasoning is not None and _begins_reasoning(rendered, reasoning)
    if chat.tools and entry.tool_call_parser in TOOL_CALLS:
        # In a thread: the first time, its import takes a while.
        parse = await asyncio.to_thread(open_tool_parser, entry.tool_call_parser)
        calls = TOOL_CALLS[entry.tool_call_parser]
        return Splitter(reasoning, calls, CallReader(parse, chat).read, in_reasoning=in_reasoning)
    return None if reasoning is None else Splitter(reasoning, in_reasoning=in_reasoning)


def _begins_reasoning(rendered: str, markers: ReasoningMarkers) -> bool:
    return rendered[-256:].rstrip().endswith(markers.start)
