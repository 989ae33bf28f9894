"""A configuration is whole and valid, or refused with every problem at once."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferd_server.config import Config, ConfigError, entries, load_config, registry_limits, reload_config, rules
from inferd_server.config.loading import load
from inferd_server.core.model import ContentionPolicy, Strategy
from inferd_server.text.families import REASONING, TOOL_CALLS
from support import tiny_adapter, tiny_llama

Problems = Callable[..., dict[str, str]]
Valid = Callable[..., Config]
GIB = 2**30


def test_a_minimal_file_takes_every_default(valid: Valid, tiny_model: Path) -> None:
    config = valid()
    assert config.server.listen == "127.0.0.1:50051"
    assert config.policy == ContentionPolicy(Strategy.WAIT_THEN_FAIL, 30, 15)
    assert config.budget_nbytes == GIB
    assert config.resume_preempted
    assert config.request_overrides == {Strategy.FAIL, Strategy.WAIT, Strategy.WAIT_THEN_FAIL}
    [entry] = entries(config)
    assert (entry.name, entry.engine.path, entry.max_queue) == ("tiny", tiny_model, 256)
    assert (entry.engine.max_batch_size, entry.engine.prefill_step_size) == (64, 512)
    assert entry.engine.target_gap_seconds is None


def test_every_written_key_arrives(valid: Valid, tiny_model: Path) -> None:
    model = {
        "name": "org/fast:1b",
        "path": str(tiny_model),
        "aliases": ["chat-small"],
        "revision": "2026-11-01",
        "preload": True,
        "pinned": True,
        "continuous_batching": False,
        "max_batch_size": 3,
        "estimated_memory_gb": 0.5,
        "prefill_step_size": 64,
        "target_gap_ms": 50,
        "stream_interval": 2,
        "gpu_memory_utilization": 0.5,
        "max_queue": 7,
        "idle_unload_s": 9,
        "trust_remote_code": True,
        "defaults": {"temperature": 0.1, "top_p": 0.9, "top_k": 5, "max_tokens": 11},
    }
    manager = {
        "memory_budget_gb": 2.5,
        "contention_policy": {"strategy": "wait_then_preempt", "wait_timeout_s": 45, "preempt_after_s": 1.5},
        "preempted_requests": "abort",
        "step_timeout_s": 5,
        "request_overrides": ["preempt"],
    }
    config = valid(models=[model], manager=manager)
    [entry] = entries(config)
    assert (entry.name, entry.aliases, entry.revision) == ("org/fast:1b", ("chat-small",), "2026-11-01")
    assert (entry.preload, entry.pinned, entry.max_queue, entry.idle_unload_seconds) == (True, True, 7, 9)
    assert entry.estimated_bytes == GIB // 2
    assert entry.engine.step_timeout_seconds == 5
    assert not entry.engine.continuous_batching
    assert (entry.engine.max_batch_size, entry.engine.prefill_step_size, entry.engine.stream_interval) == (3, 64, 2)
    assert entry.engine.target_gap_seconds == 0.05
    assert entry.engine.trust_remote_code
    assert (entry.defaults.temperature, entry.defaults.top_k, entry.defaults.max_tokens) == (0.1, 5, 11)
    assert config.policy == ContentionPolicy(Strategy.WAIT_THEN_PREEMPT, 45, 1.5)
    assert config.budget_nbytes == 2.5 * GIB
    assert (config.resume_preempted, config.request_overrides) == (False, {Strategy.PREEMPT})


def test_a_model_falls_back_to_the_sections_above_it(valid: Valid, tiny_model: Path) -> None:
    config = valid(
        server={"defaults": {"max_batch_size": 5, "temperature": 0.3, "continuous_batching": False}},
        manager={"memory_budget_gb": 1, "idle_unload_s": 60},
        models=[
            {"name": "a", "path": str(tiny_model)},
            {"name": "b", "path": str(tiny_model), "idle_unload_s": 0, "continuous_batching": True},
        ],
    )
    a, b = entries(config)
    assert (a.engine.max_batch_size, a.defaults.temperature, a.engine.continuous_batching) == (5, 0.3, False)
    assert (a.idle_unload_seconds, b.idle_unload_seconds, b.engine.continuous_batching) == (60, 0, True)


def test_the_registry_gets_the_manager_section(valid: Valid) -> None:
    manager = {"memory_budget_gb": 1, "min_residency_s": 3, "drain_busy_after_s": 0, "load_timeout_s": 7}
    limits = registry_limits(valid(manager=manager), ceiling_nbytes=5)
    assert (limits.budget_nbytes, limits.ceiling_nbytes, limits.resume_preempted) == (GIB, 5, True)
    assert (limits.min_residency_seconds, limits.drain_busy_after_seconds, limits.load_timeout_seconds) == (3, 0, 7)


# --- problems -----------------------------------------------------------------------------------------------------


def test_all_problems_are_listed_at_once(problems_of: Problems, tiny_model: Path) -> None:
    found = problems_of(
        server={"listen": "0.0.0.0:1", "drain_timeout_s": "30", "bogus": 1, "defaults": {"top_p": 2}},
        manager={"contention_policy": {"strategy": "hope", "wait_timeout_s": 1, "preempt_after_s": 2}},
        models=[
            {"name": "a", "path": str(tiny_model), "enable_mtp": True, "revision": 7},
            {"name": "a", "path": "/nowhere"},
            {"name": "b c", "path": str(tiny_model), "aliases": ["a"], "estimated_memory_gb": 0},
            5,
        ],
        surprise=1,
    )
    assert set(found) == {
        "server.listen",
        "server.drain_timeout_s",
        "server.bogus",
        "server.defaults.top_p",
        "manager.memory_budget_gb",
        "manager.contention_policy.strategy",
        "manager.contention_policy.preempt_after_s",
        "models[0].enable_mtp",
        "models[0].revision",
        "models[1].name",
        "models[1].path",
        "models[2].name",
        "models[2].aliases[0]",
        "models[2].estimated_memory_gb",
        "models[3]",
        "surprise",
    }


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        ("server", "max_queue", "3", "a whole number from 1 to 1000000"),
        ("server", "max_queue", True, "a whole number"),
        ("server", "max_queue", 3.0, "a whole number"),
        ("server", "max_queue", 0, "from 1"),
        ("server", "coalesce_ms", -1, "from 0"),
        ("server", "drain_delay_s", True, "a number of seconds"),
        ("server", "drain_delay_s", float("nan"), "a number of seconds"),
        ("server", "request_timeout_s", float("inf"), "above 0"),
        ("server", "request_timeout_s", 0, "above 0"),
        ("server", "listen", 50051, "text"),
        ("server", "listen", None, "text"),
        ("server", "defaults", 3, "a mapping"),
        ("manager", "memory_budget_gb", 0, "above 0"),
        ("manager", "memory_budget_gb", 10**400, "a number of GiB"),
        ("manager", "contention_policy", "fail", "a mapping"),
        ("manager", "preempted_requests", "retry", "resume, abort"),
        ("manager", "request_overrides", "fail", "a list"),
        ("logging", "format", "xml", "console, json"),
        ("logging", "level", "INFO", "debug, info, warning, error"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(
    problems_of: Problems, section: str, key: str, value: object, allowed: str
) -> None:
    base = {"memory_budget_gb": 1} if section == "manager" else {}
    [(path, message)] = problems_of(**{section: {**base, key: value}}).items()
    assert path == f"{section}.{key}"
    assert message.startswith("must be ")
    assert allowed in message


@pytest.mark.parametrize("value", [3, 3.5])
def test_a_whole_number_will_do_for_a_number(valid: Valid, value: float) -> None:
    assert valid(server={"drain_delay_s": value}).server.drain_delay_s == value


def test_an_unknown_key_is_refused_with_the_known_ones(problems_of: Problems) -> None:
    message = problems_of(server={"drain_timeout": 3})["server.drain_timeout"]
    assert "did you mean drain_timeout_s?" in message
    assert "coalesce_ms" in message


@pytest.mark.parametrize("section", ["server", "manager", "logging"])
def test_a_section_must_be_a_mapping(problems_of: Problems, section: str) -> None:
    assert "must be a mapping; got 'x'" in problems_of(**{section: "x"})[section]


def test_an_empty_section_is_like_none(problems_of: Problems) -> None:
    assert problems_of(server=None, logging=None, metrics=None) == {}
    assert problems_of(manager=None) == {
        "manager.memory_budget_gb": problems_of(manager={})["manager.memory_budget_gb"]
    }


@pytest.mark.parametrize("models", [None, [], {}, "x", 3])
def test_models_must_be_a_list_with_something_in_it(problems_of: Problems, models: object) -> None:
    assert "a list of 1 to" in problems_of(models=models)["models"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("isolation", "process"),
        ("enable_mtp", True),
        ("specprefill", True),
        ("specprefill_threshold", 4096),
        ("specprefill_keep_pct", 0.2),
        ("specprefill_draft_model", "small"),
    ],
)
def test_a_key_that_is_not_built_yet_is_refused_by_name_with_the_reason(
    problems_of: Problems, tiny_model: Path, key: str, value: object
) -> None:
    model = {"name": "a", "path": str(tiny_model), key: value}
    assert problems_of(models=[model])[f"models[0].{key}"].startswith("is not built yet: this version ")


def test_a_key_that_is_not_built_yet_is_accepted_at_its_default(problems_of: Problems, tiny_model: Path) -> None:
    harmless = {"mllm": False, "isolation": "thread", "enable_mtp": False}
    assert problems_of(models=[{"name": "a", "path": str(tiny_model), **harmless}]) == {}


def test_an_adapter_is_a_folder_relative_to_the_file(valid: Valid, problems_of: Problems, tiny_model: Path) -> None:
    model = {"name": "a", "path": str(tiny_model)}
    adapter = tiny_adapter.build(valid().sources.path.parent / "adapter", tiny_model)  # type: ignore[union-attr]
    plain, adapted = valid(models=[model, {**model, "name": "b", "adapter_path": "adapter"}]).entries
    assert (plain.engine.adapter_path, adapted.engine.adapter_path) == (None, adapter)
    assert adapted.estimated_bytes > plain.estimated_bytes
    assert adapted.revision != plain.revision
    file = adapter / "adapters.safetensors"
    found = problems_of(
        models=[
            {**model, "adapter_path": "nowhere"},
            {**model, "name": "b", "adapter_path": str(file)},
            {**model, "name": "c", "adapter_path": 3},
        ]
    )
    assert found["models[0].adapter_path"] == f"there is no folder {adapter.parent / 'nowhere'}"
    assert found["models[1].adapter_path"] == f"must be a folder; {file} is a file"
    assert list(found) == ["models[2].adapter_path", "models[0].adapter_path", "models[1].adapter_path"]


def test_what_is_wrong_with_an_adapter_is_damage(valid: Valid, tiny_model: Path) -> None:
    empty = valid().sources.path.parent / "empty"  # type: ignore[union-attr]
    empty.mkdir()
    config = valid(models=[{"name": "a", "path": str(tiny_model), "adapter_path": "empty"}])
    assert config.damage == {"a": ("adapter_config.json is missing", "adapters.safetensors is missing")}


def test_a_draft_model_is_a_folder_and_its_weights_count(valid: Valid, problems_of: Problems, tiny_model: Path) -> None:
    model = {"name": "a", "path": str(tiny_model)}
    plain, drafted = valid(models=[model, {**model, "name": "b", "draft_model": str(tiny_model)}]).entries
    assert (plain.engine.draft_path, drafted.engine.draft_path) == (None, tiny_model)
    assert drafted.estimated_bytes == 2 * plain.estimated_bytes
    assert drafted.revision == plain.revision
    assert problems_of(models=[{**model, "draft_model": "/nowhere"}]) == {
        "models[0].draft_model": "there is no folder /nowhere"
    }


def test_kv_quantization_is_of_4_or_8_bits_and_reaches_the_engine(
    problems_of: Problems, valid: Callable[..., Config], tiny_model: Path
) -> None:
    model = {"name": "a", "path": str(tiny_model)}
    engine = valid(models=[{**model, "kv_bits": 8, "kv_group_size": 32}]).entries[0].engine
    assert (engine.kv_bits, engine.kv_group_size) == (8, 32)
    assert valid(models=[model]).entries[0].engine.kv_bits == 0
    assert problems_of(models=[{**model, "kv_bits": 3, "kv_group_size": 16}]) == {
        "models[0].kv_bits": "must be 4 or 8 or null; got 3 (int)",
        "models[0].kv_group_size": "must be 32, 64 or 128; got 16 (int)",
    }


def test_the_prefix_cache_s_bound_reaches_every_engine(valid: Callable[..., Config]) -> None:
    assert valid().entries[0].engine.prefix_cache_nbytes == 2048 * 2**20
    assert valid(manager={"memory_budget_gb": 1, "cache_memory_mb": 0}).entries[0].engine.prefix_cache_nbytes == 0


@pytest.mark.parametrize(("key", "names"), [("tool_call_parser", TOOL_CALLS), ("reasoning_parser", REASONING)])
def test_a_parser_is_one_of_those_that_are_known(
    problems_of: Problems, tiny_model: Path, key: str, names: dict[str, object]
) -> None:
    def problems(value: object) -> dict[str, str]:
        return problems_of(models=[{"name": "a", "path": str(tiny_model), key: value}])

    for name in ("auto", "none", *names):
        assert problems(name) == {}
    allowed = ", ".join(names)
    assert problems("hermes") == {f"models[0].{key}": f"must be one of auto, none, {allowed}; got 'hermes'"}
    assert list(problems("none\n")) == list(problems(None)) == list(problems("")) == [f"models[0].{key}"]


def test_a_list_has_a_most_of_elements(problems_of: Problems, tiny_model: Path) -> None:
    model = {"name": "a", "path": str(tiny_model), "aliases": [f"a{i}" for i in range(65)]}
    assert problems_of(models=[model]) == {"models[0].aliases": "must have at most 64 elements; got 65"}


def test_an_unquoted_date_is_not_text(write: Callable[..., Path], tiny_model: Path) -> None:
    file = write()
    file.write_text(
        f"manager: {{memory_budget_gb: 1}}\nmodels: [{{name: a, path: {tiny_model}, revision: 2026-11-01}}]"
    )
    with pytest.raises(ConfigError, match=r"models\[0\].revision: must be text .* got 2026-11-01 \(date\)"):
        load_config(file, {}, {})


# --- rules over several keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a b", "a\n", "ä", "a" * 129, "a,b", "a\\b"])
def test_a_name_has_plain_characters_only(problems_of: Problems, tiny_model: Path, name: str) -> None:
    assert set(problems_of(models=[{"name": name, "path": str(tiny_model)}])) == {"models[0].name"}


@pytest.mark.parametrize("name", ["a", "Org/Model-1.5:4bit_x", "a" * 128])
def test_names_as_people_write_them_are_fine(problems_of: Problems, tiny_model: Path, name: str) -> None:
    assert problems_of(models=[{"name": name, "path": str(tiny_model)}]) == {}


def test_names_and_aliases_are_taken_once(problems_of: Problems, tiny_model: Path) -> None:
    path = str(tiny_model)
    found = problems_of(
        models=[
            {"name": "a", "path": path, "aliases": ["x", "a", "b"]},
            {"name": "b", "path": path, "aliases": ["x", "y", "y"]},
            {"name": "a", "path": path},
        ]
    )
    assert found == {
        "models[0].aliases[1]": "'a' shadows the name of models[0]",
        "models[0].aliases[2]": "'b' shadows the name of models[1]",
        "models[1].aliases[0]": "'x' is an alias already: models[0].aliases[0]",
        "models[1].aliases[2]": "'y' is an alias already: models[1].aliases[1]",
        "models[2].name": "'a' is the name of models[0] already",
    }


@pytest.mark.parametrize(
    ("policy", "overrides", "is_refused"),
    [
        ({"strategy": "wait_then_preempt", "wait_timeout_s": 15}, [], True),
        ({"strategy": "wait_then_preempt", "wait_timeout_s": 15.1}, [], False),
        ({"strategy": "wait_then_fail", "wait_timeout_s": 10}, [], False),
        ({"strategy": "wait_then_fail", "wait_timeout_s": 10, "preempt_after_s": 10}, [], True),
        ({"strategy": "fail", "wait_timeout_s": 10}, ["wait_then_preempt"], True),
    ],
)
def test_preemption_must_come_before_the_wait_is_over(
    problems_of: Problems, policy: dict[str, Any], overrides: list[str], is_refused: bool
) -> None:
    manager = {"memory_budget_gb": 1, "contention_policy": policy, "request_overrides": overrides}
    assert ("manager.contention_policy.preempt_after_s" in problems_of(manager=manager)) == is_refused


@pytest.mark.parametrize("sources", [{}, {"path": "/x", "model": "/x"}, {"path": "/x", "source": "o/m", "model": "m"}])
def test_a_model_has_exactly_one_source(problems_of: Problems, sources: dict[str, str]) -> None:
    assert "exactly one of path, source and model" in problems_of(models=[{"name": "a", **sources}])["models[0]"]


def test_a_path_must_be_a_folder_that_exists(problems_of: Problems, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, message in (
        ("/nowhere", "there is no folder /nowhere"),
        (str(file), f"must be a model's folder; {file} is a file"),
        ("/" + "x" * 300, "cannot look at "),
        ("~nobody-like-this/x", "there is no folder "),
    ):
        assert problems_of(models=[{"name": "a", "path": path}])["models[0].path"].startswith(message)


@pytest.mark.parametrize("key", ["source", "model"])
def test_a_hub_id_is_refused_by_name_and_needs_a_size(problems_of: Problems, key: str) -> None:
    found = problems_of(models=[{"name": "a", key: "org/model-4bit"}])
    assert "'org/model-4bit' is not a local folder, and this version downloads nothing" in found[f"models[0].{key}"]
    assert "is required for a hub id" in found["models[0].estimated_memory_gb"]
    stated = problems_of(models=[{"name": "a", key: "org/model-4bit", "estimated_memory_gb": 0.1}])
    assert set(stated) == {f"models[0].{key}"}


def test_model_may_name_a_folder(valid: Valid, tiny_model: Path) -> None:
    [entry] = entries(valid(models=[{"name": "a", "model": str(tiny_model)}]))
    assert entry.engine.path == tiny_model


def test_a_relative_path_starts_at_the_file(valid: Valid, tmp_path: Path) -> None:
    folder = tiny_llama.build(tmp_path / "models" / "t")
    [entry] = entries(valid(models=[{"name": "a", "path": "models/t"}]))
    assert entry.engine.path == folder


def test_a_model_larger_than_the_budget_is_refused(problems_of: Problems, tiny_model: Path) -> None:
    found = problems_of(
        manager={"memory_budget_gb": 0.0001}, models=[{"name": "a", "path": str(tiny_model), "preload": True}]
    )
    assert found == {"models[0]": "a needs 0.4 MiB, more than manager.memory_budget_gb (0.1 MiB)"}


def test_preloaded_and_pinned_models_must_fit_together(problems_of: Problems, tiny_model: Path) -> None:
    def model(name: str, **keys: Any) -> dict[str, Any]:
        return {"name": name, "path": str(tiny_model), "estimated_memory_gb": 0.6, **keys}

    both = [model("a", preload=True), model("b", pinned=True), model("c")]
    assert (
        "do not fit together: 1.20 GiB of 1.00 GiB (a 0.60 GiB, b 0.60 GiB)"
        in problems_of(models=both)["manager.memory_budget_gb"]
    )
    assert problems_of(models=[model("a", preload=True, pinned=True), model("b"), model("c")]) == {}


def test_a_folder_that_cannot_be_measured_must_state_its_size(problems_of: Problems, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    model = {"name": "a", "path": str(tmp_path / "empty")}
    assert "no weight files" in problems_of(models=[model])["models[0].estimated_memory_gb"]
    assert problems_of(models=[{**model, "estimated_memory_gb": 0.1}]) == {}


def test_a_damaged_model_does_not_keep_its_neighbours_from_being_served(
    valid: Valid, tiny_model: Path, tmp_path: Path
) -> None:
    broken = tiny_llama.build(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    config = valid(models=[{"name": "good", "path": str(tiny_model)}, {"name": "broken", "path": str(broken)}])
    assert config.damage == {"broken": ("model.safetensors: truncated: 1000 bytes are missing",)}


# --- layers -------------------------------------------------------------------------------------------------------


def test_a_flag_outranks_a_variable_which_outranks_the_file(valid: Valid) -> None:
    server = {"max_queue": 1, "coalesce_ms": 1, "drain_delay_s": 1, "defaults": {"top_p": 0.1}}
    config = valid(
        server=server,
        environ={"INFERD_MAX_QUEUE": "2", "INFERD_COALESCE_MS": "2.5", "INFERD_DEFAULT_TOP_P": "0.2"},
        flags={"server.max_queue": "3", "server.defaults.top_p": "0.3"},
    )
    assert config.server.max_queue == 3
    assert config.server.coalesce_ms == 2.5
    assert config.server.drain_delay_s == 1
    assert config.server.defaults.top_p == 0.3


def test_a_bad_variable_or_flag_is_named(problems_of: Problems) -> None:
    found = problems_of(
        environ={"INFERD_MAX_QUEUE": "many", "INFERD_DEFAULT_CONTINUOUS_BATCHING": "yep"},
        flags={"server.coalesce_ms": "nan"},
    )
    assert found["server.max_queue"].endswith("got 'many' (from variable INFERD_MAX_QUEUE)")
    assert found["server.defaults.continuous_batching"].endswith("(from variable INFERD_DEFAULT_CONTINUOUS_BATCHING)")
    assert found["server.coalesce_ms"].endswith("(from flag --coalesce-ms)")


def test_an_empty_variable_is_not_set_and_foreign_ones_do_not_matter(valid: Valid) -> None:
    # Kubernetes sets INFERD_PORT and others for a service called inferd.
    environ = {"INFERD_MAX_QUEUE": "", "INFERD_PORT": "tcp://10.0.0.1:50051", "INFERD_SERVICE_HOST": "10.0.0.1"}
    assert valid(environ=environ).server.max_queue == 1024


def test_a_variable_does_not_hide_a_broken_section(problems_of: Problems) -> None:
    assert "must be a mapping" in problems_of(server="x", environ={"INFERD_MAX_QUEUE": "2"})["server"]
    found = problems_of(server={"defaults": 3}, environ={"INFERD_DEFAULT_TOP_P": "0.5"})
    assert "must be a mapping" in found["server.defaults"]


def test_the_processes_environment_is_read_if_none_is_given(
    write: Callable[..., Path], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "INFERD_MAX_QUEUE", "77")
    file = write(models=[{"name": "a", "path": str(tiny_model)}])
    assert load_config(file).server.max_queue == 77


def test_an_address_that_others_can_reach_needs_insecure(write: Callable[..., Path], tiny_model: Path) -> None:
    file = write(models=[{"name": "a", "path": str(tiny_model)}], server={"listen": "0.0.0.0:50051"})
    with pytest.raises(ConfigError, match="neither TLS nor keys"):
        load_config(file, {}, {})
    assert load_config(file, {}, {}, insecure=True).server.listen == "0.0.0.0:50051"


def test_a_configuration_can_be_read_again(write: Callable[..., Path], tiny_model: Path) -> None:
    models = [{"name": "a", "path": str(tiny_model)}]
    config = load_config(write(models=models), {"server.max_queue": "5"}, {})
    write(models=[*models, {"name": "b", "path": str(tiny_model)}])
    again = reload_config(config, {})
    assert [entry.name for entry in again.entries] == ["a", "b"]
    assert again.server.max_queue == 5
    assert [entry.name for entry in config.entries] == ["a"]
    assert load(config.sources, {}) == again


def test_metrics_are_off_unless_told_where(write: Callable[..., Path], problems_of: Problems, valid: Valid) -> None:
    assert valid().metrics.listen is valid(metrics={"listen": None}).metrics.listen is None
    assert valid(flags={"metrics.listen": "127.0.0.1:9464"}).metrics.listen == "127.0.0.1:9464"
    assert "could read which models" in problems_of(metrics={"listen": "0.0.0.0:9464"})["metrics.listen"]


def test_where_metrics_are_served_is_fixed_while_the_server_runs(write: Callable[..., Path], tiny_model: Path) -> None:
    models = [{"name": "a", "path": str(tiny_model)}]
    config = load_config(write(models=models), {}, {})
    write(models=models, metrics={"listen": "127.0.0.1:0"})
    with pytest.raises(ConfigError, match=r"metrics\.listen: is fixed"):
        reload_config(config, {})


def test_traces_are_off_unless_told_where(write: Callable[..., Path], problems_of: Problems, valid: Valid) -> None:
    off = valid().tracing
    assert (off.endpoint, off.sample_ratio, off.insecure, off.record_prompts) == (None, 1.0, False, False)
    assert valid(flags={"tracing.endpoint": "localhost:4317"}).tracing.endpoint == "localhost:4317"
    problems = problems_of(tracing={"endpoint": "nowhere", "sample_ratio": 2, "headers": {"a": "b"}})
    assert set(problems) == {"tracing.endpoint", "tracing.sample_ratio", "tracing.headers"}


def test_two_hundred_models_are_read_quickly(valid: Valid, tiny_model: Path) -> None:
    config = valid(models=[{"name": f"m{i}", "path": str(tiny_model)} for i in range(200)])
    assert len(config.entries) == 200


def test_to_prevent_sleep_has_an_effect_on_macos_alone(problems_of: Problems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "IS_MACOS", False)
    [(path, message)] = problems_of(server={"prevent_sleep": True}).items()
    assert path == "server.prevent_sleep"
    assert "macOS alone" in message
    assert problems_of(server={"prevent_sleep": False}) == {}
    monkeypatch.setattr(rules, "IS_MACOS", True)
    assert problems_of(server={"prevent_sleep": True}) == {}
