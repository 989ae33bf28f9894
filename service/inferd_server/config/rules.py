"""Rules that concern more than one key."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferd_server.core.errors import echo
from inferd_server.core.model import ModelEntry, Strategy
from inferd_server.registry.catalog import ModelFacts

from .entry import GIBIBYTE, folder_problem, local_folder, named_path
from .problems import Location, Problem, dotted, hints, nested_section
from .schema import Later, ManagerSection, ModelSection, Section, ServerSection

IS_MACOS = sys.platform == "darwin"
SOURCE_KEYS = ("path", "source", "model")


def later_problems(section: Section, prefix: Location) -> Iterator[Problem]:
    """Keys that are set although what they ask for is not built yet."""
    for key, annotation in hints(type(section)).items():
        value = getattr(section, key)
        if nested_section(annotation) is not None:
            yield from later_problems(value, (*prefix, key))
        for mark in type(section).model_fields[key].metadata:
            default = type(section).model_fields[key].default
            if isinstance(mark, Later) and value != default and value not in mark.harmless:
                shown = "null" if default is None else str(default).lower()
                yield Problem(dotted((*prefix, key)), f"is not built yet: {mark.reason}. Leave it at {shown}")


def system_problems(server: ServerSection) -> Iterator[Problem]:
    """Keys without any effect on this system."""
    if server.prevent_sleep and not IS_MACOS:
        yield Problem("server.prevent_sleep", "has no effect on this system: inferd prevents sleep on macOS alone")


def policy_problems(manager: ManagerSection) -> Iterator[Problem]:
    """Times of preemption that can never come."""
    policy = manager.contention_policy
    matters = (
        "preempt_after_s" in policy.model_fields_set
        or policy.strategy is Strategy.WAIT_THEN_PREEMPT
        or Strategy.WAIT_THEN_PREEMPT in manager.request_overrides
    )
    if matters and policy.preempt_after_s >= policy.wait_timeout_s:
        yield Problem(
            "manager.contention_policy.preempt_after_s",
            f"must be below wait_timeout_s ({policy.wait_timeout_s:g}); got {policy.preempt_after_s:g}",
        )


def name_problems(models: Sequence[object]) -> Iterator[Problem]:
    """Names and aliases that are taken. `models` are the raw entries, so that broken ones count too."""
    names: dict[str, int] = {}
    for i, model in enumerate(models):
        name = model.get("name") if isinstance(model, dict) else None
        if isinstance(name, str) and names.setdefault(name, i) != i:
            yield Problem(f"models[{i}].name", f"{echo(name)!r} is the name of models[{names[name]}] already")
    owners: dict[str, str] = {}
    for i, model in enumerate(models):
        aliases = model.get("aliases") if isinstance(model, dict) else None
        for j, alias in enumerate(aliases if isinstance(aliases, list) else []):
            path = f"models[{i}].aliases[{j}]"
            if isinstance(alias, str):
                if alias in names:
                    yield Problem(path, f"{echo(alias)!r} shadows the name of models[{names[alias]}]")
                elif alias in owners:
                    yield Problem(path, f"{echo(alias)!r} is an alias already: {owners[alias]}")
                owners.setdefault(alias, path)


def source_problems(raw: Mapping[str, Any], model: ModelSection, i: int, directory: Path) -> Iterator[Problem]:
    """Where the weights come from: exactly one source, which is a folder that exists."""
    stated = [key for key in SOURCE_KEYS if raw.get(key) is not None]
    if len(stated) != 1:
        given = f"got {' and '.join(stated)}" if stated else "got none"
        yield Problem(f"models[{i}]", f"must have exactly one of path, source and model; {given}")
        return
    key = stated[0]
    if getattr(model, key) is None:  # it has the wrong type, which was said already
        return
    folder = local_folder(model, directory)
    if folder is None:
        yield from _hub_problems(raw, model, i, key)
        return
    problem = folder_problem(folder)
    if problem:
        yield Problem(f"models[{i}].{key}", problem)


def companion_problems(model: ModelSection, i: int, directory: Path) -> Iterator[Problem]:
    """An adapter and a draft model are folders that exist."""
    for key in ("adapter_path", "draft_model"):
        folder = named_path(getattr(model, key), directory)
        problem = "" if folder is None else folder_problem(folder)
        if problem:
            yield Problem(f"models[{i}].{key}", problem.replace("a model's folder", "a folder"))


def _hub_problems(raw: Mapping[str, Any], model: ModelSection, i: int, key: str) -> Iterator[Problem]:
    stated = echo(getattr(model, key))
    yield Problem(
        f"models[{i}].{key}",
        f"{stated!r} is not a local folder, and this version downloads nothing from a hub; fetch it and set path",
    )
    if raw.get("estimated_memory_gb") is None:
        yield Problem(
            f"models[{i}].estimated_memory_gb", f"is required for a hub id such as {stated!r}: GiB of its weights"
        )


def size_problems(i: int, entry: ModelEntry, facts: ModelFacts, budget_nbytes: int) -> Iterator[Problem]:
    """A model without a size, or larger than the whole budget."""
    if entry.estimated_bytes == 0:
        why = "; ".join(facts.damage)
        yield Problem(
            f"models[{i}].estimated_memory_gb",
            f"is required: {entry.engine.path} cannot be measured ({why or 'its weights are empty'})",
        )
    elif entry.estimated_bytes > budget_nbytes:
        yield Problem(
            f"models[{i}]",
            f"{entry.name} needs {gib(entry.estimated_bytes)}, more than manager.memory_budget_gb "
            f"({gib(budget_nbytes)})",
        )


def resident_set_problems(entries: Sequence[ModelEntry], budget_nbytes: int) -> Iterator[Problem]:
    """Preloaded and pinned models that do not fit together."""
    wanted = [entry for entry in entries if entry.preload or entry.pinned]
    total = sum(entry.estimated_bytes for entry in wanted)
    # One that is too large by itself was named before.
    if total > budget_nbytes and all(entry.estimated_bytes <= budget_nbytes for entry in wanted):
        sizes = ", ".join(f"{entry.name} {gib(entry.estimated_bytes)}" for entry in wanted[:16])
        more = f" and {len(wanted) - 16} more" if len(wanted) > 16 else ""
        yield Problem(
            "manager.memory_budget_gb",
            f"the preload and pinned models do not fit together: {gib(total)} of {gib(budget_nbytes)} ({sizes}{more})",
        )


def gib(nbytes: int) -> str:
    """Bytes for people: `1.25 GiB`, in MiB or bytes where it is small."""
    if nbytes >= GIBIBYTE // 10:
        return f"{nbytes / GIBIBYTE:.2f} GiB"
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 // 10 else f"{nbytes} bytes"
