"""From configured models to the entries that the rooms below know."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from inferd_server.core.model import ContentionPolicy, EngineKind, EngineSettings, ModelEntry, SamplingDefaults
from inferd_server.registry.catalog import ModelFacts, with_facts

from .schema import Defaults, ManagerSection, ModelSection, ServerSection

GIBIBYTE = 2**30
ENGINE_KEYS = ("continuous_batching", "max_batch_size", "prefill_step_size", "stream_interval")
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")


def nbytes_of(gibibytes: float) -> int:
    """GiB as bytes."""
    return round(gibibytes * GIBIBYTE)


def local_folder(model: ModelSection, directory: Path) -> Path | None:
    """The folder that an entry names, made absolute from the file's `directory`; None for a hub id.

    `model` may be either: it is a folder where it looks like a path or where such a folder exists.
    """
    stated = model.path or model.model
    if stated is None:
        return None
    folder = (directory / _expanded(stated)).absolute()
    looks_like_path = model.path is not None or stated.startswith(("/", "./", "../", "~"))
    return folder if looks_like_path or not folder_problem(folder) else None


class Folders(NamedTuple):
    """Where a configured model's files lie."""

    model: Path
    adapter: Path | None = None
    draft: Path | None = None


def named_path(stated: str | None, directory: Path) -> Path | None:
    """A path that the file may name, made absolute from its `directory`."""
    return None if stated is None else absolute_path(stated, directory)


def absolute_path(stated: str, directory: Path) -> Path:
    """A path that the file names, made absolute from its `directory`."""
    return (directory / _expanded(stated)).absolute()


def folder_problem(folder: Path) -> str:
    """Why this is no folder to read from; "" if it is one."""
    try:
        if folder.is_dir():
            return ""
        return f"must be a model's folder; {folder} is a file" if folder.exists() else f"there is no folder {folder}"
    except OSError as error:
        return f"cannot look at {folder}: {error.strerror or error}"


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user, or no home
        return Path(path)


def contention_policy(manager: ManagerSection) -> ContentionPolicy:
    """The server's default policy."""
    section = manager.contention_policy
    return ContentionPolicy(section.strategy, section.wait_timeout_s, section.preempt_after_s)


def entry_of(
    model: ModelSection, server: ServerSection, manager: ManagerSection, folders: Folders, facts: ModelFacts
) -> ModelEntry:
    """One configured model with what its files say."""
    idle_unload_seconds = manager.idle_unload_s if model.idle_unload_s is None else model.idle_unload_s
    stated = ModelEntry(
        name=model.name,
        engine=EngineSettings(
            name=model.name,
            path=folders.model,
            kind=EngineKind.VISION if model.mllm else EngineKind.LANGUAGE,
            adapter_path=folders.adapter,
            draft_path=folders.draft,
            trust_remote_code=model.trust_remote_code,
            step_timeout_seconds=manager.step_timeout_s,
            prefix_cache_nbytes=manager.cache_memory_mb * 2**20,
            kv_bits=model.kv_bits or 0,
            kv_group_size=model.kv_group_size,
            target_gap_seconds=_target_gap_seconds(model, server.defaults),
            **_chosen(model, server.defaults),
        ),
        aliases=tuple(model.aliases),
        revision=model.revision or "",
        estimated_bytes=nbytes_of(model.estimated_memory_gb or 0),
        pinned=model.pinned,
        preload=model.preload,
        idle_unload_seconds=idle_unload_seconds,
        max_queue=model.max_queue,
        tool_call_parser=model.tool_call_parser,
        reasoning_parser=model.reasoning_parser,
    )
    return with_facts(stated, facts, model.defaults.model_dump(exclude_none=True), _sampling(server.defaults))


def memory_share(model: ModelSection, server: ServerSection) -> float:
    """The effective gpu_memory_utilization of a model."""
    own = model.gpu_memory_utilization
    return server.defaults.gpu_memory_utilization if own is None else own


def is_batching(model: ModelSection, server: ServerSection) -> bool:
    """Whether the model decodes several requests together."""
    own = model.continuous_batching
    return server.defaults.continuous_batching if own is None else own


def _chosen(model: ModelSection, defaults: Defaults) -> Mapping[str, Any]:
    own = model.model_dump(include=set(ENGINE_KEYS), exclude_none=True)
    return {key: own.get(key, getattr(defaults, key)) for key in ENGINE_KEYS}


def _target_gap_seconds(model: ModelSection, defaults: Defaults) -> float | None:
    milliseconds = defaults.target_gap_ms if model.target_gap_ms is None else model.target_gap_ms
    return None if milliseconds is None else milliseconds / 1000


def _sampling(defaults: Defaults) -> SamplingDefaults:
    return SamplingDefaults(**{key: getattr(defaults, key) for key in SAMPLING_KEYS})
