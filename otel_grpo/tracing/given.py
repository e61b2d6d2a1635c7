"""What users give, as plain values: anything else raises ValueError with a sentence about it.

A tensor is refused by its type and never read: reading it would wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Annotated, Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from otel_grpo.core.columns import Ints, as_array
from otel_grpo.core.ledger import Batch, RolloutId, Samples, Visit
from otel_grpo.records.model import PublicationKind, RunStatus, WindowStatus
from otel_grpo.tracing import sanitize

# One number, or one boolean, for each sample: lists and arrays alike.
Counts = Sequence[int] | npt.NDArray[np.integer[Any]]
Flags = Sequence[bool] | npt.NDArray[np.bool_]
# Gives columns by their names in the record, and whether each sample was truncated.
Reader = Callable[[], tuple[Mapping[str, Counts | None], Flags]]

_INTEGERS = list[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]]
_NATURALS = list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]
_READABLE = frozenset({"builtins", "numpy", "array"})
_KINDS = frozenset(get_args(PublicationKind))
_STATUSES = frozenset(get_args(WindowStatus))
_ENDS = frozenset(get_args(RunStatus)) - {"running"}


def whole(value: Any, name: str) -> int:
    """A whole number, such as a version or an instant in nanoseconds."""
    if type(value) is int:
        return value
    plain = sanitize.number(value)
    if not isinstance(plain, int):
        raise ValueError(f"{name} is a whole number, not {_kind(value)}")
    return plain


def natural(value: Any, name: str) -> int:
    """A count."""
    if type(value) is int and value >= 0:
        return value
    plain = whole(value, name)
    if plain < 0:
        raise ValueError(f"{name} is not negative")
    return plain


def ranks(values: Any) -> tuple[int, ...]:
    return tuple(natural(value, "a rank") for value in values)


def steps(values: Any) -> list[int]:
    return [whole(value, "a step") for value in values]


def publication_kind(value: Any) -> PublicationKind:
    if not isinstance(value, str) or value not in _KINDS:
        raise ValueError(f"the kind of a publication is one of {', '.join(sorted(_KINDS))}")
    return value  # type: ignore[return-value]


def window_status(value: Any) -> WindowStatus:
    if not isinstance(value, str) or value not in _STATUSES:
        raise ValueError(f"the status of an iteration is one of {', '.join(sorted(_STATUSES))}")
    return value  # type: ignore[return-value]


def run_status(value: Any) -> RunStatus:
    if not isinstance(value, str) or value not in _ENDS:
        raise ValueError(f"a run ends as one of {', '.join(sorted(_ENDS))}")
    return value  # type: ignore[return-value]


def rollout(rollout_id: Any) -> RolloutId:
    if type(rollout_id) is int:
        return rollout_id
    if isinstance(rollout_id, str):
        return sanitize.text(rollout_id)
    plain = sanitize.number(rollout_id)
    if isinstance(plain, int):
        return plain
    raise ValueError(f"a rollout id is a string or a whole number, not {_kind(rollout_id)}")


def extent(columns: Iterable[Any], n: Any, first: Any) -> range:
    """Indices of the samples that are given; empty where the arguments make no sense."""
    try:
        count = next((len(column) for column in columns if column is not None), n)
        start = natural(first, "first")
        return range(start, start + natural(count or 0, "n"))
    except Exception:  # whatever a user's object raises: `consumed` says what is wrong
        return range(0)


def batch(
    rollout_id: Any,
    columns: Mapping[str, Any],
    indices: range,
    truncated: Any,
    extent: tuple[Any, Any],
) -> Batch:
    """The samples with these indices, which `extent` made of the first index and their number."""
    first, n = natural(extent[0], "first"), extent[1]
    size = len(indices)
    if n is not None and natural(n, "n") != size:
        raise ValueError(f"n: {n} samples, but columns of {size}")
    known = {
        name: integers(values, size, name) if name == "group_ids" else column(values, size, name)
        for name, values in columns.items()
        if values is not None
    }
    cut = None if truncated is None else flagged(truncated, size, "truncated")
    return Batch(rollout(rollout_id), first, size, known, cut)


def read(reader: Reader, rollout_id: RolloutId, indices: range, lag: int) -> Batch:
    """The samples with these indices, with the columns that an adapter's `reader` gives."""
    columns, truncated = reader()
    made = batch(rollout_id, columns, indices, truncated, (indices.start, len(indices)))
    made.columns["policy_lag"] = as_array([lag] * len(indices))
    return made


