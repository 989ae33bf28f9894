"""What a stream has said so far, and the whole answer at its end: the same for both clients."""

import grpc

from inferd.v1 import inference_service_pb2
from inferd_client import decoding
from inferd_client.errors import EngineFailed
from inferd_client.results import (
    Delta,
    Event,
    Finished,
    Generation,
    Started,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)


class Transcript:
    """Collects a stream's events into the Generation that the unary call would have returned."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.finished: Finished | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._tool_calls: dict[int, ToolCall] = {}

    def add(self, response: inference_service_pb2.StreamGenerateResponse) -> Event | None:
        """Takes the next message in and gives it as an event."""
        found = decoding.event(response)
        match found:
            case Delta():
                self._add_delta(found)
            case Started():
                self.started = found
            case Finished():
                self.finished = found
        return found

    def end(self) -> None:
        """The stream ended with status OK: then a `finished` must have come, or the output is not whole."""
        if self.finished is None:
            raise EngineFailed(grpc.StatusCode.INTERNAL, "", "the stream ended without its last message")

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def generation(self) -> Generation:
        """The whole answer. RuntimeError before the end."""
        if self.started is None or self.finished is None:
            raise RuntimeError("the stream has not ended: read it to its end first")
        return Generation(
            request_id=self.started.request_id,
            model=self.started.model,
            text=self.text,
            reasoning="".join(self._reasoning),
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            tool_calls=tuple(call for _, call in sorted(self._tool_calls.items())),
            finish_reason=self.finished.finish_reason,
            matched_stop=self.finished.matched_stop,
            usage=self.finished.usage,
            timing=self.finished.timing,
            rendered_prompt=self.started.rendered_prompt,
            preemptions=self.finished.preemptions,
        )

    def _add_delta(self, delta: Delta) -> None:
        self._text.append(delta.text)
        self._reasoning.append(delta.reasoning)
        self._token_ids.extend(delta.token_ids)
        self._logprobs.extend(delta.logprobs)
        for part in delta.tool_calls:
            self._add_tool_call(part)

    def _add_tool_call(self, part: ToolCallDelta) -> None:
        call = self._tool_calls.get(part.index, ToolCall("", "", ""))
        self._tool_calls[part.index] = ToolCall(
            call.id or part.id, call.name or part.name, call.arguments_json + part.arguments_json
        )
