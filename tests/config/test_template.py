"""The default file is true: it round-trips to the defaults, and names every key."""

from pathlib import Path

import yaml

from inferd_server.config import load_config
from inferd_server.config.problems import hints, nested_section
from inferd_server.config.schema import SECTIONS, LoggingSection, ModelSection, Section, ServerSection
from inferd_server.config.template import default_file, reference


def test_the_default_file_loads_to_the_defaults(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "inferd.yaml"
    file.write_text(default_file().replace("/models/example", str(tiny_model)))
    config = load_config(file, {}, {})
    assert config.server == ServerSection()
    assert config.logging == LoggingSection()
    assert config.models == (ModelSection(name="example", path=str(tiny_model)),)
    assert config.manager == type(config.manager)(memory_budget_gb=16)


def keys_of(section: type[Section], prefix: str = "") -> set[str]:
    found = set()
    for key, annotation in hints(section).items():
        nested = nested_section(annotation)
        found |= keys_of(nested, f"{prefix}{key}.") if nested else {prefix + key}
    return found


def keys_in(document: dict[str, object], prefix: str = "") -> set[str]:
    found = set()
    for key, value in document.items():
        found |= keys_in(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key}
    return found


def test_the_default_file_names_every_key() -> None:
    document = yaml.safe_load(default_file())
    document["models"] = document["models"][0]
    assert {name: keys_in(document[name]) for name in SECTIONS} == {
        name: keys_of(section) for name, section in SECTIONS.items()
    }


def test_every_key_of_the_default_file_is_explained() -> None:
    lines = [line for line in default_file().splitlines() if ":" in line and line.startswith(" ")]
    assert all(" # " in line or line.strip().startswith("#") for line in lines)


def test_the_reference_has_a_row_for_every_key() -> None:
    rows = {line.split("`")[1] for line in reference().splitlines()[2:]}
    names = {"models": "models[]"}
    expected = {f"{names.get(n, n)}.{key}" for n, section in SECTIONS.items() for key in keys_of(section)}
    assert rows == expected
