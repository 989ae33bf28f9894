"""Whatever a file holds, it is a valid configuration or a list of problems; never another exception."""

from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferd_server.config import ConfigError, Problem, load_config
from inferd_server.config.document import parse_document
from inferd_server.config.problems import hints, nested_section
from inferd_server.config.schema import SECTIONS, Section

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.dates()
    | st.sampled_from(
        ["a", "b", "fail", "preempt", "thread", "auto", "/", "~", ".", "unix:/x", "127.0.0.1:1", 1, 2, 0.5]
    )
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner)
)


def section_of(kind: type[Section]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with known keys and any values, often plausible ones."""
    values = {
        key: section_of(nested) if (nested := nested_section(hint)) else SCALARS for key, hint in hints(kind).items()
    }
    return st.fixed_dictionaries({}, optional={key: value | ANYTHING for key, value in values.items()})


DOCUMENTS = st.fixed_dictionaries(
    {
        "manager": section_of(SECTIONS["manager"]) | ANYTHING,
        "models": st.lists(section_of(SECTIONS["models"]) | ANYTHING, max_size=4) | ANYTHING,
    },
    optional={
        "server": section_of(SECTIONS["server"]) | ANYTHING,
        "logging": section_of(SECTIONS["logging"]) | ANYTHING,
        "auth": section_of(SECTIONS["auth"]) | ANYTHING,
        "limits": section_of(SECTIONS["limits"]) | ANYTHING,
    },
)


def problems_of(read: Callable[[], object]) -> list[Problem]:
    """The problems of what is read; any other exception fails the test."""
    try:
        read()
    except ConfigError as error:
        return error.problems
    return []


@given(document=DOCUMENTS | ANYTHING.filter(lambda value: isinstance(value, dict)))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_document_is_valid_or_has_problems(document: dict[str, Any]) -> None:
    before = repr(document)
    problems = problems_of(lambda: load_config(None, {}, {}, document=document))
    assert all(problem.message and problem.path and "\n" not in str(problem) for problem in problems)
    assert repr(document) == before


@given(text=st.text(alphabet="ab:-[]{}&*!?|>%@#'\",\n \t1.~<", max_size=60))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_text_is_a_mapping_or_one_problem(text: str) -> None:
    assert len(problems_of(lambda: parse_document(text))) <= 1


@given(document=st.dictionaries(st.text(max_size=5), ANYTHING, max_size=3))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_plain_yaml_reads_as_it_was_written(document: dict[str, Any]) -> None:
    assert repr(parse_document(yaml.safe_dump(document))) == repr(yaml.safe_load(yaml.safe_dump(document)))
