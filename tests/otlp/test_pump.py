"""The queue, the thread and the counts, with a receiver that answers as a test commands."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest
from hypothesis import given, settings, strategies as st

from otel_grpo.otlp import circuit, pump as pumps
from otel_grpo.otlp.answer import Answer
from otel_grpo.otlp.pump import Pump
from otel_grpo.records.model import SinkCounts

TAKEN = Answer("taken")


class Script:
    """Answers one after the other, then the last one for ever. Bodies are lists of small numbers."""

    def __init__(self, *answers, takes_s=0.0):
        self.answers = list(answers) or [TAKEN]
        self.takes_s = takes_s
        self.timeout_s = 10.0
        self.exporter = None
        self.bodies = []
        self.kept = 0
        self.closed = threading.Event()

    def send(self, body, timeout_s):
        self.bodies.append(body)
        self.timeout = timeout_s
        time.sleep(self.takes_s)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(body)
        if answer.kind == "taken":
            self.kept += len(body) - min(answer.rejected, len(body))
        return answer

    def close(self):
        self.closed.set()


class Notes:
    def __init__(self):
        self.errors = []
        self.warnings = []

    def pump(self, transport, encode=bytes, **options):
        return Pump(
            "otlp_test",
            transport,
            encode,
            **{"bound": 1000, "batch": 10, "delay_s": 0.01, **options},
            on_error=lambda place, error: self.errors.append((place, repr(error))),
            on_warning=lambda _, reason, message: self.warnings.append((reason, message)),
        )

    @property
    def told(self):
        return [reason for reason, _ in self.warnings]


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(circuit, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(circuit, "MAX_PAUSE_S", 0.004)


def put(pump, n):
    return [pump.put(number % 200) for number in range(n)].count(True)


def closed(pump, timeout_s=60):
    pump.start()
    pump.close(timeout_s)
    pump.join()
    return pump.counts()


def test_all_arrives_in_order_and_in_batches(notes):
    """25 items make 10, 10 and 5."""
    script = Script()
    pump = notes.pump(script)
    assert put(pump, 25) == 25
    assert pump.counts() == SinkCounts(created=25, pending=25, unconfirmed=0)
    assert closed(pump) == SinkCounts(created=25, written=25, unconfirmed=0)
    assert [list(body) for body in script.bodies] == [
        list(range(10)),
        list(range(10, 20)),
        list(range(20, 25)),
    ]
    assert script.closed.is_set()
    assert (notes.errors, notes.warnings) == ([], [])


def test_a_full_batch_is_sent_at_once_and_a_part_of_one_after_the_delay(notes):
    """With a delay of an hour ten items go, nine wait for `hurry`."""
    script = Script()
    pump = notes.pump(script, delay_s=3600)
    pump.start()
    put(pump, 10)
    until(lambda: pump.counts().written == 10)
    put(pump, 9)
    time.sleep(0.02)
    assert pump.counts().pending == 9
    pump.hurry()
    until(lambda: pump.counts().written == 19)
    closed(pump)


def test_a_full_queue_takes_nothing_and_counts_it(notes):
    """Of 130 items 100 fit; told once."""
    pump = notes.pump(Script(), bound=100)
    assert put(pump, 130) == 100
    assert closed(pump) == SinkCounts(
        created=130, written=100, dropped=30, reasons={"queue_full": 30}, unconfirmed=0
    )
    assert notes.told == ["queue_full"]


def test_40000_spans_into_a_sink_that_takes_50_ms_a_batch(notes):
    """None is unaccounted, and what was written is what the sink has."""
    script = Script(takes_s=0.05)
    pump = notes.pump(script, bound=16384, batch=512, delay_s=5)
    pump.start()
    accepted = put(pump, 40_000)
    counts = closed(pump)
    assert counts.created == 40_000
    assert counts.written == script.kept == accepted
    assert counts.written + counts.dropped == 40_000
    assert counts.reasons == {"queue_full": 40_000 - accepted}


def test_failures_are_repeated_until_the_receiver_is_back(notes):
    """Away after three failures: told once, with its return; nothing is lost or sent twice."""
    away = Answer("failed", "http_503", "it answers 503")
    script = Script(*[away] * 5, TAKEN)
    pump = notes.pump(script)
    pump.start()
    put(pump, 30)
    until(lambda: pump.counts().written == 30)
    assert len(script.bodies) == 5 + 3
    assert notes.told == ["away", "back"]
    assert "it answers 503; what waits" in notes.warnings[0][1]
    closed(pump)


def test_short_failures_are_not_told(notes):
    """A receiver that restarts is nobody's concern."""
    away = Answer("failed", "http_503", "it answers 503")
    pump = notes.pump(Script(away, away, TAKEN))
    pump.start()
    put(pump, 10)
    until(lambda: pump.counts().written == 10)
    assert closed(pump).written == 10
    assert notes.told == []


