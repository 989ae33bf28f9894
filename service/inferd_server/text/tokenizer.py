"""One model folder's tokenizer: text into ids, chats into ids, ids into text. No network, no questions on stdin."""

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from inferd_server.core.errors import (
    FieldViolation,
    InferdError,
    capability_missing,
    echo,
    invalid_parameter,
    model_corrupt,
    model_unsupported,
    prompt_too_long,
)
from inferd_server.core.generation import ChatPrompt

from .chat import Guard, Variables, chat_variables
from .detokenizer import ByteDetokenizer, Detokenizer, Vocabulary, WindowDetokenizer, byte_decoding
from .families import MARKER_TOKENS
from .pictures import picture_mark, wants_parts

# What a template does wrong with this chat surfaces as one of these; the sandbox lets nothing else through.
_TEMPLATE_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
# Values that the server or the tokenizer gives to the template; `documents` is the caller's to give.
# A text longer than a few characters for each token of the context is counted part by part before it is encoded: one
# call for all of it takes up to 230 bytes and 5 microseconds a character (64 MiB would take the process down).
_PLAUSIBLE_CHARACTERS = 4
_PART_CHARACTERS = 65_536
_CUT_TOKENS = 16  # what a cut through a word may add to the count
_RESERVED_NAMES = frozenset({"self", "messages", "conversations", "tools", "add_generation_prompt", "tokenize"})


