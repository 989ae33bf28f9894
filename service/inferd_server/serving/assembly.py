"""From tokens to output: text with held-back stop prefixes, reasoning, tool calls, ids, logprobs, and the reason of the
end. Pure."""

from collections.abc import Iterable, Sequence

from inferd_server.core.generation import Delta, FinishReason, OutputChoices, Token, TokenLogprob, ToolCallDelta
from inferd_server.text.detokenizer import Detokenizer
from inferd_server.text.markup import Kind, Piece, Splitter
from inferd_server.text.stopping import StopMatcher


class Assembly:
    """One request's output so far; it outlives interruptions, so that a resumed stream goes on in mid-character.

    Stop sequences are looked for in the answer alone: reasoning may go through what ends an answer, and a tool call is
    whole or none.

    Attributes:
        emitted_ids: ids of all output tokens so far, what a resumed engine goes on behind.
        cached_prompt_tokens: how much of the prompt was in a prefix cache.
        finish_reason: None while the output goes on.
        matched_stop: the stop sequence that ended it, or "".
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop_sequences: Sequence[str],
        stop_token_ids: frozenset[int],
        output: OutputChoices,
        length_reason: FinishReason,
        splitter: Splitter | None = None,
    ) -> None:
        """`splitter` None: all of the output is the answer."""
        self._detokenizer = detokenizer
        self._splitter = splitter
        self._matcher = StopMatcher(stop_sequences)
        self._matches_text = bool(stop_sequences)
        self._stop_token_ids = stop_token_ids
        self._wants_ids = output.token_ids
        self._wants_logprobs = output.top_logprobs is not None
        self._length_reason = length_reason
        self._tool_calls = 0
        self.emitted_ids: list[int] = []
        self.cached_prompt_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.matched_stop = ""

    def add(self, tokens: Sequence[Token]) -> Delta:
        """Take tokens in order and return what may go out now (possibly nothing but the count).

        Sets `finish_reason` at the end; tokens behind a matched stop sequence are dropped.
        """
        before = len(self.emitted_ids)
        if not before:
            self.cached_prompt_tokens = tokens[0].cached_tokens
        delta = Delta()
        if self._matches_text:
            self._add_one_by_one(tokens, delta)
        else:
            self._add_all(tokens, delta)
        if self.finish_reason is not None and not self.matched_stop:
            self._finish(delta)
        if self._wants_ids:
            delta.token_ids = self.emitted_ids[before:]
        delta.completion_tokens = len(self.emitted_ids)
        return delta

    def _add_all(self, tokens: Sequence[Token], delta: Delta) -> None:
        ids = [token.token_id for token in tokens if token.ended != "end_id"]
        self.emitted_ids += ids
        self._keep_logprobs(tokens, delta.logprobs)
        self._notice_end(tokens[-1])
        self._add_text(self._detokenizer.add(ids), delta)

    def _add_one_by_one(self, tokens: Sequence[Token], delta: Delta) -> None:
        # Token by token, so that the count ends exactly with the token that completed the stop sequence.
        for token in tokens:
            if token.ended != "end_id":
                self.emitted_ids.append(token.token_id)
                self._keep_logprobs((token,), delta.logprobs)
                self._add_text(self._detokenizer.add((token.token_id,)), delta)
            if self.finish_reason is not None:
                break
            self._notice_end(token)

    def _keep_logprobs(self, tokens: Sequence[Token], logprobs: list[TokenLogprob]) -> None:
        if self._wants_logprobs:
            logprobs += [t.logprob for t in tokens if t.logprob is not None and t.ended != "end_id"]

    def _add_text(self, text: str, delta: Delta) -> None:
        if self._splitter is None:
            delta.text += self._match(text)
        else:
            self._add_pieces(self._splitter.feed(text), delta)

    def _add_pieces(self, pieces: Iterable[Piece], delta: Delta) -> None:
        for piece in pieces:
            if piece.call is not None:
                delta.tool_calls.append(ToolCallDelta(self._tool_calls, piece.call))
                self._tool_calls += 1
            elif piece.kind is Kind.REASONING:
                delta.reasoning += piece.text
            else:
                delta.text += self._match(piece.text)
                if self.matched_stop:
                    break

    def _match(self, text: str) -> str:
        safe, matched = self._matcher.feed(text)
        if matched is not None:
            self.finish_reason = FinishReason.STOP
            self.matched_stop = matched
        return safe

    def _notice_end(self, token: Token) -> None:
        if token.ended == "length":
            self.finish_reason = self._length_reason
        elif token.ended:
            stopped = token.token_id in self._stop_token_ids
            self.finish_reason = FinishReason.STOP if stopped else FinishReason.EOS

    def _finish(self, delta: Delta) -> None:
        """Give out what is held back, in the order in which it was held."""
        self._add_text(self._detokenizer.flush(), delta)
        if self._splitter is not None:
            cut = self.finish_reason is self._length_reason
            self._add_pieces(self._splitter.flush(cut=cut), delta)
        delta.text += self._matcher.flush()  # empty where a stop sequence matched after all
        if self._tool_calls and self.finish_reason is FinishReason.EOS:
            self.finish_reason = FinishReason.TOOL_CALLS