def test_a_refusal_is_not_repeated(notes):
    """One request, all dropped for its reason, one warning."""
    script = Script(Answer("refused", "http_401", "needs a token"))
    pump = notes.pump(script)
    put(pump, 30)
    assert closed(pump) == SinkCounts(
        created=30, dropped=30, reasons={"http_401": 30}, unconfirmed=0
    )
    assert len(script.bodies) == 3
    assert notes.warnings == [("http_401", "otlp_test: needs a token")]


def test_partial_success(notes):
    """What the receiver says that it rejected is dropped, and no more than was sent."""
    pump = notes.pump(Script(Answer("taken", rejected=3), Answer("taken", rejected=99)))
    put(pump, 20)
    assert closed(pump) == SinkCounts(
        created=20, written=7, dropped=13, reasons={"partial_success": 13}, unconfirmed=0
    )
    assert notes.told == ["partial_success"]


def test_what_is_collected_after_the_end(notes):
    """It is too late for that: nothing is pending in the last counts, and nothing comes after them."""
    asked, told = threading.Event(), threading.Event()

    def collect():
        if not pump._closing:
            return []
        asked.set()
        told.wait(60)
        return [7]

    pump = notes.pump(Script(), collect=collect, bound=0, batch=1)
    pump.start()
    pump.close(0.05)
    asked.wait(60)
    pump.join()
    told.set()
    pump._thread.join(60)
    assert pump.counts() == SinkCounts(unconfirmed=0)


@pytest.mark.parametrize("wants_s", [3600.0, 1e12, 1e300])
def test_a_receiver_that_wants_to_be_left_alone_for_ever(notes, wants_s):
    """It is, until the end: what waited is lost for its reason, and no fault of ours."""
    pump = notes.pump(Script(Answer("failed", "http_429", "not now", retry_after_s=wants_s)))
    pump.start()
    put(pump, 10)
    until(lambda: pump._last == "http_429")
    assert closed(pump) == SinkCounts(
        created=10, dropped=10, reasons={"http_429": 10}, unconfirmed=0
    )
    assert notes.errors == []


def too_large_above(limit):
    return lambda body: Answer("too_large") if len(body) > limit else TAKEN


def test_too_large_is_halved(notes, monkeypatch):
    """A limit of 3 is found by halving 10, and the next batches keep to the size that passed."""
    monkeypatch.setattr(pumps, "MIN_LIMIT", 1)
    script = Script(too_large_above(3))
    pump = notes.pump(script)
    put(pump, 20)
    assert closed(pump) == SinkCounts(created=20, written=20, unconfirmed=0)
    sizes = [len(body) for body in script.bodies]
    # 10 and 5 are refused; from then on nothing above 2 is tried (5 -> 2 + 3 -> 2, 1, 2).
    assert sizes == [10, 5, 2, 1, 2, *[2, 1, 2], *[2, 1, 2] * 2]


def test_one_alone_that_is_too_large(notes):
    """It is dropped, told once, and the others go on."""
    script = Script(lambda body: Answer("too_large") if 5 in body else TAKEN)
    pump = notes.pump(script)
    put(pump, 10)
    assert closed(pump) == SinkCounts(
        created=10, written=9, dropped=1, reasons={"too_large": 1}, unconfirmed=0
    )
    assert notes.told == ["too_large"]


