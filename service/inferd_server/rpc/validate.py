"""The checks of form: what can be judged about a request without its prompt's tokens; all violations at once.

The limits bound what one request may cost before an engine sees it. Existence of the model was checked before.
"""

from collections.abc import Sequence

from inferd.v1 import inference_service_pb2, model_service_pb2
from inferd_server.core.model import EmbedderFacts, ModelEntry
from inferd_server.serving.embeddings import embedder_violations

from .contention import check_policy
from .convert import GenerationMessage
from .enums import MODEL_STATES
from .services import ServerInfo
from .validate_chat import check_chat
from .validate_options import (
    REQUEST_ID,
    check_output,
    check_request_id,
    check_sampling,
    check_scheduling,
    check_stop,
    check_token_ids,
    check_vocabulary,
)
from .violations import Violations
from .weight import InputMessage, json_characters

MAX_SESSION_ID_CHARACTERS = 256
MAX_COALESCE_MS = 10_000
MAX_JSON_CHARACTERS_IN_ALL = 2**20
MAX_TEXTS = 4096
MAX_TEXT_CHARACTERS = 2**20
VECTOR_OVERHEAD_NBYTES = 8
RESULT_OVERHEAD_NBYTES = 32
ANSWER_OVERHEAD_NBYTES = 65_536
MAX_STATES = 64
MAX_WATCHED_NAMES = 1024


def check_generation(message: GenerationMessage, entry: ModelEntry, info: ServerInfo) -> dict[str, object]:
    """Generate and StreamGenerate; returns the variables of a chat's template.

    Raises:
        InferdError: INVALID_PARAMETER with every violation.
    """
    violations = Violations()
    check_request_id(message.request_id, violations)
    template_variables = _check_input(message, entry, info, violations)
    check_sampling(message.sampling, violations)
    check_stop(message.stop, info, violations)
    check_vocabulary(message, entry, violations)
    check_output(message.output, message.stop, violations)
    check_scheduling(message.scheduling, info, violations)
    violations.check_length(message.session_id, "session_id", MAX_SESSION_ID_CHARACTERS)
    if isinstance(message, inference_service_pb2.StreamGenerateRequest):
        claim = message.stream.coalesce_ms <= MAX_COALESCE_MS
        violations.require(claim, "stream.coalesce_ms", f"at most {MAX_COALESCE_MS} is allowed")
    violations.raise_if_any()
    return template_variables


def _check_input(
    message: GenerationMessage, entry: ModelEntry, info: ServerInfo, violations: Violations
) -> dict[str, object]:
    kind = message.WhichOneof("input")
    if kind is None:
        violations.add("input", "one of prompt, chat and tokens must be set")
    elif kind == "prompt":
        violations.require(bool(message.prompt), "prompt", "must not be empty")
    elif kind == "chat":
        return _check_chat(message, info, violations)
    else:
        check_token_ids(message.tokens.ids, entry, violations)
    return {}


def _check_chat(message: InputMessage, info: ServerInfo, violations: Violations) -> dict[str, object]:
    """The chat, after all of the request's JSON: where that is too much, none of it is parsed."""
    count = json_characters(message)
    violations.parses_json = violations.require(
        count <= MAX_JSON_CHARACTERS_IN_ALL,
        "chat",
        f"its JSON texts and output.constraint's have {count} characters in all; "
        f"at most {MAX_JSON_CHARACTERS_IN_ALL} are allowed",
    )
    return check_chat(message.chat, info.media_limits, violations)


def check_tokenize(message: inference_service_pb2.TokenizeRequest, info: ServerInfo) -> dict[str, object]:
    """Tokenize; returns the variables of a chat's template. An empty prompt is fine: it has a count too.

    Raises:
        InferdError: INVALID_PARAMETER with every violation; so do all below.
    """
    violations = Violations()
    kind = message.WhichOneof("input")
    violations.require(kind is not None, "input", "one of prompt and chat must be set")
    template_variables = _check_chat(message, info, violations) if kind == "chat" else {}
    violations.raise_if_any()
    return template_variables


def check_embed(message: inference_service_pb2.EmbedRequest, entry: ModelEntry, info: ServerInfo) -> None:
    """Embed."""
    violations = Violations()
    check_request_id(message.request_id, violations)
    _check_texts(message.texts, "texts", violations)
    _check_truncation(message, violations)
    check_scheduling(message.scheduling, info, violations)
    if entry.embedder is not None:
        violations.found += embedder_violations(entry.embedder, message.dimensions, message.prompt_name)
        _check_answer_size(message, entry.embedder, info, violations)
    violations.raise_if_any()


