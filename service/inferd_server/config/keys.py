"""The keys file: API keys by their hashes, with what each may do; validated whole, like the configuration.

It holds no key, only SHA-256 of keys. `inferd keys create` makes a key and its entry.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, StringConstraints, ValidationError

from inferd_server.core.access import MAX_PRIORITY, Access, Key, Limits, MethodGroup
from inferd_server.core.media import NO_MEDIA_LIMITS, MediaLimits
from inferd_server.core.model import Strategy

from .document import read_document
from .problems import ConfigError, Problem, dotted, problems_of, unknown_key
from .schema import Allowed, Images, LimitsSection, MessageMebibytes, Pixels, StrategyName

MAX_KEYS = 10_000
PREFIX = "inferd_"
HASH_PREFIX = "sha256:"
KEY_NBYTES = 32
MIN_KEY_CHARACTERS = 32

KeyId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}\z"), Allowed("1 to 64 of the characters A-Z a-z 0-9 . _ -")
]
KeyHash = Annotated[
    str,
    StringConstraints(pattern=r"^sha256:[0-9a-f]{64}\z"),
    Allowed("sha256: and 64 lower-case hexadecimal digits, as `inferd keys hash` prints them; never the key itself"),
]
ModelPattern = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._:/*?-]{1,128}\z"),
    Allowed("1 to 128 of the characters A-Z a-z 0-9 . _ : / - and * (any characters) and ? (one)"),
]
Group = Annotated[MethodGroup, Field(strict=False)]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), Allowed("a whole number from -100 to 100")]
FileStamp = tuple[int, int, int]
Time = Annotated[AwareDatetime, Allowed("a time with its zone, not in quotes, such as 2027-01-31T00:00:00Z")]


class KeySection(LimitsSection):
    """One key. Its limits are its own; the server's hold beside them."""

    id: KeyId = Field(description="names it in logs and errors")
    hash: KeyHash = Field(description="SHA-256 of the key")
    models: list[ModelPattern] = Field(
        default_factory=lambda: ["*"], max_length=1024, description="names and aliases it may use, with * and ?"
    )
    methods: list[Group] = Field(
        default_factory=lambda: [MethodGroup.GENERATE, MethodGroup.OBSERVE],
        max_length=16,
        description="what it may call",
    )
    strategies: list[StrategyName] | None = Field(
        None, max_length=16, description="of manager.request_overrides; null: all of them"
    )
    max_priority: Priority = Field(MAX_PRIORITY, description="highest priority a request may have")
    max_images: Images | None = Field(None, description="images of a request; null: the server's, which hold anyway")
    max_image_mib: MessageMebibytes | None = Field(None, description="largest image, as it is sent; null: the server's")
    max_image_pixels: Pixels | None = Field(None, description="width times height of an image; null: the server's")
    max_request_pixels: Pixels | None = Field(None, description="pixels of a request's images; null: the server's")
    expires: Time | None = Field(None, description="when it ends")
    disabled: bool = Field(False, description="refuse it")


