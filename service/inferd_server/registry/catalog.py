"""What a model folder's files say about it, read in milliseconds and without loading any weights.

Nothing here refuses a damaged folder: a model that is broken today must not keep its neighbours from being served. What
is wrong is noted (`ModelFacts.damage`) and its load will fail with a typed error.
"""

import hashlib
import json
import math
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inferd_server.core.model import (
    Capability,
    EmbedderFacts,
    EngineKind,
    ModelEntry,
    RerankerFacts,
    SamplingDefaults,
)
from inferd_server.engine.encoder_folder import dense_files, is_embedder, read_encoder_folder
from inferd_server.engine.reranker_folder import is_reranker, read_reranker_folder
from inferd_server.engine.vision_folder import is_vision_folder

from .chat_facts import ChatFacts, read_chat_facts, with_chat_facts

INDEX_NAME = "model.safetensors.index.json"
ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_NAME = "adapters.safetensors"
MAX_DIGESTED_NBYTES = 16 * 1024 * 1024  # of an adapter's file
MAX_HEADER_NBYTES = 100 * 1024 * 1024  # the format's own limit
MAX_JSON_NBYTES = 64 * 1024 * 1024
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")
EMBEDDING_NAMES = ("embed_tokens.weight", "tok_embeddings.weight", "word_embeddings.weight", "wte.weight")
NO_LIMIT = 10**9  # tokenizers state "no limit" as 10**30
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the files say.

    Attributes:
        weights_nbytes: bytes of all tensors; 0 if nothing can be measured.
        revision: digest of the weight index and headers, and of the adapter; "" without weights.
        sampling: defaults that generation_config.json recommends, by SamplingDefaults' names.
        embedder: of a model that makes vectors; None for others.
        reranker: of a model that scores documents; None for others.
        sees: whether it is a vision model whose chat template shows images.
        damage: what will make a load fail, one line each.
    """

    architecture: str = ""
    context_length: int = 0
    vocabulary_size: int = 0
    quantization_bits: int = 0
    chat: ChatFacts = field(default_factory=ChatFacts)
    embedder: EmbedderFacts | None = None
    reranker: RerankerFacts | None = None
    sees: bool = False
    weights_nbytes: int = 0
    revision: str = ""
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    damage: tuple[str, ...] = ()


def describe(stated: ModelEntry, chosen: Mapping[str, float | int], fallback: SamplingDefaults) -> ModelEntry:
    """The entry with everything that its folder's files say.

    Args:
        stated: what a person configured: its revision and estimated_bytes hold where they are set.
        chosen: sampling defaults configured for this model; they outrank the files.
        fallback: the server's sampling defaults; the files outrank them.
    """
    return with_facts(stated, read_facts(*stated.engine.folders), chosen, fallback)


def with_facts(
    stated: ModelEntry, facts: ModelFacts, chosen: Mapping[str, float | int], fallback: SamplingDefaults
) -> ModelEntry:
    """`describe` for facts that were read before."""
    stated = with_chat_facts(stated, facts.chat)
    sampling: dict[str, Any] = {**facts.sampling, **chosen}
    if stated.engine.kind is EngineKind.VISION:
        stated = _as_vision(stated)
    elif facts.embedder is not None:
        stated = replace(_as_encoder(stated, EngineKind.EMBEDDING, Capability.EMBED), embedder=facts.embedder)
    elif facts.reranker is not None:
        stated = replace(_as_encoder(stated, EngineKind.RERANKING, Capability.RERANK), reranker=facts.reranker)
    elif facts.sees:
        stated = _as_vision(stated)
    return replace(
        stated,
        architecture=facts.architecture,
        context_length=facts.context_length,
        vocabulary_size=facts.vocabulary_size,
        quantization_bits=facts.quantization_bits,
        revision=stated.revision or facts.revision,
        estimated_bytes=stated.estimated_bytes or facts.weights_nbytes,
        is_estimate_stated=stated.estimated_bytes > 0,
        defaults=replace(fallback, **sampling),
    )


def _as_encoder(stated: ModelEntry, kind: EngineKind, capability: Capability) -> ModelEntry:
    engine = replace(stated.engine, kind=kind, prefix_cache_nbytes=0)  # it has nothing to keep
    return replace(stated, engine=engine, capabilities=frozenset({capability}))


def _as_vision(stated: ModelEntry) -> ModelEntry:
    engine = replace(stated.engine, kind=EngineKind.VISION)
    return replace(stated, engine=engine, capabilities=stated.capabilities | {Capability.VISION})


def read_facts(folder: Path, adapter: Path | None = None, draft: Path | None = None) -> ModelFacts:
    """Read a model folder, its adapter's and its draft model's. Blocking (small reads); never raises for what they
    hold."""
    damage: list[str] = []
    config = _read_json(folder / "config.json", damage, required=True)
    tokenizer = _read_json(folder / "tokenizer_config.json", damage)
    weights = _read_weights(folder, adapter, draft, damage)
    embedder = _read_embedder(folder, config, damage)
    reranker = _read_reranker(folder, config, damage)
    encoder = embedder or reranker
    chat = read_chat_facts(folder, tokenizer)
    return ModelFacts(
        architecture=_architecture(config),
        context_length=encoder.max_tokens if encoder else _context_length(config, tokenizer),
        vocabulary_size=_whole(config, "vocab_size") or _embedding_rows(folder),
        quantization_bits=_quantization_bits(config),
        embedder=embedder,
        reranker=reranker,
        chat=chat,
        sees=chat.shows_images and is_vision_folder(folder, config),
        weights_nbytes=weights.nbytes,
        revision=weights.digest,
        sampling=_recommended_sampling(_read_json(folder / "generation_config.json", damage)),
        damage=tuple(damage),
    )


def _read_embedder(folder: Path, config: Json, damage: list[str]) -> EmbedderFacts | None:
    if not is_embedder(folder, config):
        return None
    encoder = read_encoder_folder(folder, config)
    damage += encoder.problems
    return encoder.facts


def _read_reranker(folder: Path, config: Json, damage: list[str]) -> RerankerFacts | None:
    if not is_reranker(config):
        return None
    reranker = read_reranker_folder(folder, config)
    damage += reranker.problems
    return reranker.facts


# --- weights ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weights:
    nbytes: int
    digest: str


def weights_nbytes(folder: Path, adapter: Path | None = None, draft: Path | None = None) -> int:
    """Bytes of a folder's weights now, its adapter's and its draft model's included (semantics.md §1, sizing rules); 0
    if nothing can be measured. Blocking."""
    return _read_weights(folder, adapter, draft, []).nbytes


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: those its index names; with no index, the *.safetensors beside its
    config, else the *.gguf. Files named by the index need not exist."""
    index = _read_json(folder / INDEX_NAME, [])
    named = index.get("weight_map")
    if isinstance(named, dict) and named:
        # A name, not a path: an index may not point outside its folder.
        return [folder / name for name in sorted({str(file) for file in named.values()}) if Path(name).name == name]
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.gguf"))


