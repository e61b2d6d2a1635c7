"""Columns of whole numbers: lists as arrays and back, and sums that are exact."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import mul

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def as_array(values: Sequence[int] | Ints) -> Ints:
    """An array of Python's integers, or the array that was given. Shape (len(values),).

    Of dtype object where one needs more than 64 bits: what is computed of it is as exact, only slower.
    """
    if isinstance(values, np.ndarray):
        return values
    try:
        # Half the time of numpy's own reading, which looks for the type of each value.
        return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
    except struct.error:
        return np.array(values, dtype=object)


def as_ints(values: Ints) -> Sequence[int]:
    """Python's integers, made faster than by ``tolist``."""
    return struct.unpack(f"{len(values)}q", np.ascontiguousarray(values).data)


def total(values: Ints, times: Ints | None = None) -> int:
    """Exact sum of ``values``, or of ``values * times`` where each occurred so many times."""
    if not len(values):
        return 0
    n = len(values) if times is None else int(times.sum())
    if max(-int(values.min()), int(values.max())) * n < 2**63:  # no part of the sum is larger
        return int(values.sum(dtype=np.int64) if times is None else values @ times)
    return sum(values.tolist() if times is None else map(mul, values.tolist(), times.tolist()))
