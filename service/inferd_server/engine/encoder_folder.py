"""What an embedder's folder says about how a text becomes a vector, in sentence-transformers' layout. No mlx is
imported.

Nothing here refuses: what can't be done rightly is a `problem`, and the model's load will fail with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferd_server.core.model import EmbedderFacts

from .headers import read_object

Json = dict[str, Any]

UNSTATED_MAX_TOKENS = 512
"""Of one text, where no file says how long it may be."""
NO_LIMIT = 10**9  # tokenizers state "no limit" as 10**30
MAX_PROMPT_CHARACTERS = 4096
OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
LIST_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
POOLING_MODES = frozenset({"cls", "mean", "max", "lasttoken"})


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of mlx_vlm's that makes vectors.

    Attributes:
        pooling: where the folder states none.
        only_embeds: nothing else uses it; others are embedders by sentence-transformers' files in their folder.
        dense_layers: behind the pooling, without bias and activation.
        is_bert: its positions are absolute, and its one activation is GELU whatever config.json says.
    """

    pooling: str = "mean"
    only_embeds: bool = False
    dense_layers: int = 0
    is_bert: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": Architecture(only_embeds=True, is_bert=True),
    "xlm-roberta": Architecture(only_embeds=True, is_bert=True),
    "modernbert": Architecture(only_embeds=True),
    "qwen3": Architecture(pooling="lasttoken"),
    "gemma3_text": Architecture(dense_layers=2),
}
"""By model_type. mlx_vlm has more, which were not seen to give the right vectors."""


@dataclass(frozen=True, slots=True)
class EncoderFolder:
    """What the files say.

    Attributes:
        dense: folders of dense layers, in order.
        problems: why the model can't be served rightly, one line each.
    """

    model_type: str
    facts: EmbedderFacts
    pooling: str
    dense: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def is_embedder(folder: Path, config: Json) -> bool:
    """Whether a folder holds a model that makes vectors. Blocking (two small reads); never raises."""
    architecture = ARCHITECTURES.get(str(config.get("model_type")))
    heads = config.get("architectures")
    if architecture is None or (isinstance(heads, list) and any(str(head).endswith(OTHER_HEADS) for head in heads)):
        return False
    return architecture.only_embeds or (folder / "modules.json").is_file() or (folder / "1_Pooling").is_dir()


def read_encoder_folder(folder: Path, config: Json) -> EncoderFolder:
    """Read the files of a folder that `is_embedder`. Blocking (small reads); never raises."""
    model_type = str(config.get("model_type"))
    architecture = ARCHITECTURES[model_type]
    modules = _read_modules(folder)
    problems = list(modules.problems)
    pooling = _pooling(folder / modules.pooling, architecture, problems)
    width = _check_dense(folder, architecture, modules.dense, _whole(config, "hidden_size"), problems)
    check_config(config, architecture, problems)
    prompts = read_object(folder / "config_sentence_transformers.json") or {}
    named = _prompts(prompts)
    default = prompts.get("default_prompt_name")
    facts = EmbedderFacts(
        width=width,
        max_tokens=max_tokens(folder, config, model_type),
        normalizes=modules.normalizes,
        prompts=named,
        default_prompt=default if isinstance(default, str) and default in named else "",
    )
    return EncoderFolder(model_type, facts, pooling, modules.dense, tuple(problems))


def dense_files(folder: Path) -> list[Path]:
    """Weight files of an embedder's dense layers; none for other models. Blocking; never raises."""
    config = read_object(folder / "config.json") or {}
    dense = read_encoder_folder(folder, config).dense if is_embedder(folder, config) else ()
    return [file for name in dense for file in sorted((folder / name).glob("*.safetensors"))]


@dataclass(slots=True)
class _Modules:
    """What stands behind the transformer, by modules.json; without one, as mlx_vlm does it."""

    pooling: str = "1_Pooling"
    normalizes: bool = True
    dense: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)


def _read_modules(folder: Path) -> _Modules:
    path = folder / "modules.json"
    if not path.is_file():
        return _Modules()
    modules = _Modules(normalizes=False)
    try:
        listed = [(str(each["type"]).rsplit(".", 1)[-1], str(each.get("path", ""))) for each in read_list(path)]
    except LIST_ERRORS:
        modules.problems.append("modules.json can't be read")
        return modules
    for kind, place in listed:
        if kind in {"Pooling", "Dense"} and Path(place).name != place:
            modules.problems.append("modules.json names a place outside the folder")
        elif kind == "Pooling":
            modules.pooling = place
        elif kind == "Normalize":
            modules.normalizes = True
        elif kind == "Dense":
            modules.dense += (place,)
        elif kind != "Transformer":
            modules.problems.append(f"modules.json has a {kind[:64]!r}, which is not supported")
    return modules


def read_list(path: Path) -> list[Any]:
    """The list in a JSON file; what it and what is in it may raise are LIST_ERRORS. Blocking."""
    value = json.loads(path.read_bytes())
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _pooling(folder: Path, architecture: Architecture, problems: list[str]) -> str:
    config = read_object(folder / "config.json")
    if config is None:
        return architecture.pooling
    stated = config.get("pooling_mode") or [mode for key, mode in POOLING_KEYS.items() if config.get(key) is True]
    modes = [stated] if isinstance(stated, str) else stated
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in POOLING_MODES:
        problems.append(f"pooling {'+'.join(map(str, modes))[:64] or 'none'!r} is not supported")
        return architecture.pooling
    if config.get("include_prompt") is False:
        problems.append("pooling without the prompt (include_prompt) is not supported")
    return str(modes[0])


def _check_dense(
    folder: Path, architecture: Architecture, dense: tuple[str, ...], width: int, problems: list[str]
) -> int:
    """The width of the vectors."""
    if len(dense) != architecture.dense_layers:
        problems.append(f"{len(dense)} dense layers behind the pooling are not supported with this architecture")
    for name in dense:
        config = read_object(folder / name / "config.json") or {}
        if config.get("bias") is True or not str(config.get("activation_function", "Identity")).endswith("Identity"):
            problems.append(f"{name}: a dense layer with bias or activation is not supported")
        width = _whole(config, "out_features") or width
    return width


def check_config(config: Json, architecture: Architecture, problems: list[str]) -> None:
    if not architecture.is_bert:
        return
    for key, only in (("hidden_act", "gelu"), ("position_embedding_type", "absolute"), ("is_decoder", False)):
        if config.get(key, only) != only:
            problems.append(f"{key} {str(config[key])[:64]!r} in config.json is not supported")


def max_tokens(folder: Path, config: Json, model_type: str) -> int:
    positions = _whole(config, "max_position_embeddings")
    if model_type == "xlm-roberta" and positions:  # position 0 is the padding id's next
        positions -= 1 + (_whole(config, "pad_token_id") or 1)
    stated = (
        _whole(read_object(folder / "sentence_bert_config.json") or {}, "max_seq_length"),
        positions,
        _whole(read_object(folder / "tokenizer_config.json") or {}, "model_max_length"),
    )
    return min((each for each in stated if 0 < each < NO_LIMIT), default=UNSTATED_MAX_TOKENS)


def _prompts(config: Json) -> dict[str, str]:
    stated = config.get("prompts")
    if not isinstance(stated, dict):
        return {}
    return {
        name: text
        for name, text in stated.items()
        if isinstance(text, str) and len(text) <= MAX_PROMPT_CHARACTERS and len(name) <= MAX_PROMPT_CHARACTERS
    }


def _whole(config: Json, key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
