"""Every server key has a flag and a variable."""

import pytest

from inferd_server.config.problems import hints, nested_section
from inferd_server.config.schema import ServerSection
from inferd_server.config.settings import SETTINGS, read_text


def server_keys() -> set[tuple[str, ...]]:
    keys = set()
    for key, annotation in hints(ServerSection).items():
        nested = nested_section(annotation)
        keys |= {("server", key, inner) for inner in hints(nested)} if nested else {("server", key)}
    return keys


def test_every_server_key_has_a_setting() -> None:
    assert {setting.location for setting in SETTINGS if setting.location[0] == "server"} == server_keys()


def test_flags_and_variables_are_unique_and_named_after_their_keys() -> None:
    assert (
        len({setting.flag for setting in SETTINGS}) == len({setting.variable for setting in SETTINGS}) == len(SETTINGS)
    )
    names = {setting.path: (setting.flag, setting.variable) for setting in SETTINGS}
    assert names["server.listen"] == ("--listen", "INFERD_LISTEN")
    assert names["server.drain_timeout_s"] == ("--drain-timeout-s", "INFERD_DRAIN_TIMEOUT_S")
    assert names["server.defaults.temperature"] == ("--default-temperature", "INFERD_DEFAULT_TEMPERATURE")
    assert names["metrics.listen"] == ("--metrics-listen", "INFERD_METRICS_LISTEN")
    assert names["logging.format"] == ("--log-format", "INFERD_LOG_FORMAT")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", int, 3),
        ("3.5", float, 3.5),
        ("True", bool, True),
        ("false", bool, False),
        ("3", str, "3"),
        ("x", int, "x"),
        ("1.5", int, "1.5"),
        ("", float, ""),
        ("yes", bool, "yes"),
        ("9" * 5000, int, "9" * 5000),
    ],
)
def test_text_means_a_value_of_its_kind_or_stays_text(text: str, kind: type, value: object) -> None:
    assert read_text(text, kind) == value
