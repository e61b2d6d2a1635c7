"""What may become an attribute or a recorded scalar. A tensor is never read, an object never printed.

`str(tensor)` would wait for the device and put data into telemetry; `str(object)` runs the user's
code. So only plain numbers, booleans and strings pass as they are.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

MAX_TEXT = 4096
MAX_ITEMS = 128
_INT64 = 2**63
_LONGEST_INT = 1023  # bits: beyond is no finite float

PLAIN = frozenset({bool, int, float, str})
_SEQUENCES = (list, tuple, set, frozenset)

Scalar = str | bool | int | float
Attribute = Scalar | list[str] | list[bool] | list[int] | list[float]


def attributes(given: Mapping[str, Any]) -> dict[str, Attribute]:
    """Attributes of a span; None values are left out."""
    return {
        text(key) if type(key) is str else label(key): (
            scalar(value) if type(value) in PLAIN else attribute(value)
        )
        for key, value in given.items()
        if value is not None
    }


def attribute(value: Any) -> Attribute:
    """One attribute: numbers and text as they are, anything else by the name of its type."""
    if isinstance(value, _SEQUENCES):
        items = [scalar(item) for item, _ in zip(value, range(MAX_ITEMS), strict=False)]
        # A sequence has one type, or back ends refuse it.
        return items if len({type(item) for item in items}) <= 1 else [str(i) for i in items]  # type: ignore[return-value]
    return scalar(value)


def scalar(value: Any) -> Scalar:
    kind = type(value)
    if kind is str:
        return text(value)
    if kind is bool or kind is float:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return value if -_INT64 <= value < _INT64 else _huge(value)
    if isinstance(value, enum.Enum):
        return scalar(value.value)
    if isinstance(value, str):
        return text(value)
    if (number_ := number(value)) is not None:
        return scalar(number_)
    return f"<{kind.__module__}.{kind.__qualname__}>"


def text(value: str) -> str:
    """A bounded string that UTF-8 can hold: lone surrogates, from file names say, are replaced."""
    if len(value) > MAX_TEXT:
        value = value[: MAX_TEXT - 1] + "…"
    return str.__str__(value) if value.isascii() else value.encode("utf-8", "replace").decode()


def label(value: Any) -> str:
    """A short name that a user gives, such as a reason; an object counts by its type's name."""
    return text(value) if type(value) is str else text(str(scalar(value)))


def number(value: Any) -> int | float | None:
    """A plain number from Python's or numpy's scalars; None for anything else, tensors included."""
    if isinstance(value, (bool, int)):
        return int(value)
    if isinstance(value, float):
        return float(value)
    # numpy's scalars: told by their module, so that numpy need not be loaded and a tensor, whose
    # `item()` waits for the device, is not touched.
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        plain = value.item()
        return number(plain) if isinstance(plain, (bool, int, float)) else None
    return None


def scalars(given: object) -> tuple[dict[str, int | float | None], list[str]]:
    """Numbers that JSON can hold, and the names of those that were not finite (written as null).

    What is None in `given` stays null; what is no number is left out.
    """
    finite: dict[str, int | float | None] = {}
    nonfinite: list[str] = []
    if not isinstance(given, Mapping):
        raise TypeError(f"scalars are a mapping of names to numbers, not {type(given).__name__}")
    for key, value in given.items():
        plain: int | float | None
        if type(value) is float:
            plain, fits = value, math.isfinite(value)
        else:
            plain = number(value)
            if plain is None and value is not None:
                continue
            fits = plain is None or _is_finite(plain)
        name = key if type(key) is str and key.isascii() and len(key) <= MAX_TEXT else label(key)
        if not fits:
            nonfinite.append(name)
            plain = None
        finite[name] = plain
    return finite, nonfinite


def _is_finite(value: int | float) -> bool:  # noqa: PYI041 - an int is told apart here
    """Whether it is a number that any reader of JSON can hold, at least nearly."""
    return math.isfinite(value) if isinstance(value, float) else value.bit_length() <= _LONGEST_INT


def _huge(value: int) -> str:
    # Python itself refuses to print an integer of some thousand digits.
    bits = value.bit_length()
    return str(value) if bits <= _LONGEST_INT else f"<int of {bits} bits>"
