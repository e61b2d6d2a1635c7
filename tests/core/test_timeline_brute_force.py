"""The partition of a window against a model that looks at each nanosecond by itself.

The model is slow and literal on purpose: one sentence of the definition, one line of code. It shares
no idea with the implementation, which cuts the window into atoms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import HealthCheck, event, given, settings, strategies as st

from otel_grpo.core.timeline import PhaseTimes, Span, Timeline, overlap, partition, self_time

PHASES = ("generation", "reward", "policy_train", "log", "evaluation", "checkpoint")
NOT_WORK = ("log", "evaluation", "checkpoint")
# a busy machine is no fault of the test
SLOW = [HealthCheck.too_slow]
thorough = settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
brisk = settings(max_examples=60, deadline=None, suppress_health_check=SLOW)

Window = tuple[list[Span], int, int, int]


# --- the model ------------------------------------------------------------------------------------


class Model:
    """A window, one nanosecond at a time."""

    def __init__(self, spans: list[Span], start: int, end: int, lane: int) -> None:
        self.start, self.end, self.lane = start, end, lane
        self.background = [s for s in spans if s.phase == "log" and s.lane != lane]
        self.spans = [s for s in spans if s not in self.background]
        self.by_id = {s.id: s for s in self.spans}
        self.phases = {s.id: self.phase_of(s) for s in self.spans}
        self.families = {s.id: {self.phases[a.id] for a in self.chain(s)} for s in self.spans}
        instants = range(start, end)
        self.active = [[s for s in self.spans if self.covers(s, t)] for t in instants]

    def parent(self, span: Span) -> Span | None:
        return None if span.parent is None else self.by_id.get(span.parent)

    def chain(self, span: Span) -> list[Span]:
        """The span, its parent, the parent's parent... up to the uppermost."""
        chain = [span]
        while (above := self.parent(chain[-1])) is not None:
            chain.append(above)
        return chain

    def phase_of(self, span: Span) -> str:
        below_evaluation = any(s.phase == "evaluation" for s in self.chain(span))
        return "evaluation" if below_evaluation and span.phase != "log" else span.phase

    def phase(self, span: Span) -> str:
        return self.phases[span.id]

    def family(self, span: Span) -> set[str]:
        """The phases that this span is a span of, or below a span of."""
        return self.families[span.id]

    def covers(self, span: Span, instant: int) -> bool:
        end = self.end if span.end is None else span.end
        return span.start <= instant < end

    def instants(self) -> range:
        return range(self.start, self.end)

    def visible(self, active: list[Span]) -> list[Span]:
        """Those that no active child on the same lane hides."""
        return [
            s for s in active if not any(self.parent(c) is s and c.lane == s.lane for c in active)
        ]

    def innermost(self, active: list[Span]) -> list[Span]:
        return [s for s in active if not any(self.parent(c) is s for c in active)]

    def duration(self, spans: Iterable[Span]) -> int:
        """Nanoseconds of the window in which one of `spans` is active."""
        spans = list(spans)
        return sum(any(self.covers(s, t) for s in spans) for t in self.instants())

    def of_phase(self, phase: str) -> list[Span]:
        return [s for s in self.spans if self.phase(s) == phase]

    def overlap(self, p: str, q: str) -> int:
        return sum(
            any(p in self.family(s) for s in active) and any(q in self.family(s) for s in active)
            for active in self.active
        )

    def timeline(self) -> Timeline:
        segments: Counter[tuple[str, ...]] = Counter()
        top: Counter[str] = Counter()
        exposed: Counter[str] = Counter()
        overlapped = 0
        for active in self.active:
            visible = self.visible(active)
            segments[tuple(sorted({self.phase(s) for s in visible}))] += 1
            if not active or any(s.phase == "log" for s in active):
                continue
            uppermost = {self.phase(self.chain(s)[-1]) for s in visible}
            if len(uppermost) == 1:
                top[uppermost.pop()] += 1
            else:
                overlapped += 1
            families = [self.family(s) for s in self.innermost(active)]
            exposed.update(set.intersection(*families))
        logs = self.of_phase("log")
        wall = self.end - self.start
        log_ns = self.duration(logs)
        idle_lane = [s for s in self.spans if s.lane == self.lane and self.phase(s) in NOT_WORK]
        phases = {}
        for name in {self.phase(s) for s in self.spans} | set(top) | set(exposed):
            own = self.of_phase(name)
            lengths = [self.duration([s]) for s in own]
            covered = [
                (any(self.covers(s, t) for s in own), any(self.covers(s, t) for s in logs))
                for t in self.instants()
            ]
            phases[name] = PhaseTimes(
                busy_ns=self.duration(own),
                logical_ns=None if name == "log" else covered.count((True, False)),
                top_ns=top[name],
                exposed_ns=None if name == "log" else exposed[name],
                self_exposed_ns=segments[(name,)],
                sum_ns=sum(lengths),
                calls=sum(
                    length > 0 and self.start <= s.start < self.end
                    for s, length in zip(own, lengths, strict=True)
                ),
            )
        return Timeline(
            wall_ns=wall,
            log_ns=log_ns,
            logical_ns=wall - log_ns,
            work_ns=wall - self.duration(idle_lane),
            overlapped_ns=overlapped,
            unattributed_ns=segments[()],
            log_background_ns=self.duration(self.background),
            segments={key: ns for key, ns in segments.items() if ns},
            phases=phases,
        )


