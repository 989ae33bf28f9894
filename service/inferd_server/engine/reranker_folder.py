"""What a reranker's folder says about how a query and a document become a score. No mlx is imported.

Nothing here refuses: what can't be done rightly is a `problem`, and the model's load will fail with it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferd_server.core.model import RerankerFacts

from .encoder_folder import ARCHITECTURES, LIST_ERRORS, check_config, max_tokens, read_list
from .headers import read_object

Json = dict[str, Any]

HEAD = "ForSequenceClassification"
MODEL_TYPES = frozenset({"bert", "xlm-roberta", "modernbert"})
"""Whose classifiers mlx_vlm has. Rerankers that generate (Qwen3) are language models here."""
POOLING_MODES = ("cls", "mean")  # ModernBERT's alone has a choice
ACTIVATIONS = {"Sigmoid": True, "Identity": False}


@dataclass(frozen=True, slots=True)
class RerankerFolder:
    """What the files say.

    Attributes:
        has_segments: whether the model tells the query's tokens from the document's by their segment.
        problems: why the model can't be served rightly, one line each.
    """

    facts: RerankerFacts
    has_segments: bool
    problems: tuple[str, ...] = ()


def is_reranker(config: Json) -> bool:
    """Whether a config.json is that of a classifier with one label: its one number is a score. Never raises."""
    heads = config.get("architectures")
    is_classifier = isinstance(heads, list) and any(str(head).endswith(HEAD) for head in heads)
    return is_classifier and str(config.get("model_type")) in MODEL_TYPES and _labels(config) == 1


def read_reranker_folder(folder: Path, config: Json) -> RerankerFolder:
    """Read the files of a folder that `is_reranker`. Blocking (small reads); never raises."""
    model_type = str(config["model_type"])
    problems: list[str] = []
    check_config(config, ARCHITECTURES[model_type], problems)
    if model_type == "modernbert":
        _check_head(config, problems)
    problems += _odd_modules(folder / "modules.json")
    facts = RerankerFacts(max_tokens(folder, config, model_type), _applies_sigmoid(folder, config, problems))
    segments = config.get("type_vocab_size", 2)
    has_segments = model_type == "bert" and isinstance(segments, int) and segments > 1
    return RerankerFolder(facts, has_segments, tuple(problems))


def _labels(config: Json) -> object:
    """How many, as mlx_vlm counts them; unstated it is one, and the weights of another model don't fit."""
    stated, named = config.get("num_labels"), config.get("id2label")
    if stated is not None:
        return stated
    return len(named) if isinstance(named, dict) and named else 1


def _odd_modules(path: Path) -> list[str]:
    """Newer folders have a modules.json; only one that names the model and nothing behind it is understood."""
    if not path.is_file():
        return []
    try:
        kinds = {str(each["type"]).rsplit(".", 1)[-1] for each in read_list(path)}
    except LIST_ERRORS:
        return ["modules.json can't be read"]
    return [f"modules.json has a {kind[:64]!r}, which is not supported" for kind in sorted(kinds - {"Transformer"})]


def _check_head(config: Json, problems: list[str]) -> None:
    if config.get("classifier_activation", "gelu") != "gelu":
        problems.append(f"classifier_activation {str(config['classifier_activation'])[:64]!r} is not supported")
    if config.get("classifier_pooling", "cls") not in POOLING_MODES:
        problems.append(f"classifier_pooling {str(config['classifier_pooling'])[:64]!r} is not supported")


def _applies_sigmoid(folder: Path, config: Json, problems: list[str]) -> bool:
    """By the places where sentence-transformers has kept it over time; a model with one label has it by default."""
    places = (
        config.get("sentence_transformers"),
        {"activation_fn": config.get("sbert_ce_default_activation_function")},
        read_object(folder / "config_sentence_transformers.json"),
    )
    stated = [place["activation_fn"] for place in places if isinstance(place, dict) and place.get("activation_fn")]
    if not stated:
        return True
    name = str(stated[0]).rsplit(".", 1)[-1]
    if name not in ACTIVATIONS:
        problems.append(f"activation {name[:64]!r} of the score is not supported")
    return ACTIVATIONS.get(name, True)