def column(values: Any, n: int, name: str) -> Ints:
    """One count per sample. Shape (n,)."""
    array = _from_list(values, _NATURALS)
    if array is not None and len(array) == n:
        return array
    return _not_negative(integers(values, n, name), name)


def integers(values: Any, n: int, name: str) -> Ints:
    """One whole number per sample. Shape (n,)."""
    array = _from_list(values, _INTEGERS)
    if array is None:
        _refuse_unreadable(values, name)
        array = np.array(values)  # a copy: the training may write on its own
    if array.shape != (n,):
        raise ValueError(f"{name}: {array.shape} is not one number for each of {n} samples")
    kind = array.dtype.kind
    if n and (kind not in "iu" or (kind == "u" and int(array.max()) >= 2**63)):
        raise ValueError(f"{name}: whole numbers of at most 64 bits are needed")
    return array.astype(np.int64, copy=False)


def _from_list(values: Any, kind: Any) -> Ints | None:
    """A list of Python's own integers, the usual case, read in a third of the time; else None."""
    if type(values) is not list:
        return None
    try:
        return as_array(msgspec.convert(values, kind))
    except msgspec.ValidationError:
        return None


def lags(versions: int | Counts, now: int, n: int) -> Ints:
    """How far each sample's weights version, one each or one for all, is behind. Shape (n,)."""
    plain = sanitize.number(versions)
    if isinstance(plain, int):
        return as_array([now - plain] * n)
    return now - column(versions, n, "versions")


def flagged(values: Any, n: int, name: str) -> Ints:
    """Positions of the samples that are marked, from one boolean per sample."""
    if _are_flags(values) and len(values) == n:
        return as_array([*compress(range(n), values)])
    _refuse_unreadable(values, name)
    array = np.asarray(values)
    if array.shape != (n,) or (n and array.dtype.kind not in "biu"):
        raise ValueError(f"{name}: one boolean for each of {n} samples is needed")
    return np.flatnonzero(array)


def _are_flags(values: Any) -> bool:
    """Whether they are a list of Python's booleans, the usual case."""
    return type(values) is list and set(map(type, values)) <= {bool}


def visits(samples: Iterable[tuple[RolloutId, int]]) -> list[Visit]:
    """Ids of samples as arrays per rollout, in the order given."""
    if isinstance(samples, Samples):
        return [Visit(rollout(samples.rollout_id), _indices(samples.indices))]
    if hasattr(type(samples), "__array__"):
        raise ValueError(f"samples: give (rollout id, index) pairs, not {_kind(samples)}")
    parts: list[tuple[RolloutId, list[int]]] = []
    for rollout_id, index in samples:
        if not parts or parts[-1][0] != rollout_id:
            parts.append((rollout_id, []))
        parts[-1][1].append(index)
    return [Visit(rollout(rollout_id), _indices(indices)) for rollout_id, indices in parts]


def _indices(indices: Sequence[int] | Ints) -> Ints | range:
    if type(indices) is np.ndarray and indices.dtype == np.int64:
        return indices  # an adapter's, from the ids that it got
    if isinstance(indices, range) and (
        not indices or (0 <= indices[0] < 2**63 and 0 <= indices[-1] < 2**63)
    ):
        return indices
    return column(indices, len(indices), "samples")


def _not_negative(array: Ints, name: str) -> Ints:
    if len(array) and int(array.min()) < 0:
        raise ValueError(f"{name}: a negative number")
    return array


def _refuse_unreadable(values: Any, name: str) -> None:
    # numpy would read a tensor, and a list of tensors, element by element.
    kinds = {type(values)}
    if isinstance(values, (list, tuple)):
        kinds.update(map(type, values))
    for kind in kinds:
        if kind.__module__.partition(".")[0] not in _READABLE:
            raise ValueError(f"{name}: give Python or numpy numbers, not {kind.__name__}")


def _kind(value: Any) -> str:
    return type(value).__name__