# --- windows --------------------------------------------------------------------------------------


@st.composite
def edges(draw: st.DrawFn) -> tuple[int, int]:
    start = draw(st.integers(0, 20))
    return start, start + draw(st.integers(0, 60))


@st.composite
def nested_windows(draw: st.DrawFn) -> Window:
    """What a tracer makes: spans nest on their lane, roots of other lanes may have a parent elsewhere.

    Such a child may start late and outlive its parent; lanes start before the window, go on after
    it, and may leave spans open.
    """
    start, end = draw(edges())
    spans: list[Span] = []
    lanes = draw(st.integers(1, 4))
    for lane in range(lanes):
        now = draw(st.integers(-5, 40))
        stack: list[tuple[str, str | None, str, int]] = []
        steps = draw(
            st.lists(
                st.tuples(st.integers(0, 15), st.sampled_from((*PHASES, "end", "end", "end"))),
                max_size=16,
            )
        )
        for pause, what in steps:
            now += pause
            if what == "end":
                if stack:
                    spans.append(Span(*stack.pop(), now, lane))
                continue
            if stack:
                parent: str | None = stack[-1][0]
            else:
                parent = draw(st.sampled_from([None, *(s.id for s in spans if s.start <= now)]))
            stack.append((f"{lane}.{len(spans)}.{len(stack)}.{now}.{what}", parent, what, now))
        still_open = draw(st.booleans())
        while stack:
            spans.append(Span(*stack.pop(), None if still_open else now, lane))
    return draw(st.permutations(spans)), start, end, draw(st.integers(0, lanes))


@st.composite
def wild_windows(draw: st.DrawFn) -> Window:
    """What the definition allows and no sane tracer makes: any parent, any overlap, any order."""
    start, end = draw(edges())
    spans: list[Span] = []
    for i in range(draw(st.integers(0, 9))):
        parent = draw(st.sampled_from([None, "of another window", *(s.id for s in spans)]))
        begin = draw(st.integers(-10, 90))
        length = draw(st.one_of(st.none(), st.integers(0, 40)))
        spans.append(
            Span(
                str(i),
                parent,
                draw(st.sampled_from(PHASES)),
                begin,
                None if length is None else begin + length,
                draw(st.integers(0, 3)),
            )
        )
    return draw(st.permutations(spans)), start, end, draw(st.integers(0, 3))


windows = st.one_of(nested_windows(), wild_windows())


def compare(actual: Timeline, expected: Timeline) -> None:
    """Equal in every field; a phase that one side leaves out must be all zeros on the other."""
    for name in (
        "wall_ns",
        "log_ns",
        "logical_ns",
        "work_ns",
        "overlapped_ns",
        "unattributed_ns",
        "log_background_ns",
    ):
        assert getattr(actual, name) == getattr(expected, name), name
    assert actual.segments == expected.segments
    for phase in actual.phases.keys() | expected.phases.keys():
        zero = PhaseTimes() if phase == "log" else PhaseTimes(logical_ns=0, exposed_ns=0)
        assert actual.phases.get(phase, zero) == expected.phases.get(phase, zero), phase


# --- properties -----------------------------------------------------------------------------------


@thorough
@given(nested_windows())
def test_partition_of_nested_spans(window: Window) -> None:
    """Every figure of the account equals the count of single nanoseconds."""
    expected = Model(*window).timeline()
    event(f"{len(expected.segments)} segments")
    compare(partition(*window), expected)


@thorough
@given(wild_windows())
def test_partition_of_wild_spans(window: Window) -> None:
    """The account doesn't rely on proper nesting: the definition alone decides."""
    compare(partition(*window), Model(*window).timeline())


@settings(thorough, max_examples=150)
@given(windows)
def test_sums_are_exact(window: Window) -> None:
    """The segments add up to the wall time, and so does the stack."""
    account = partition(*window)
    assert sum(account.segments.values()) == account.wall_ns
    assert all(ns > 0 for ns in account.segments.values())
    assert all(list(key) == sorted(set(key)) for key in account.segments)
    top = sum(times.top_ns for times in account.phases.values())
    stack = top + account.overlapped_ns + account.log_ns + account.unattributed_ns
    assert stack == account.wall_ns