def _read_weights(folder: Path, adapter: Path | None, draft: Path | None, damage: list[str]) -> _Weights:
    weights = _read_base_weights(folder, damage)
    has_weights = weights.nbytes > 0
    if adapter is not None:
        weights = _with_adapter(weights, adapter, damage)
    if draft is not None:  # it has no part in what the model answers, so none in the digest
        found: list[str] = []
        weights = replace(weights, nbytes=weights.nbytes + _read_base_weights(draft, found).nbytes)
        damage += [f"draft model: {line}" for line in found]
    return weights if has_weights else _Weights(0, "")


def _read_base_weights(folder: Path, damage: list[str]) -> _Weights:
    digest = hashlib.sha256()
    index = _read_json(folder / INDEX_NAME, damage)
    digest.update(json.dumps(index, sort_keys=True).encode())
    files = weight_files(folder)
    found = len(damage)
    nbytes = sum(_measure(file, digest.update, damage) for file in dense_files(folder))
    nbytes += sum(_measure(file, digest.update, damage) for file in files)
    if not files:
        damage.append("no weight files")
        return _Weights(0, "")
    if len(damage) > found:
        # A file that is missing or broken cannot be summed: what the index promises is the better guess.
        nbytes = max(nbytes, _whole(_mapping(index, "metadata"), "total_size"))
    return _Weights(nbytes, digest.hexdigest()[:16])


def _with_adapter(weights: _Weights, adapter: Path, damage: list[str]) -> _Weights:
    """Adapters of one shape have the same header, so the digest covers what the tensors hold, too."""
    config = _read_json(adapter / ADAPTER_CONFIG_NAME, damage, required=True)
    digest = hashlib.sha256(f"{weights.digest}\n{json.dumps(config, sort_keys=True)}\n".encode())
    file = adapter / ADAPTER_NAME
    nbytes = _measure(file, digest.update, damage)
    if nbytes:
        digest.update(_beginning(file))
    if config.get("fine_tune_type") == "full":  # its tensors take the place of the model's
        nbytes = 0
    return _Weights(weights.nbytes + nbytes, weights.digest and digest.hexdigest()[:16])


def _beginning(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_DIGESTED_NBYTES)
    except OSError:
        return b""