def check_rerank(message: inference_service_pb2.RerankRequest, info: ServerInfo) -> None:
    """Rerank."""
    violations = Violations()
    check_request_id(message.request_id, violations)
    violations.check_length(message.query, "query", MAX_TEXT_CHARACTERS, least=1)
    _check_texts(message.documents, "documents", violations)
    _check_truncation(message, violations)
    check_scheduling(message.scheduling, info, violations)
    answer_nbytes = ANSWER_OVERHEAD_NBYTES + RESULT_OVERHEAD_NBYTES * len(message.documents) + message.ByteSize()
    fits = not message.return_documents or answer_nbytes <= info.max_message_bytes
    text = f"the documents are more than a message of {info.max_message_bytes} bytes holds beside their scores"
    violations.require(fits, "return_documents", text)
    violations.raise_if_any()


def _check_texts(texts: Sequence[str], field: str, violations: Violations) -> None:
    violations.require(1 <= len(texts) <= MAX_TEXTS, field, f"between 1 and {MAX_TEXTS} {field} are allowed")
    for i, text in enumerate(texts[:MAX_TEXTS]):
        violations.check_length(text, f"{field}[{i}]", MAX_TEXT_CHARACTERS, least=1)


def _check_truncation(
    message: inference_service_pb2.EmbedRequest | inference_service_pb2.RerankRequest, violations: Violations
) -> None:
    known = message.truncation in inference_service_pb2.TextTruncation.values()
    violations.require(known, "truncation", f"{message.truncation} is no known truncation")


def _check_answer_size(
    message: inference_service_pb2.EmbedRequest, embedder: EmbedderFacts, info: ServerInfo, violations: Violations
) -> None:
    """The whole answer is one message."""
    vector_nbytes = 4 * (message.dimensions or embedder.width) + VECTOR_OVERHEAD_NBYTES
    most = (info.max_message_bytes - ANSWER_OVERHEAD_NBYTES) // vector_nbytes
    text = f"{len(message.texts)} vectors of {vector_nbytes} bytes are more than a message of {info.max_message_bytes}"
    violations.require(len(message.texts) <= most, "texts", f"{text} bytes holds; at most {max(most, 0)} texts fit")


def check_cancel(message: inference_service_pb2.CancelGenerationRequest) -> None:
    """CancelGeneration: an id, known or not."""
    violations = Violations()
    claim = REQUEST_ID.fullmatch(message.request_id) is not None
    violations.require(claim, "request_id", f"must match {REQUEST_ID.pattern}")
    violations.raise_if_any()


def check_load(message: model_service_pb2.LoadModelRequest, info: ServerInfo) -> None:
    """LoadModel."""
    violations = Violations()
    check_policy(message.contention, "contention", info, violations)
    violations.raise_if_any()


def check_unload(message: model_service_pb2.UnloadModelRequest) -> None:
    """UnloadModel."""
    violations = Violations()
    claim = message.mode in model_service_pb2.UnloadMode.values()
    violations.require(claim, "mode", f"{message.mode} is no known mode")
    violations.check_duration(message.drain_timeout, "drain_timeout")
    violations.raise_if_any()


def check_list(message: model_service_pb2.ListModelsRequest, *, token_is_valid: bool) -> None:
    """ListModels."""
    violations = Violations()
    violations.require(message.page_size >= 0, "page_size", "must not be negative")
    violations.require(token_is_valid, "page_token", "must come from the previous response to the same states")
    violations.require(len(message.states) <= MAX_STATES, "states", f"at most {MAX_STATES} are allowed")
    for i, state in enumerate(message.states[:MAX_STATES]):
        violations.require(state in MODEL_STATES, f"states[{i}]", f"{state} is no known state")
    violations.raise_if_any()


def check_watch(message: model_service_pb2.WatchModelsRequest) -> None:
    """WatchModels, but for whether the names exist."""
    violations = Violations()
    claim = len(message.names) <= MAX_WATCHED_NAMES
    violations.require(claim, "names", f"at most {MAX_WATCHED_NAMES} names are allowed")
    violations.raise_if_any()
