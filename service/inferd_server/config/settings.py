"""Settings that can also be given outside the file: each key of a plain section as flag and variable."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from .problems import hints, nested_section
from .schema import (
    AuthSection,
    LimitsSection,
    LoggingSection,
    MetricsSection,
    Section,
    ServerSection,
    TlsSection,
    TracingSection,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        location: its place in the file: ("server", "defaults", "top_p").
        flag: `--default-top-p`.
        variable: `INFERD_DEFAULT_TOP_P`.
        kind: the type to read its text as: bool, int, float or str.
        meaning: one line for people, without its default.
        default: its default.
    """

    location: tuple[str, ...]
    flag: str
    variable: str
    kind: type
    meaning: str
    default: object

    @property
    def path(self) -> str:
        """`server.defaults.top_p`."""
        return ".".join(self.location)


def _settings(section: type[Section], location: tuple[str, ...], stem: str) -> Iterator[Setting]:
    for key, annotation in hints(section).items():
        field = section.model_fields[key]
        nested = nested_section(annotation)
        if nested is not None:
            yield from _settings(nested, (*location, key), "default_")
            continue
        word = stem + key
        yield Setting(
            location=(*location, key),
            flag="--" + word.replace("_", "-"),
            variable="INFERD_" + word.upper(),
            kind=_kind(field.annotation),
            meaning=field.description or "",
            default=field.default,
        )


def _kind(annotation: Any) -> type:
    plain = annotation
    for choice in get_args(annotation):  # of `float | None`, with its marks
        if choice is not type(None):
            plain = get_args(choice)[0] if get_origin(choice) is Annotated else choice
    return plain if plain in (bool, int, float) else str


SETTINGS: tuple[Setting, ...] = (
    *_settings(ServerSection, ("server",), ""),
    *_settings(LoggingSection, ("logging",), "log_"),
    *_settings(MetricsSection, ("metrics",), "metrics_"),
    *_settings(TracingSection, ("tracing",), "tracing_"),
    *_settings(TlsSection, ("tls",), "tls_"),
    *_settings(AuthSection, ("auth",), "auth_"),
    *_settings(LimitsSection, ("limits",), "limit_"),
)


def read_text(text: str, kind: type) -> object:
    """The value that a flag's or variable's text means; the text itself where it is not of that kind (the schema then
    refuses it with what is allowed)."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.strip().lower(), text)
    if kind is str:
        return text
    try:
        return kind(text)
    except ValueError:
        return text


def overlays(flags: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[tuple[Setting, object, str]]:
    """What flags and variables set: (setting, value, who says so). A flag wins; an empty variable is not set.

    Args:
        flags: text by Setting.path, only those given.
        environ: the environment.
    """
    for setting in SETTINGS:
        if setting.path in flags:
            yield setting, read_text(flags[setting.path], setting.kind), f"flag {setting.flag}"
        elif environ.get(setting.variable):
            yield setting, read_text(environ[setting.variable], setting.kind), f"variable {setting.variable}"