def _measure(file: Path, feed: Callable[[bytes], object], damage: list[str]) -> int:
    """Bytes of the tensors in a file; its size on disk where the header cannot be read, 0 where the file is missing."""
    try:
        status = file.stat()
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a file")
        feed(f"{file.name}:{size}\n".encode())
        if file.suffix == ".gguf":
            return size
        header = _read_header(file, size)
    except FileNotFoundError:
        damage.append(f"{file.name} is missing")
        return 0
    except (OSError, ValueError) as error:
        damage.append(f"{file.name}: {getattr(error, 'strerror', None) or error}")
        return _size_on_disk(file)
    feed(header)
    try:
        return _tensors_nbytes(header, size - len(header) - 8)
    except ValueError as error:
        damage.append(f"{file.name}: {error}")
        return size


def _embedding_rows(folder: Path) -> int:
    """Rows of the table that token ids are looked up in, where a config leaves out how many there are (gemma3's with
    eyes does); 0 if it isn't found."""
    for file in weight_files(folder):
        try:
            header = json.loads(_read_header(file, file.stat().st_size))
            shapes = [tensor["shape"] for name, tensor in header.items() if name.endswith(EMBEDDING_NAMES)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # noted as damage elsewhere
        rows = next((shape[0] for shape in shapes if shape), 0)
        if _is_whole(rows):
            return int(rows)
    return 0


def _size_on_disk(file: Path) -> int:
    try:
        status = file.stat()
    except (OSError, ValueError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _read_header(file: Path, size: int) -> bytes:
    """The JSON header of a safetensors file. Raises OSError, or ValueError for a file that is none."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise ValueError("too short for a safetensors file")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(size - 8, MAX_HEADER_NBYTES):
            raise ValueError("the safetensors header is longer than the file")
        return stream.read(length)


def _tensors_nbytes(header: bytes, available: int) -> int:
    """Sum of the tensors' sizes; `available` bytes follow the header. Raises ValueError."""
    try:
        tensors = json.loads(header)
        spans = [entry["data_offsets"] for name, entry in tensors.items() if name != "__metadata__"]
        sizes = [int(end) - int(begin) for begin, end in spans]
        last = max((int(end) for _, end in spans), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError("the safetensors header is broken") from None
    if min(sizes, default=0) < 0:
        raise ValueError("the safetensors header is broken")
    if last > available:
        raise ValueError(f"truncated: {last - available} bytes are missing")
    return sum(sizes)


# --- configuration files ----------------------------------------------------------------------------------------


def _read_json(file: Path, damage: list[str], *, required: bool = False) -> Json:
    """A JSON object; {} where the file is missing or broken, which is noted."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_JSON_NBYTES + 1)
    except FileNotFoundError:
        damage.extend([f"{file.name} is missing"] if required else [])
        return {}
    except OSError as error:
        damage.append(f"{file.name}: {error.strerror or error}")
        return {}
    try:
        document = json.loads(content) if len(content) <= MAX_JSON_NBYTES else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        damage.append(f"{file.name} is not a JSON object")
        return {}
    return document


def _mapping(config: Json, key: str) -> Json:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63


def _whole(config: Json, *keys: str) -> int:
    """The first positive whole number under `keys`, in the config or in its text_config; 0 if there is none."""
    for section in (config, _mapping(config, "text_config")):
        for key in keys:
            if _is_whole(section.get(key)):
                return int(section[key])
    return 0


def _architecture(config: Json) -> str:
    model_type = config.get("model_type")
    return model_type[:128] if isinstance(model_type, str) else ""


def _context_length(config: Json, tokenizer: Json) -> int:
    stated = _whole(config, *CONTEXT_KEYS) or _whole(tokenizer, "model_max_length")
    return stated if stated < NO_LIMIT else 0


def _quantization_bits(config: Json) -> int:
    return _whole(_mapping(config, "quantization") or _mapping(config, "quantization_config"), "bits")


_PLAUSIBLE: Mapping[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0 <= value <= 100,
    "top_p": lambda value: 0 < value <= 1,
    "top_k": lambda value: value >= 0 and value == int(value),
    "repetition_penalty": lambda value: 0 < value <= 100,
}


def _recommended_sampling(generation: Json) -> dict[str, float | int]:
    """Sampling values that the model's makers recommend; implausible ones are left out."""
    return {
        name: int(value) if name == "top_k" else float(value)
        for name, value in _numbers(generation, _PLAUSIBLE)
        if _PLAUSIBLE[name](value)
    }


def _numbers(config: Json, names: Iterable[str]) -> Iterable[tuple[str, float | int]]:
    for name in names:
        value = config.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, value