class Tokenizer:
    """Immutable after `load`; all methods may be called from several threads at once.

    Attributes:
        vocabulary_size: ids that the tokenizer can produce are smaller.
        end_ids: end-of-sequence ids, as mlx-lm takes them from generation_config.json (else config.json) and the
            tokenizer.
        has_chat_template: whether `encode_chat` can work.
        picture_mark: what the chat template writes for a picture; "" where it shows none.
    """

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], name: str) -> None:
        """Use `load`. `tokenizer` is one of transformers'."""
        self.name = name
        self.end_ids = end_ids
        self.has_chat_template = bool(tokenizer.chat_template)
        ids = tokenizer.get_vocab().values()
        self.vocabulary_size: int = max(ids, default=-1) + 1
        self._tokenizer = tokenizer
        self.picture_mark = picture_mark(self._render_messages)
        self._wants_parts = wants_parts(self._render_messages)
        self._guard = _guard_of(tokenizer, self.picture_mark)
        self._reserved = _RESERVED_NAMES | _template_names(tokenizer)
        self._bytes = _byte_vocabulary(tokenizer, self.vocabulary_size)
        # The first call settles the backend's padding and truncation: later ones change nothing, so threads may share.
        self._newline = self._encode("\n")
        self._adds_prefix = tokenizer.convert_ids_to_tokens(self._encode("a")[:1]) != ["a"]

    @classmethod
    def load(cls, folder: Path, *, trust_remote_code: bool = False, name: str = "") -> "Tokenizer":
        """Load from a model folder; blocking (0.1-0.5 s).

        Raises:
            InferdError: MODEL_CORRUPT with the broken file; MODEL_UNSUPPORTED where there is no tokenizer, or one
                whose code would have to be trusted.
        """
        config = _read_object(folder, "config.json", name)
        if config is None:
            raise model_unsupported(name, "the model folder has no config.json")
        generation = _read_object(folder, "generation_config.json", name) or {}
        settings = _read_object(folder, "tokenizer_config.json", name) or {}
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=trust_remote_code, local_files_only=True
            )
            ends = generation.get("eos_token_id") or config.get("eos_token_id")
            return cls(tokenizer, _end_ids(ends, tokenizer), name)
        except Exception as failure:  # the tokenizers library raises bare Exception
            raise _load_failure(folder, name, settings, trust_remote_code, failure) from failure

    def encode(self, text: str, *, context_length: int = 0) -> list[int]:
        """Ids of a raw prompt, exactly as mlx_lm.stream_generate encodes a str: special tokens in the text count, and
        the tokenizer's own (such as bos) are added unless the text begins with bos.

        Args:
            context_length: tokens that the context holds; 0 if unknown. Bounds memory and time for endless texts.

        Raises:
            InferdError: PROMPT_TOO_LONG where that shows long before the end of the text.
        """
        self._check_length("prompt", text, context_length)
        bos = self._tokenizer.bos_token
        return self._encode(text, add_special_tokens=bos is None or not text.startswith(bos))

    def encode_chat(
        self, chat: ChatPrompt, *, context_length: int = 0, pictures: Sequence[str] = ()
    ) -> tuple[str, list[int]]:
        """(the rendered chat, its ids), with the cue for the assistant's turn at the end; `context_length` as above.

        Control tokens in the caller's text are encoded as text. Blocking, and as long as the template likes: call it
        off the event loop.

        Args:
            pictures: the text that stands for each of the chat's pictures, in their order; it takes the place of the
                template's mark, in the ids alone.

        Raises:
            InferdError: CAPABILITY_MISSING without a chat template; INVALID_PARAMETER for a chat that the template
                refuses, bad JSON in it, or variables that the server sets; PROMPT_TOO_LONG as above.
        """
        if not self.has_chat_template:
            raise capability_missing(self.name, "chat", f"model {self.name!r} has no chat template")
        try:
            variables = chat_variables(chat, self._reserved, as_parts=self._wants_parts)
            separator = self._guard.separator_for(variables)
            rendered = self._render(self._guard.protected(variables, separator) if separator else variables)
            shown = self._with_pictures(rendered, pictures) if chat.blobs else rendered
            self._check_length("chat", shown, context_length)
            if not separator:
                return rendered, self._encode(shown)
            return rendered.replace(separator, ""), self._encode_pieces(shown.split(separator))
        except _TEMPLATE_FAILURES as failure:
            told = f"the model's chat template refuses it: {echo(failure) or type(failure).__name__}"
            raise invalid_parameter([FieldViolation("chat", told)]) from failure

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, as a detokenizer gives it."""
        detokenizer = self.detokenizer()
        return detokenizer.add(ids) + detokenizer.flush()

    def detokenizer(self, *, keeps_space: bool = False) -> Detokenizer:
        """A detokenizer for one output; `keeps_space`: a space at its beginning counts, whatever the tokenizer's own
        decoder does (a constraint is about every byte)."""
        if self._bytes is not None:
            vocabulary, strips_space = self._bytes
            return ByteDetokenizer(vocabulary, strips_space=strips_space and not keeps_space)
        return WindowDetokenizer(self._decode_exactly, lambda token_id: 0 <= token_id < self.vocabulary_size)

    @property
    def backend(self) -> Any:
        """transformers' own, for what else is built on the same tokens; not to be changed."""
        return self._tokenizer

    @property
    def is_byte_exact(self) -> bool:
        """Whether each token stands for the same bytes wherever it occurs."""
        return self._bytes is not None

    def _decode_exactly(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _render(self, variables: Variables) -> str:
        rest = {name: value for name, value in variables.items() if name != "messages"}
        rendered: str = self._tokenizer.apply_chat_template(
            variables["messages"], add_generation_prompt=True, tokenize=False, **rest
        )
        return rendered

    def _with_pictures(self, rendered: str, pictures: Sequence[str]) -> str:
        """The guard cut every mark that a caller wrote, so those that are whole are the template's."""
        pieces = rendered.split(self.picture_mark) if self.picture_mark else [rendered]
        if len(pieces) != len(pictures) + 1:
            told = f"the model's chat template shows {len(pieces) - 1} of {len(pictures)} pictures"
            raise invalid_parameter([FieldViolation("chat", told)])
        return pieces[0] + "".join(map("".join, zip(pictures, pieces[1:], strict=True)))

    def _render_messages(self, messages: list[Variables]) -> str:
        return self._render({"messages": messages})

    def _encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False)
        return ids

    def _check_length(self, field: str, text: str, context_length: int) -> None:
        if not context_length or len(text) <= max(_PART_CHARACTERS, _PLAUSIBLE_CHARACTERS * context_length):
            return
        least = 0
        for start in range(0, len(text), _PART_CHARACTERS):
            part = self._encode(text[start : start + _PART_CHARACTERS])
            least += max(len(part) - _CUT_TOKENS, 0)
            if least >= context_length:
                raise prompt_too_long(field, least, context_length, at_least=True)

    def _encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        ids = self._encode(pieces[0])
        for piece in filter(None, pieces[1:]):
            ids += self._encode_inner(piece)
        return ids

    def _encode_inner(self, piece: str) -> list[int]:
        """Ids of a piece from the middle of a text: without the space that some tokenizers put before a text."""
        if self._adds_prefix:
            ids = self._encode("\n" + piece)
            if ids[: len(self._newline)] == self._newline:
                return ids[len(self._newline) :]
        return self._encode(piece)


