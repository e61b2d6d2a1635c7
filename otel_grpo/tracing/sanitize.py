"""What may become an attribute or a recorded scalar. A tensor is never read, an object never printed.

`str(tensor)` would wait for the device and put data into telemetry; `str(object)` runs the user's
code. So only plain numbers, booleans and strings pass as they are.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from typing import Any

MAX_TEXT = 4096
MAX_ITEMS = 128
_INT64 = 2**63

Scalar = str | bool | int | float
Attribute = Scalar | list[str] | list[bool] | list[int] | list[float]


def attributes(given: Mapping[str, Any]) -> dict[str, Attribute]:
    """Attributes of a span; None values are left out."""
    return {str(key): attribute(value) for key, value in given.items() if value is not None}


def attribute(value: Any) -> Attribute:
    """One attribute: numbers and text as they are, anything else by the name of its type."""
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [scalar(item) for item, _ in zip(value, range(MAX_ITEMS), strict=False)]
        # A sequence has one type, or back ends refuse it.
        return items if len({type(item) for item in items}) <= 1 else [str(i) for i in items]  # type: ignore[return-value]
    return scalar(value)


def scalar(value: Any) -> Scalar:
    kind = type(value)
    if kind is bool or kind is float:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, enum.Enum):
        return scalar(value.value)
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"
    if (number_ := number(value)) is not None:
        return scalar(number_)
    return f"<{kind.__module__}.{kind.__qualname__}>"


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


def scalars(given: Mapping[str, Any]) -> tuple[dict[str, int | float | None], list[str]]:
    """Numbers that JSON can hold, and the names of those that were not finite (written as null).

    What is None in `given` stays null; what is no number is left out.
    """
    finite: dict[str, int | float | None] = {}
    nonfinite: list[str] = []
    for name, value in given.items():
        if value is None:
            finite[str(name)] = None
            continue
        plain = number(value)
        if plain is None:
            continue
        if isinstance(plain, float) and not math.isfinite(plain):
            nonfinite.append(str(name))
            plain = None
        finite[str(name)] = plain
    return finite, nonfinite


def lengths(values: Iterable[int]) -> list[int]:
    """Python ints of a sequence of counts; raises for tensors, fractions and negative numbers."""
    plain = [number(value) for value in values]
    if any(not isinstance(value, int) or value < 0 for value in plain):
        raise ValueError("counts are whole numbers that are not negative")
    return plain  # type: ignore[return-value]