@brisk
@given(windows)
def test_bounds(window: Window) -> None:
    """No phase takes more than the wall, nor shows more alone than its family explains.

    Except inside a log, which its own children may hide: that time is exposed for nobody.
    """
    account = partition(*window)
    assert account.logical_ns == account.wall_ns - account.log_ns
    assert 0 <= account.work_ns <= account.logical_ns
    for phase, times in account.phases.items():
        assert 0 <= times.self_exposed_ns <= times.busy_ns <= min(account.wall_ns, times.sum_ns)
        if phase != "log":
            assert times.logical_ns is not None
            assert times.exposed_ns is not None
            assert times.logical_ns <= times.busy_ns
            assert times.self_exposed_ns <= times.exposed_ns + account.log_ns


@brisk
@given(windows)
def test_phases_are_those_with_time_in_the_window(window: Window) -> None:
    """A phase whose spans are all empty or elsewhere is not in the account, unless it explains
    the time of spans below it.
    """
    account = partition(*window)
    model = Model(*window)
    with_time = {model.phase(s) for s in model.spans if model.duration([s])}
    assert with_time <= account.phases.keys()
    for phase in account.phases.keys() - with_time:
        times = account.phases[phase]
        assert times.top_ns or times.exposed_ns, phase


@brisk
@given(windows, st.data())
def test_order_of_spans_does_not_matter(window: Window, data: st.DataObject) -> None:
    """Spans arrive in the order in which they end, which says nothing."""
    spans, *rest = window
    shuffled = data.draw(st.permutations(spans))
    compare(partition(shuffled, *rest), partition(spans, *rest))


@brisk
@given(windows, st.integers(1, 2**62))
def test_account_is_exact_at_any_date(window: Window, shift: int) -> None:
    """Unix nanoseconds are beyond what a float holds exactly: the account doesn't notice."""
    spans, start, end, lane = window
    moved = [
        s._replace(start=s.start + shift, end=None if s.end is None else s.end + shift)
        for s in spans
    ]
    compare(partition(moved, start + shift, end + shift, lane), partition(spans, start, end, lane))


@brisk
@given(windows)
def test_clipping_first_changes_nothing_but_calls(window: Window) -> None:
    """What lies outside of the window has no say: spans cut at its edges give the same account."""
    spans, start, end, lane = window

    def cut(span: Span) -> Span:
        stop = end if span.end is None else span.end
        first = min(max(span.start, start), end)
        return span._replace(start=first, end=max(first, min(stop, end)))

    whole = partition(spans, start, end, lane)
    clipped = partition([cut(s) for s in spans], start, end, lane)
    for account in (whole, clipped):
        for times in account.phases.values():
            times.calls = 0
    compare(clipped, whole)


@brisk
@given(windows)
def test_background_log_is_as_if_it_were_not_there(window: Window) -> None:
    """Log on other lanes has a figure of its own and leaves no other trace."""
    spans, start, end, lane = window
    without = [s for s in spans if s.phase != "log" or s.lane == lane]
    account = partition(spans, start, end, lane)
    quiet = partition(without, start, end, lane)
    assert quiet.log_background_ns == 0
    quiet.log_background_ns = account.log_background_ns
    compare(account, quiet)


@brisk
@given(windows, st.data())
def test_two_windows_tile(window: Window, data: st.DataObject) -> None:
    """A window cut in two loses nothing: busy, log, unattributed and segments add up.

    Of spans that are closed: one that is open ends with its window, and the next one repeats it.
    """
    spans, start, end, lane = window
    spans = [s if s.end is not None else s._replace(end=end + 5) for s in spans]
    middle = data.draw(st.integers(start, end))
    parts = [partition(spans, start, middle, lane), partition(spans, middle, end, lane)]
    whole = partition(spans, start, end, lane)
    for name in ("wall_ns", "log_ns", "work_ns", "overlapped_ns", "unattributed_ns"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts), name
    segments: Counter[tuple[str, ...]] = Counter()
    for part in parts:
        segments.update(part.segments)
    assert whole.segments == segments
    for phase, times in whole.phases.items():
        shares = [part.phases.get(phase, PhaseTimes()) for part in parts]
        for name in ("busy_ns", "top_ns", "exposed_ns", "self_exposed_ns", "sum_ns", "logical_ns"):
            total = sum(getattr(share, name) or 0 for share in shares)
            assert (getattr(times, name) or 0) == total, (phase, name)


@brisk
@given(windows, st.sampled_from(PHASES), st.sampled_from(PHASES))
def test_overlap_of_families(window: Window, p: str, q: str) -> None:
    """Two phases overlap while a span of each, or one below it, is active."""
    assert overlap(*window, p, q) == Model(*window).overlap(p, q)
    assert overlap(*window, p, q) == overlap(*window, q, p)


@brisk
@given(windows)
def test_self_time(window: Window) -> None:
    """A span's own time is its length without what its children on its lane cover."""
    spans = window[0]
    for span in spans:
        if span.end is None:
            continue
        children = [c for c in spans if c.parent == span.id and c.lane == span.lane]
        expected = sum(
            not any(c.start <= t and (c.end is None or t < c.end) for c in children)
            for t in range(span.start, span.end)
        )
        assert self_time(span, spans) == expected