def _read_object(folder: Path, file: str, name: str) -> dict[str, Any] | None:
    """A JSON object from the folder, None if the file isn't there."""
    try:
        value = json.loads((folder / file).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as failure:
        raise model_corrupt(name, file, f"{file} can't be read as JSON: {failure}") from failure
    if not isinstance(value, dict):
        raise model_corrupt(name, file, f"{file} holds no JSON object")
    return value


def _load_failure(
    folder: Path, name: str, settings: dict[str, Any], trust_remote_code: bool, failure: Exception
) -> InferdError:
    if isinstance(failure, InferdError):
        return failure
    if "auto_map" in settings and not trust_remote_code:
        return model_unsupported(name, "the tokenizer is code of the model folder, and trust_remote_code is off")
    try:
        if _read_object(folder, "tokenizer.json", name) is None:
            return model_unsupported(name, f"no tokenizer in the model folder: {_told(failure, folder)}")
    except InferdError as corrupt:
        return corrupt
    file = "tokenizer_config.json" if _backend_loads(folder / "tokenizer.json") else "tokenizer.json"
    return model_corrupt(name, file, f"{file} can't be used: {_told(failure, folder)}")


def _backend_loads(file: Path) -> bool:
    try:
        Backend.from_file(str(file))
    except Exception:  # noqa: BLE001 - the tokenizers library raises bare Exception
        return False
    return True


def _told(failure: Exception, folder: Path) -> str:
    """What a library said, in brief and without the server's paths."""
    lines = str(failure).replace(str(folder), "…").strip().splitlines() or [""]
    return f"{type(failure).__name__}: {lines[0][:160]}"


def _end_ids(configured: Any, tokenizer: Any) -> frozenset[int]:
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if isinstance(i, int))


def _template_names(tokenizer: Any) -> frozenset[str]:
    """Names that the template machinery takes for itself, and the special tokens that it fills in."""
    parameters = frozenset(inspect.signature(type(tokenizer).apply_chat_template).parameters)
    return (parameters | frozenset(tokenizer.special_tokens_map)) - {"documents", "kwargs"}


def _guard_of(tokenizer: Any, mark: str) -> Guard:
    template = _template_text(tokenizer.chat_template)
    added = tokenizer.added_tokens_decoder.values()
    special = {token.content for token in added if token.special}.union(tokenizer.all_special_tokens)
    special |= {mark} if mark else set()
    written = {token.content for token in added if token.content in template and not token.content.isspace()}
    markers = written.union(token.content for token in added if token.content in MARKER_TOKENS)
    matched_normalized = any(token.normalized for token in added if token.content in special | markers)
    return Guard(special, markers, _normalization(tokenizer) if matched_normalized else None)


def _template_text(template: Any) -> str:
    """The template's source; of several (by name), all of them."""
    return "\0".join(template.values()) if isinstance(template, dict) else template or ""


def _normalization(tokenizer: Any) -> Callable[[str], str] | None:
    if not isinstance(tokenizer, TokenizersBackend) or tokenizer.backend_tokenizer.normalizer is None:
        return None
    normalize: Callable[[str], str] = tokenizer.backend_tokenizer.normalizer.normalize_str
    return normalize


def _byte_vocabulary(tokenizer: Any, size: int) -> tuple[Vocabulary, bool] | None:
    """The tokens' bytes, and whether the decoder strips a first space; None for other kinds of tokenizer."""
    if not isinstance(tokenizer, TokenizersBackend) or tokenizer.backend_tokenizer.decoder is None:
        return None
    decoding = byte_decoding(tokenizer.backend_tokenizer.decoder.__getstate__())
    if decoding is None:
        return None
    bytes_of, strips_space = decoding
    return Vocabulary(tokenizer.backend_tokenizer.id_to_token, bytes_of, size), strips_space