def test_an_item_that_cannot_be_encoded(notes):
    """It alone is lost, and the fault is counted once."""

    def encode(items):
        if 4 in items:
            raise ValueError("4")
        return bytes(items)

    pump = notes.pump(Script(), encode)
    put(pump, 10)
    assert closed(pump) == SinkCounts(
        created=10, written=9, dropped=1, reasons={"error": 1}, unconfirmed=0
    )
    assert notes.errors == [("otlp_test", "ValueError('4')")]


def test_a_fault_of_ours(notes):
    """The batch that it happens to is dropped, and the thread lives."""

    def fail(_):
        raise OSError("what")

    pump = notes.pump(Script(fail, TAKEN))
    put(pump, 20)
    assert closed(pump) == SinkCounts(
        created=20, written=10, dropped=10, reasons={"error": 10}, unconfirmed=0
    )
    assert notes.errors == [("otlp_test", "OSError('what')")]


def test_a_fault_of_ours_in_a_half(notes):
    """What was settled before it is not sent again."""

    def fail(_):
        raise OSError("what")

    script = Script(TAKEN, fail, TAKEN)
    pump = notes.pump(script)
    pump._limit = 5
    put(pump, 20)
    assert closed(pump) == SinkCounts(
        created=20, written=15, dropped=5, reasons={"error": 5}, unconfirmed=0
    )
    assert [len(body) for body in script.bodies] == [5, 5, 5, 5]


def test_closed_during_a_request_that_hangs(notes):
    """What was sent is unconfirmed, what was not is dropped, and a late answer changes nothing."""
    release = threading.Event()
    script = Script(lambda _: release.wait(10) and TAKEN)
    pump = notes.pump(script)
    pump.start()
    put(pump, 25)
    until(lambda: script.bodies)
    pump.close(0.05)
    pump.join()
    final = SinkCounts(created=25, dropped=15, reasons={"closed": 15}, unconfirmed=10)
    assert pump.counts() == final
    release.set()
    assert script.closed.wait(10)
    assert pump.counts() == final
    assert notes.warnings == []


def test_given_up_after_an_attempt_without_an_answer(notes):
    """A batch that may have arrived is unconfirmed, even if the last attempt reached nobody."""
    lost, away = Answer("failed", "timeout", sent=True), Answer("failed", "unreachable")
    pump = notes.pump(Script(lost, away))
    put(pump, 20)
    assert closed(pump) == SinkCounts(
        created=20, dropped=10, reasons={"unreachable": 10}, unconfirmed=10
    )


def test_the_budget_of_a_batch(notes, monkeypatch):
    """What fails for too long makes room; the next batch has a budget of its own."""
    monkeypatch.setattr(pumps, "BUDGET_S", 0.02)
    pump = notes.pump(Script(Answer("failed", "http_503", "503")))
    pump.start()
    put(pump, 20)
    until(lambda: pump.counts().dropped == 20)
    assert pump.counts().reasons == {"http_503": 20}
    assert notes.told == ["away"]
    closed(pump)


