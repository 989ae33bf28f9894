"""The cheap checks of a model folder before a load evicts anything: no weights are read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from inferd_server.core.errors import MAX_LISTED, InferdError, model_corrupt, model_load_failed, model_unsupported
from inferd_server.core.model import EngineKind, EngineSettings

from .adapters import check_adapter
from .encoder_folder import dense_files, is_embedder, read_encoder_folder
from .headers import WeightsError, check_weights, read_header, read_object
from .importing import IMPORTS
from .reranker_folder import is_reranker, read_reranker_folder
from .vision_folder import PROCESSOR_FILES, has_processor

_ENCODERS = {EngineKind.EMBEDDING: "embedder", EngineKind.RERANKING: "reranker"}


def check_model_folder(settings: EngineSettings) -> None:
    """Check that the folder holds a model that can be loaded: its files, config, architecture, sizes, and trust;
    and its adapter and draft model, if it has any.

    Raises:
        InferdError: MODEL_CORRUPT (with the file), MODEL_UNSUPPORTED, or MODEL_LOAD_FAILED where there is no folder.
    """
    if not settings.path.is_dir():
        raise model_load_failed(settings.name, f"the folder of model {settings.name!r} does not exist")
    config = _read_config(settings)
    _check_trust(settings, config)
    if settings.kind in {EngineKind.EMBEDDING, EngineKind.RERANKING}:
        _check_encoder(settings, config)
        return
    if settings.kind is EngineKind.VISION:
        _check_vision(settings, config)
        _check_weights(settings)
        return
    # Imported here: mlx_lm takes a second or two, which only what touches a model should pay.
    with IMPORTS:
        from .upstream import knows_architecture  # noqa: PLC0415

    if "model_file" not in config and not knows_architecture(config):
        kind = str(config.get("model_type"))[:64]
        raise model_unsupported(settings.name, f"mlx_lm has no architecture {kind!r} (model_type of config.json)")
    _check_weights(settings)
    check_adapter(settings)
    if settings.draft_path is not None:
        _check_draft(settings, settings.draft_path)


def _check_encoder(settings: EngineSettings, config: dict[str, Any]) -> None:
    problems = _encoder_problems(settings, config)
    kind = _ENCODERS[settings.kind]
    if problems is None:
        raise model_unsupported(settings.name, f"the folder holds no {kind} any more")
    if "model_file" in config:  # mlx_vlm would run it, trusted or not
        problems.append(f"model_file in config.json is not supported for {kind}s")
    keys = {"adapter_path": settings.adapter_path, "draft_model": settings.draft_path, "kv_bits": settings.kv_bits}
    problems += [f"{key} is not supported for {kind}s" for key, value in keys.items() if value]
    if problems:
        raise model_unsupported(settings.name, "; ".join(problems[:MAX_LISTED]))
    _check_weights(settings)
    try:
        for file in dense_files(settings.path):
            read_header(file)
    except WeightsError as error:
        raise model_corrupt(settings.name, error.file, str(error)) from None


def _encoder_problems(settings: EngineSettings, config: dict[str, Any]) -> list[str] | None:
    """None where the folder holds no model of this kind."""
    if settings.kind is EngineKind.RERANKING:
        return list(read_reranker_folder(settings.path, config).problems) if is_reranker(config) else None
    return list(read_encoder_folder(settings.path, config).problems) if is_embedder(settings.path, config) else None


def _check_vision(settings: EngineSettings, config: dict[str, Any]) -> None:
    options = {"adapter_path": settings.adapter_path, "draft_model": settings.draft_path, "kv_bits": settings.kv_bits}
    asked = [name for name, value in options.items() if value]
    if asked:
        raise model_unsupported(settings.name, f"{', '.join(asked)}: not supported for vision models")
    if not has_processor(settings.path):
        raise model_unsupported(settings.name, f"no image processor: none of {', '.join(PROCESSOR_FILES)} is there")
    with IMPORTS:
        from .vision_upstream import knows_vision_architecture  # noqa: PLC0415

    if "model_file" not in config and not knows_vision_architecture(config):
        kind = str(config.get("model_type"))[:64]
        raise model_unsupported(settings.name, f"mlx_vlm has no vision model {kind!r} (model_type of config.json)")


def _check_draft(settings: EngineSettings, folder: Path) -> None:
    try:
        check_model_folder(replace(settings, path=folder, adapter_path=None, draft_path=None))
    except InferdError as error:
        raise InferdError(error.reason, f"the draft model: {error.message}", facts=error.facts) from None
    vocabularies = [_vocabulary(each) for each in (settings.path, folder)]
    if None not in vocabularies and vocabularies[0] != vocabularies[1]:
        raise model_unsupported(settings.name, "draft_model is not supported: its tokenizer has another vocabulary")


def _vocabulary(folder: Path) -> object:
    """What tokenizer.json says, to compare; None where it says nothing."""
    model = (read_object(folder / "tokenizer.json") or {}).get("model")
    return model.get("vocab") if isinstance(model, dict) else None


def _read_config(settings: EngineSettings) -> dict[str, Any]:
    path = settings.path / "config.json"
    if not path.is_file():
        raise model_unsupported(settings.name, f"model {settings.name!r} has no config.json")
    config = read_object(path)
    if config is None:
        raise model_corrupt(settings.name, path.name, "config.json is no JSON object")
    return config


def _check_trust(settings: EngineSettings, config: dict[str, Any]) -> None:
    """Code in a model's folder runs only if the entry trusts it, and only code of this very folder."""
    code = {"model_file in config.json": config.get("model_file"), "auto_map in config.json": config.get("auto_map")}
    others = ["tokenizer_config.json", *(PROCESSOR_FILES if settings.kind is EngineKind.VISION else ())]
    code |= {f"auto_map in {name}": (read_object(settings.path / name) or {}).get("auto_map") for name in others}
    named = [where for where, value in code.items() if value is not None]
    if named and not settings.trust_remote_code:
        raise model_unsupported(
            settings.name, f"the folder names code to run ({', '.join(named)}); trust_remote_code is not set"
        )
    file = config.get("model_file")
    if file is not None and (not isinstance(file, str) or Path(file).name != file):
        raise model_unsupported(settings.name, "model_file in config.json must name a file of the folder itself")


def _check_weights(settings: EngineSettings) -> None:
    try:
        check_weights(settings.path)
    except WeightsError as error:
        has_gguf = any(settings.path.glob("*.gguf")) and not any(settings.path.glob("*.safetensors"))
        failure = (
            model_unsupported(settings.name, "GGUF weights are not supported; convert them to safetensors")
            if has_gguf
            else model_corrupt(settings.name, error.file, str(error))
        )
        raise failure from None
