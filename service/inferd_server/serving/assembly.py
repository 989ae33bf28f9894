"""From tokens to output: text with held-back stop prefixes, ids, logprobs, and the reason of the end. Pure."""

from collections.abc import Sequence

from inferd_server.core.generation import Delta, FinishReason, OutputChoices, Token, TokenLogprob
from inferd_server.text.detokenizer import Detokenizer
from inferd_server.text.stopping import StopMatcher


class Assembly:
    """One request's output so far; it outlives interruptions, so that a resumed stream goes on in mid-character.

    Attributes:
        emitted_ids: ids of all output tokens so far, what a resumed engine goes on behind.
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
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop_sequences)
        self._matches_text = bool(stop_sequences)
        self._stop_token_ids = stop_token_ids
        self._wants_ids = output.token_ids
        self._wants_logprobs = output.top_logprobs is not None
        self._length_reason = length_reason
        self.emitted_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.matched_stop = ""

    def add(self, tokens: Sequence[Token]) -> Delta:
        """Take tokens in order and return what may go out now (possibly nothing but the count).

        Sets `finish_reason` at the end; tokens behind a matched stop sequence are dropped.
        """
        before = len(self.emitted_ids)
        logprobs: list[TokenLogprob] = []
        text = self._add_one_by_one(tokens, logprobs) if self._matches_text else self._add_all(tokens, logprobs)
        if self.finish_reason is not None and not self.matched_stop:
            text += self._flush()
        return Delta(
            text=text,
            token_ids=self.emitted_ids[before:] if self._wants_ids else [],
            logprobs=logprobs,
            completion_tokens=len(self.emitted_ids),
        )

    def _add_all(self, tokens: Sequence[Token], logprobs: list[TokenLogprob]) -> str:
        ids = [token.token_id for token in tokens if token.ended != "end_id"]
        self.emitted_ids += ids
        self._keep_logprobs(tokens, logprobs)
        self._notice_end(tokens[-1])
        return self._detokenizer.add(ids)

    def _add_one_by_one(self, tokens: Sequence[Token], logprobs: list[TokenLogprob]) -> str:
        # Token by token, so that the count ends exactly with the token that completed the stop sequence.
        pieces = []
        for token in tokens:
            if token.ended != "end_id":
                self.emitted_ids.append(token.token_id)
                self._keep_logprobs((token,), logprobs)
                pieces.append(self._match(self._detokenizer.add((token.token_id,))))
            if self.finish_reason is not None:
                break
            self._notice_end(token)
        return "".join(pieces)

    def _keep_logprobs(self, tokens: Sequence[Token], logprobs: list[TokenLogprob]) -> None:
        if self._wants_logprobs:
            logprobs += [t.logprob for t in tokens if t.logprob is not None and t.ended != "end_id"]

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

    def _flush(self) -> str:
        rest = self._match(self._detokenizer.flush())
        return rest if self.matched_stop else rest + self._matcher.flush()