def file_stamp(path: Path) -> FileStamp | None:
    """What changes whenever a file is written or replaced; None where there is none. Blocking."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def read_keys(path: Path, allowed_strategies: frozenset[Strategy]) -> tuple[Key, ...]:
    """The keys of a file. Blocking.

    Raises:
        ConfigError: with every problem found; none repeats a text, since a key may stand anywhere.
    """
    document = read_document(path)
    problems = [Problem(dotted([key]), unknown_key(key, ["keys"])) for key in document if key != "keys"]
    raw = document.get("keys")
    if not isinstance(raw, list) or len(raw) > MAX_KEYS:
        raise ConfigError([*problems, Problem("keys", f"must be a list of at most {MAX_KEYS} keys")])
    sections: list[KeySection | None] = []
    for i, item in enumerate(raw):
        try:
            sections.append(KeySection.model_validate(item))
        except ValidationError as error:
            sections.append(None)
            problems += [problem for _, problem in problems_of(error, KeySection, ("keys", i), repeats_text=False)]
    problems += _doubles(raw)
    for i, section in enumerate(sections):
        problems += _strategy_problems(i, section, allowed_strategies) if section else ()
    if problems:
        raise ConfigError(problems)
    return tuple(map(_key, filter(None, sections)))


def _doubles(raw: Sequence[object]) -> Iterator[Problem]:
    """Ids and hashes that stand twice."""
    for field in ("id", "hash"):
        first: dict[str, int] = {}
        for i, item in enumerate(raw):
            value = item.get(field) if isinstance(item, dict) else None
            if isinstance(value, str) and first.setdefault(value, i) != i:
                yield Problem(f"keys[{i}].{field}", f"is that of keys[{first[value]}] already")


def _strategy_problems(i: int, section: KeySection, allowed: frozenset[Strategy]) -> Iterator[Problem]:
    for j, strategy in enumerate(section.strategies or ()):
        if strategy not in allowed:
            yield Problem(
                f"keys[{i}].strategies[{j}]", f"{strategy} is not among manager.request_overrides, which bound all keys"
            )


def _key(section: KeySection) -> Key:
    limits = Limits(**{name: getattr(section, name) for name in LimitsSection.model_fields})
    return Key(
        id=section.id,
        digest=bytes.fromhex(section.hash.removeprefix(HASH_PREFIX)),
        access=Access(
            models=tuple(section.models),
            methods=frozenset(section.methods),
            strategies=None if section.strategies is None else frozenset(section.strategies),
            max_priority=section.max_priority,
            limits=limits,
            media_limits=_media_limits(section),
        ),
        disabled=section.disabled,
        expires=None if section.expires is None else section.expires.timestamp(),
    )


def _media_limits(section: KeySection) -> MediaLimits:
    mib = section.max_image_mib
    stated = {
        "max_images": section.max_images,
        "max_image_nbytes": None if mib is None else mib * 2**20,
        "max_image_pixels": section.max_image_pixels,
        "max_request_pixels": section.max_request_pixels,
    }
    return replace(NO_MEDIA_LIMITS, **{name: most for name, most in stated.items() if most is not None})


# --- for `inferd keys` ------------------------------------------------------------------------------------------


def new_key() -> str:
    """A random key of 256 bits."""
    return PREFIX + secrets.token_urlsafe(KEY_NBYTES)


def hash_of(key: str) -> str:
    """What stands in the file for a key.

    Raises:
        ValueError: it is too short to be random, or can't travel in a header.
    """
    if len(key) < MIN_KEY_CHARACTERS:
        raise ValueError(
            f"a key has at least {MIN_KEY_CHARACTERS} characters, drawn at random: see `inferd keys create`"
        )
    if not all("!" <= character <= "~" for character in key):
        raise ValueError("a key has no spaces, and ASCII characters alone")
    return HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


def entry_text(**fields: Any) -> str:
    """The entry of a key with these fields, to go below `keys:`.

    Raises:
        ConfigError: what is wrong with them.
    """
    try:
        KeySection.model_validate(fields)
    except ValidationError as error:
        raise ConfigError([problem for _, problem in problems_of(error, KeySection, ())]) from None
    # JSON is YAML: lists in one line, words in quotes.
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(f"  {'-' if i == 0 else ' '} {line}" for i, line in enumerate(lines))


def key_rows(keys: Sequence[Key], now: float) -> Iterator[tuple[str, ...]]:
    """A table of keys: id, state, methods, models, limits."""
    yield ("key", "state", "methods", "models", "limits")
    for key in keys:
        limits = [
            f"{name}={value}"
            for name in LimitsSection.model_fields
            if (value := getattr(key.access.limits, name)) is not None
        ]
        methods = " ".join(group for group in MethodGroup if group in key.access.methods)
        yield (key.id, _state(key, now), methods or "-", " ".join(key.access.models) or "-", " ".join(limits) or "-")


def _state(key: Key, now: float) -> str:
    if key.disabled:
        return "disabled"
    if key.expires is None:
        return "valid"
    when = datetime.fromtimestamp(key.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"valid until {when}" if key.is_valid(now) else f"expired {when}"
