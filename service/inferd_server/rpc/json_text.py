"""JSON that callers send as text: parsed strictly, since a template or a schema compiler sees it next."""

import json


def parse_object(text: str) -> dict[str, object]:
    """A JSON object whose strings are whole Unicode and whose numbers are finite.

    Raises:
        ValueError: with a description for the caller.
    """
    try:
        value = json.loads(text)
        # JSON escapes can spell lone surrogates, and 1e999 parses as infinity: neither survives this.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate, which is no character") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error.msg} at character {error.pos}") from None
    except ValueError:
        raise ValueError("holds a number that is not finite or too long") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return value
