"""The account of a window, from a matrix of spans by atoms.

An atom is the stretch between two neighbouring boundaries. ``active[i, k]`` says whether span i
covers atom k; whatever the specification asks of an atom is then a boolean question to a column,
and a duration is a row of answers times the widths of the atoms. Nothing is swept, nothing merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from otel_grpo.records.model import IntervalRow

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# spans x atoms that are looked at together: bounds the memory of a window with many spans
_CELLS = 4_000_000
_FEW = 12


@dataclass
class Account:
    """The durations of one window in nanoseconds, by the names of ``metrics``."""

    metrics: dict[str, int] = field(default_factory=dict)
    segments: dict[tuple[str, ...], int] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)


def atoms(start: Ints, end: Ints, edges: Sequence[int] = ()) -> Iterator[tuple[Bools, Ints]]:
    """The matrix ``active`` and the widths of the atoms, some columns at a time."""
    cuts = np.unique(np.concatenate((start, end, np.asarray(edges, np.int64))))
    left, width = cuts[:-1], np.diff(cuts)
    step = max(1, _CELLS // max(1, len(start)))
    for k in range(0, len(left), step):
        part = left[k : k + step]
        yield (start[:, None] <= part) & (end[:, None] > part), width[k : k + step]


def measure(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union of intervals."""
    rows = [(a, b) for a, b in intervals if b > a]
    if len(rows) <= _FEW:  # not worth a matrix
        cuts = sorted({edge for row in rows for edge in row})
        pairs = itertools.pairwise(cuts)
        return sum(d - c for c, d in pairs if any(a <= c and b >= d for a, b in rows))
    origin = min(a for a, _ in rows)
    start = np.array([a - origin for a, _ in rows], np.int64)
    end = np.array([b - origin for _, b in rows], np.int64)
    return sum(int(active.any(axis=0) @ width) for active, width in atoms(start, end))


def _grouped_any(matrix: Bools, group: Ints, n: int) -> Bools:
    """Row g of the result: any row of ``matrix`` whose group is g; a group below 0 is none."""
    result = np.zeros((n, matrix.shape[1]), np.bool_)
    order = np.argsort(group, kind="stable")
    order = order[group[order] >= 0]
    if len(order):
        names, first = np.unique(group[order], return_index=True)
        result[names] = np.logical_or.reduceat(matrix[order], first, axis=0)
    return result


def _climb(parent: Ints, table: Bools) -> tuple[Bools, Ints]:
    """What ``table`` says of any ancestor of each span, and each span's uppermost ancestor."""
    found, top, up = np.zeros_like(table), np.arange(len(parent)), parent.copy()
    for _ in range(len(parent)):  # a circle of parents ends here; the laws report it
        some = np.flatnonzero(up >= 0)
        if not len(some):
            break
        found[some] |= table[up[some]]
        top[some] = up[some]
        up[some] = parent[up[some]]
    return found, top


class _Spans:
    """The spans of a window as arrays: clipped, relative to its start, without background log."""

    def __init__(self, rows: Sequence[IntervalRow], begin: int, wall: int, lane: int) -> None:
        place = {row[0]: i for i, row in enumerate(rows)}
        # Clipped before they become arrays: an instant out of range would not fit into 64 bits.
        ends = [wall if row[4] is None else row[4] - begin for row in rows]
        start = np.array([min(max(r[3] - begin, 0), wall) for r in rows], np.int64)
        end = np.array([min(max(e, 0), wall) for e in ends], np.int64)
        fresh = np.array([begin <= row[3] for row in rows], np.bool_)
        parent = np.array([place.get(row[1], -1) if row[1] else -1 for row in rows], np.int64)
        lanes = {row[5]: i for i, row in enumerate(rows)}
        lane_of = np.array([lanes[row[5]] for row in rows], np.int64)
        own = np.array([row[5] == lane for row in rows], np.bool_)
        self.names = sorted({row[2] for row in rows} | {"checkpoint", "evaluation", "log"})
        code = {name: i for i, name in enumerate(self.names)}
        phase = np.array([code[row[2]] for row in rows], np.int64)

        background = (phase == code["log"]) & ~own
        self.log_background_ns = measure(
            zip(start[background].tolist(), end[background].tolist(), strict=True)
        )
        parent[background | ((parent >= 0) & background[parent])] = -1

        one_hot = np.eye(len(self.names), dtype=np.bool_)
        above, top = _climb(parent, one_hot[phase])
        evaluated = above[:, code["evaluation"]] & (phase != code["log"])
        phase = np.where(evaluated, code["evaluation"], phase)
        above, _ = _climb(parent, one_hot[phase])

        # Only rows that cover something count; the others served as links of the chains.
        keep = np.flatnonzero((end > start) & ~background)
        position = np.full(len(rows) + 1, -1, np.int64)
        position[keep] = np.arange(len(keep))
        same_lane = np.where(lane_of == lane_of[parent], parent, -1)
        self.start, self.end = start[keep], end[keep]
        self.fresh, self.own = fresh[keep], own[keep]
        self.phase, self.top_phase = phase[keep], phase[top[keep]]
        self.family = (one_hot[phase] | above)[keep]
        self.parent, self.lane_parent = position[parent[keep]], position[same_lane[keep]]


