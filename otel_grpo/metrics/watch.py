"""What is asked for when metrics are collected: the levels of that instant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from msgspec import UNSET
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_grpo import semconv
from otel_grpo.devices import metrics as devices
from otel_grpo.metrics.catalogue import CATALOGUE

if TYPE_CHECKING:
    from otel_grpo.devices.metrics import Answer
    from otel_grpo.devices.reading import OnError
    from otel_grpo.metrics.book import Book
    from otel_grpo.records.model import Device, SinkCounts
    from otel_grpo.tracing.live import LiveSources
    from otel_grpo.tracing.window import Reading

Sent = Callable[[], Mapping[str, "SinkCounts"]]


class Watch:
    """Answers for the run that a meter has now.

    A meter keeps the callbacks that it got first. So the next run of a process takes over the watch
    of the one before.
    """

    def __init__(
        self, meter: Meter, book: Book, sources: LiveSources, sent: Sent, on_error: OnError
    ) -> None:
        self._devices: list[Device] = []
        self.take(book, sources, sent, on_error)
        answers: dict[str, Answer] = {
            semconv.PHASE_ACTIVE: self._phases,
            semconv.PHASE_ACTIVE_DURATION: self._phases_for,
            semconv.LOOP_ACTIVE_DURATION: self._window_for,
            semconv.TELEMETRY_RECORDS: self._records,
            semconv.TELEMETRY_SELF_TIME: self._self_time,
            **devices.answers(self._devices, self._readings),
        }
        makers = {
            "counter": meter.create_observable_counter,
            "gauge": meter.create_observable_gauge,
            "level": meter.create_observable_up_down_counter,
        }
        for metric in CATALOGUE:
            if metric.asked:
                callback = self._callback(answers.get(metric.name) or self._told(metric.name))
                makers[metric.kind](metric.name, [callback], metric.unit, metric.description)

    def take(self, book: Book, sources: LiveSources, sent: Sent, on_error: OnError) -> None:
        """From now on it is this run that is asked."""
        self._book, self._sources, self._sent = book, sources, sent
        self._on_error = on_error
        self._devices[:] = sources.devices

    def _callback(self, answer: Answer) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def ask(_: CallbackOptions) -> Iterable[Observation]:
            try:
                return list(answer())
            except Exception as error:  # the SDK would print it at each collection
                self._on_error("metrics.asked", error)
                return ()

        return ask

    def _told(self, name: str) -> Answer:
        return lambda: [
            Observation(value, labels) for labels, value in self._book.told.get(name, ())
        ]

    def _phases(self) -> Iterator[Observation]:
        since = self._open_since()
        for phase in self._book.seen(semconv.PHASE):
            yield Observation(int(phase in since), {semconv.PHASE: phase})

    def _phases_for(self) -> Iterator[Observation]:
        now, since = self._sources.clock.now(), self._open_since()
        for phase in self._book.seen(semconv.PHASE):
            age = now - since.get(phase, now)
            yield Observation(max(age, 0) / 1e9, {semconv.PHASE: phase})

    def _open_since(self) -> dict[str, int]:
        """The start of the oldest open one of each phase."""
        window = self._sources.open_window()
        since: dict[str, int] = {}
        for row in () if window is None else window.phases:
            phase = self._book.meet(row.phase)
            since[phase] = min(row.start_ns, since.get(phase, row.start_ns))
        return since

    def _window_for(self) -> Iterator[Observation]:
        window = self._sources.open_window()
        age = 0 if window is None else self._sources.clock.now() - window.start_ns
        yield Observation(max(age, 0) / 1e9)

    def _records(self) -> Iterator[Observation]:
        for sink, counts in {**self._sources.files(), **self._sent()}.items():
            for outcome in ("written", "dropped", "unconfirmed"):
                n = getattr(counts, outcome)
                if n is not UNSET:
                    yield Observation(n, {semconv.SINK: sink, semconv.OUTCOME: outcome})

    def _self_time(self) -> Iterator[Observation]:
        yield Observation(self._sources.self_ns() / 1e9)

    def _readings(self) -> Iterable[Reading]:
        return self._sources.readings()


_WATCHES: WeakKeyDictionary[Meter, Watch] = WeakKeyDictionary()


def watch(meter: Meter, book: Book, sources: LiveSources, sent: Sent, on_error: OnError) -> None:
    """Have the levels of this run asked for whenever the metrics of this meter are collected."""
    found = _WATCHES.get(meter)
    if found is None:
        _WATCHES[meter] = Watch(meter, book, sources, sent, on_error)
    else:
        found.take(book, sources, sent, on_error)
