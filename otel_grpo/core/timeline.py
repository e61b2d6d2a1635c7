"""Where the time of one window went: each instant is explained once.

The window is cut into *atoms* at every start and end of a span. Inside an atom the set of active
spans is constant, so every figure is a sum of atom lengths and the figures add up to the wall time
exactly: the segments, and the stack (top + overlapped + log + unattributed).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_grpo.core.intervals import Interval, clip, intersection, measure

LOG = "log"
EVALUATION = "evaluation"
# Throughput counts neither logging, evaluation nor checkpoints as work.
NOT_WORK = frozenset({LOG, EVALUATION, "checkpoint"})


class Span(NamedTuple):
    """An interval of one phase on one lane (a thread or an asyncio task), in nanoseconds.

    ``end`` is None while the span is open. ``parent`` is the id of a span of the same window.
    """

    id: str
    parent: str | None
    phase: str
    start: int
    end: int | None
    lane: int


@dataclass(slots=True)
class PhaseTimes:
    """Figures of one phase in one window (nanoseconds).

    ``busy_ns`` counts what overlaps once; ``sum_ns`` counts it each time and is never a share of the
    window. ``logical_ns`` and ``exposed_ns`` are None for the phase `log` itself.
    """

    busy_ns: int = 0
    logical_ns: int | None = None
    top_ns: int = 0
    exposed_ns: int | None = None
    self_exposed_ns: int = 0
    sum_ns: int = 0
    calls: int = 0


@dataclass(slots=True)
class Timeline:
    """The account of one window. ``segments`` maps the sorted phases that were at work to time."""

    wall_ns: int
    log_ns: int = 0
    logical_ns: int = 0
    work_ns: int = 0
    overlapped_ns: int = 0
    unattributed_ns: int = 0
    log_background_ns: int = 0
    segments: dict[tuple[str, ...], int] = field(default_factory=dict)
    phases: dict[str, PhaseTimes] = field(default_factory=dict)


class _Node:
    """A span of the window with its links, clipped to the window."""

    __slots__ = ("active_children", "active_same_lane", "blocking_log", "end", "family", "lane",
                 "parent", "phase", "span", "start", "top")  # fmt: skip

    def __init__(self, span: Span, start: int, end: int) -> None:
        self.span = span
        self.start = start
        self.end = end
        self.lane = span.lane
        self.phase = span.phase
        self.parent: _Node | None = None
        self.top = span.phase
        self.family: frozenset[str] = frozenset((span.phase,))
        self.blocking_log = span.phase == LOG
        self.active_children = 0
        self.active_same_lane = 0


def partition(spans: Sequence[Span], start: int, end: int, lane: int) -> Timeline:
    """The account of the window ``[start, end)`` whose own lane is ``lane``.

    Spans may reach over both edges; they are clipped. A parent that is not among `spans` is none.
    """
    timeline = Timeline(wall_ns=end - start)
    nodes, background = _nodes(spans, start, end, lane)
    timeline.log_background_ns = measure(background)
    exposed: dict[str, int] = defaultdict(int)
    top: dict[str, int] = defaultdict(int)
    segments: dict[frozenset[str], int] = defaultdict(int)
    for length, active in _atoms(nodes, start, end):
        visible = [node for node in active if not node.active_same_lane]
        segments[frozenset([node.phase for node in visible])] += length
        if not active or any(node.blocking_log for node in active):
            continue
        tops = {node.top for node in visible}
        if len(tops) == 1:
            top[tops.pop()] += length
        else:
            timeline.overlapped_ns += length
        innermost = [node.family for node in active if not node.active_children]
        for phase in frozenset.intersection(*innermost):
            exposed[phase] += length

    timeline.segments = {tuple(sorted(key)): ns for key, ns in segments.items()}
    timeline.unattributed_ns = timeline.segments.get((), 0)
    by_phase: dict[str, list[_Node]] = defaultdict(list)
    for node in nodes:
        by_phase[node.phase].append(node)
    for phase in top.keys() | exposed.keys() - {LOG}:
        by_phase.setdefault(phase, [])
    log = [(node.start, node.end) for node in by_phase.get(LOG, ())]
    timeline.log_ns = measure(log)
    timeline.logical_ns = timeline.wall_ns - timeline.log_ns
    timeline.work_ns = timeline.wall_ns - measure(
        (node.start, node.end) for node in nodes if node.lane == lane and node.phase in NOT_WORK
    )
    for phase, members in sorted(by_phase.items()):
        intervals = [(node.start, node.end) for node in members]
        times = PhaseTimes(
            busy_ns=measure(intervals),
            top_ns=top[phase],
            self_exposed_ns=timeline.segments.get((phase,), 0),
            sum_ns=sum(b - a for a, b in intervals),
            calls=sum(1 for node in members if start <= node.span.start < end),
        )
        if phase != LOG:
            times.logical_ns = times.busy_ns - measure(intersection(log, intervals))
            times.exposed_ns = exposed[phase]
        timeline.phases[phase] = times
    return timeline


def overlap(spans: Sequence[Span], start: int, end: int, lane: int, p: str, q: str) -> int:
    """Time of the window in which the families of both phases are active."""
    nodes, _ = _nodes(spans, start, end, lane)

    def family(phase: str) -> list[Interval]:
        return [(node.start, node.end) for node in nodes if phase in node.family]

    return measure(intersection(family(p), family(q)))


def self_time(span: Span, spans: Iterable[Span]) -> int:
    """Length of a closed span minus the union of its children on the same lane."""
    if span.end is None:
        raise ValueError(f"span {span.id} is open: it has no length yet")
    children = [
        (child.start, span.end if child.end is None else child.end)
        for child in spans
        if child.parent == span.id and child.lane == span.lane
    ]
    return span.end - span.start - measure(clip(children, span.start, span.end))


def _nodes(
    spans: Sequence[Span], start: int, end: int, lane: int
) -> tuple[list[_Node], list[Interval]]:
    """Clipped spans with parent links and effective phases, and the background log intervals."""
    background: list[Interval] = []
    nodes: dict[str, _Node] = {}
    for span in spans:
        a, b = max(span.start, start), end if span.end is None else min(span.end, end)
        if span.phase == LOG and span.lane != lane:
            if a < b:
                background.append((a, b))
            continue
        nodes[span.id] = _Node(span, a, b)
    for node in nodes.values():
        if node.span.parent is not None and node.span.parent != node.span.id:
            node.parent = nodes.get(node.span.parent)
    for node in nodes.values():
        _inherit(node)
    return [node for node in nodes.values() if node.start < node.end], background


def _inherit(node: _Node) -> None:
    """Phase below an evaluation, family and uppermost phase, from the chain of ancestors."""
    chain = [node]
    seen = {id(node)}
    while (parent := chain[-1].parent) is not None and id(parent) not in seen:
        chain.append(parent)
        seen.add(id(parent))
    below_evaluation = False
    phases: list[str] = []  # effective, from the uppermost ancestor down to the node
    for member in reversed(chain):
        below_evaluation = below_evaluation or member.span.phase == EVALUATION
        is_log = member.span.phase == LOG
        phases.append(EVALUATION if below_evaluation and not is_log else member.span.phase)
    node.top, node.phase = phases[0], phases[-1]
    node.family = frozenset(phases)


def _atoms(nodes: Sequence[_Node], start: int, end: int) -> Iterable[tuple[int, set[_Node]]]:
    """Each stretch of constant activity with the spans active in it, in the order of time.

    The set is the same object each time: read it before the next atom.
    """
    events: dict[int, tuple[list[_Node], list[_Node]]] = {}
    for node in nodes:
        events.setdefault(node.start, ([], []))[0].append(node)
        events.setdefault(node.end, ([], []))[1].append(node)
    active: set[_Node] = set()
    at = start
    for instant in sorted(events):
        if instant > at:
            yield instant - at, active
            at = instant
        opening, closing = events[instant]
        for node in closing:
            active.remove(node)
            _count_in_parent(node, -1)
        for node in opening:
            active.add(node)
            _count_in_parent(node, +1)
    if end > at:
        yield end - at, active


def _count_in_parent(node: _Node, by: int) -> None:
    if node.parent is not None:
        node.parent.active_children += by
        if node.parent.lane == node.lane:
            node.parent.active_same_lane += by