def account(rows: Sequence[IntervalRow], begin: int, end: int, lane: int) -> Account:
    """Every duration of the window ``[begin, end)`` of a lane."""
    wall = end - begin
    spans = _Spans(rows, begin, wall, lane)
    names, n, rows_n = spans.names, len(spans.names), len(spans.phase)
    log = names.index("log")
    pausing = [names.index(p) for p in ("log", "evaluation", "checkpoint")]
    pauses = spans.own & np.isin(spans.phase, pausing)
    busy, logical, top, exposed = (np.zeros(n, np.int64) for _ in range(4))
    log_ns = paused_ns = overlapped_ns = 0
    segments: dict[bytes, int] = {}

    for active, width in atoms(spans.start, spans.end, (0, wall)):
        visible = active & ~_grouped_any(active, spans.lane_parent, rows_n)
        innermost = active & ~_grouped_any(active, spans.parent, rows_n)
        present = _grouped_any(active, spans.phase, n)
        clear = ~present[log]
        busy += present @ width
        logical += (present & clear) @ width
        log_ns += int(present[log] @ width)
        paused_ns += int(active[pauses].any(axis=0) @ width)
        stacked = _grouped_any(visible, spans.top_phase, n)
        colours = stacked.sum(axis=0)
        top += (stacked & clear & (colours == 1)) @ width
        overlapped_ns += int((clear & (colours > 1)) @ width)
        # An atom is p's own when no innermost span stands outside p's family.
        strangers = (~spans.family).T.astype(np.float32) @ innermost.astype(np.float32)
        exposed += ((strangers == 0) & clear & active.any(axis=0)) @ width
        shown = np.packbits(_grouped_any(visible, spans.phase, n), axis=0)
        for key, ns in zip(shown.T, width.tolist(), strict=True):
            segments[key.tobytes()] = segments.get(key.tobytes(), 0) + ns

    result = Account()
    for key, ns in segments.items():
        bits = np.unpackbits(np.frombuffer(key, np.uint8), count=n)
        result.segments[tuple(names[i] for i in np.flatnonzero(bits))] = ns
    m = result.metrics
    m["time.wall_ns"] = wall
    m["time.log_ns"] = log_ns
    m["time.logical_ns"] = wall - log_ns
    m["time.work_ns"] = wall - paused_ns
    m["time.overlapped_ns"] = overlapped_ns
    m["time.unattributed_ns"] = result.segments.get((), 0)
    m["time.log_background_ns"] = spans.log_background_ns
    length = spans.end - spans.start
    # A phase without a span that covers anything can still be the uppermost of its children.
    exposed[log] = 0
    seen = np.bincount(spans.phase, minlength=n) + top + exposed
    for p in np.flatnonzero(seen).tolist():
        mine, name = spans.phase == p, f"phase.{names[p]}."
        result.phases.append(names[p])
        m[name + "busy_ns"] = int(busy[p])
        m[name + "top_ns"] = int(top[p])
        m[name + "self_exposed_ns"] = result.segments.get((names[p],), 0)
        m[name + "sum_ns"] = sum(length[mine].tolist())
        m[name + "calls"] = int((mine & spans.fresh).sum())
        if p != log:
            m[name + "logical_ns"] = int(logical[p])
            m[name + "exposed_ns"] = int(exposed[p])
    return result