def test_an_end_with_a_receiver_that_is_away_takes_one_attempt(notes, monkeypatch):
    """Not the time that there would be: the pauses are much longer."""
    script = Script(Answer("failed", "unreachable", "nobody there"))
    pump = notes.pump(script)
    pump.start()
    put(pump, 30)
    until(lambda: pump._circuit.open)
    monkeypatch.setattr(circuit, "FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr(circuit, "MAX_PAUSE_S", 60.0)
    until(lambda: pump._circuit.wait_s() > 1)
    attempts = len(script.bodies)
    began = time.monotonic()
    counts = closed(pump, timeout_s=30)
    assert time.monotonic() - began < 15
    assert len(script.bodies) == attempts + 1
    assert counts == SinkCounts(created=30, dropped=30, reasons={"unreachable": 30}, unconfirmed=0)


def test_the_last_attempts_have_the_time_that_is_left(notes):
    """A request of the end does not wait longer than the end."""
    script = Script()
    pump = notes.pump(script)
    put(pump, 1)
    pump.close(2)
    pump._run()
    assert 0 < script.timeout <= 2


def test_after_the_end(notes):
    """What comes later is dropped and counted; a second end changes nothing."""
    pump = notes.pump(Script())
    put(pump, 5)
    closed(pump)
    assert not pump.put(1)
    assert closed(pump, 0) == SinkCounts(
        created=6, written=5, dropped=1, reasons={"closed": 1}, unconfirmed=0
    )


def test_never_started(notes):
    """A run whose id nobody knew: all that waited is dropped."""
    pump = notes.pump(Script())
    put(pump, 5)
    pump.close(3)
    pump.join()
    assert pump.counts() == SinkCounts(created=5, dropped=5, reasons={"closed": 5}, unconfirmed=0)


def test_collected_at_the_start_every_turn_and_at_the_end(notes):
    """Without an item put, each turn asks for what there is; the last one after the close began."""
    states = []
    script = Script()
    pump = notes.pump(
        script, collect=lambda: [states.append(pump._closing) or len(states)], delay_s=0.02
    )
    pump.start()
    until(lambda: len(states) >= 3)
    counts = closed(pump)
    assert states[0] is False
    assert states[-1] is True
    assert counts.created == counts.written == len(states)


def test_a_put_inside_of_a_put(notes):
    """A span that the garbage collector ends while the lock is held is taken like any other."""

    class Ends:
        def __init__(self):
            self.me = self

        def __del__(self):
            pump.put(7)

    pump = notes.pump(Script(), bound=10**6, batch=1000)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            Ends()
            pump.put(1)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert closed(pump) == SinkCounts(created=100, written=100, unconfirmed=0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_dead_in_a_forked_child(notes):
    """A child sends nothing, counts nothing and ends at once, whatever the thread was at."""
    release = threading.Event()
    script = Script(lambda _: release.wait(10) and TAKEN, TAKEN)
    pump = notes.pump(script)
    pump.start()
    put(pump, 15)
    until(lambda: script.bodies)
    with pump._lock:
        child = os.fork()
        if child == 0:
            refused = not pump.put(1)
            pump.start()
            pump.close(60)
            pump.join()
            os._exit(0 if refused and len(script.bodies) == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    release.set()
    assert closed(pump) == SinkCounts(created=15, written=15, unconfirmed=0)


answers = st.one_of(
    st.builds(Answer, st.just("taken"), rejected=st.integers(0, 4)),
    st.builds(Answer, st.just("refused"), reason=st.sampled_from(["http_400", "http_401"])),
    st.builds(Answer, st.just("failed"), reason=st.just("http_503"), sent=st.booleans()),
    st.just(Answer("too_large")),
)


@settings(max_examples=60, deadline=None)
@given(
    given_answers=st.lists(answers, min_size=1, max_size=12),
    puts=st.lists(st.integers(0, 30), max_size=6),
    bound=st.integers(1, 60),
    batch=st.integers(1, 20),
)
def test_the_counts_add_up(given_answers, puts, bound, batch):
    """Whatever is answered: every item is written, dropped for a reason, or unconfirmed; once."""
    notes = Notes()
    script = Script(*given_answers)
    pump = notes.pump(script, bound=bound, batch=min(batch, bound))
    pump.start()
    accepted = 0
    for n in puts:
        accepted += put(pump, n)
        law(pump.counts())
    counts = closed(pump)
    law(counts)
    assert counts.created == sum(puts)
    assert counts.pending == 0
    assert counts.written == script.kept
    assert sum(counts.reasons.values()) == counts.dropped
    assert counts.reasons.get("queue_full", 0) == sum(puts) - accepted
    assert notes.errors == []


def law(counts):
    assert counts.created == (counts.written + counts.dropped + counts.pending + counts.unconfirmed)


def until(condition, timeout_s=10):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
