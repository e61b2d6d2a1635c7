"""What is counted when the record of a window is made: its own numbers, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import UNSET

from otel_grpo import semconv
from otel_grpo.metrics.catalogue import ROLES
from otel_grpo.records import build

if TYPE_CHECKING:
    from otel_grpo.metrics.book import Book
    from otel_grpo.records.model import Number, RolloutAttributes, RolloutRecord

_NO_LABELS: Mapping[str, str] = {}

# Counters and the numbers of a record that they add up.
_COUNTERS = (
    (semconv.OVERLAP_TIME, _NO_LABELS, "time.overlapped_ns"),
    (semconv.LOG_TIME, _NO_LABELS, "time.log_ns"),
    (semconv.UNATTRIBUTED_TIME, _NO_LABELS, "time.unattributed_ns"),
    (semconv.TOKENS, {semconv.KIND_OF_TOKENS: "input"}, "tokens.prompt"),
    (semconv.TOKENS, {semconv.KIND_OF_TOKENS: "output"}, "tokens.completion"),
    (semconv.SAMPLES, _NO_LABELS, "samples.consumed"),
    (semconv.VISITS, _NO_LABELS, "samples.visits"),
    (semconv.PUBLICATIONS, _NO_LABELS, "publications"),
    *(
        (semconv.TRAIN_STEPS, {semconv.UPDATE_STATUS: status}, f"updates.{status}")
        for status in ("applied", "skipped", "failed", "unconfirmed")
    ),
)

# kind of throughput -> its name in a record, tokens, time, what the devices do (semantics 5)
_THROUGHPUT = (
    ("end_to_end", "throughput.device", "tokens.total", "time.work_ns", None),
    (
        "generation",
        "throughput.generation",
        "tokens.completion",
        "phase.generation.busy_ns",
        build.GENERATE,
    ),
    ("train", "throughput.train", "tokens.visited", "phase.policy_train.busy_ns", build.TRAIN),
)

_DISCARDED = "samples.discarded."


class Windows:
    """Counts the windows of a run, one after the other."""

    def __init__(self, book: Book) -> None:
        self._book = book
        # Device time of kinds of throughput whose tokens nobody has known yet: that they are none
        # in a second would be a guess.
        self._held = dict.fromkeys((kind for kind, *_ in _THROUGHPUT), 0)

    def add(self, record: RolloutRecord) -> None:
        book, metrics, a = self._book, record.metrics, record.attributes
        book.add(semconv.LOOP_WINDOWS, 1, {semconv.WINDOW_STATUS: a.window.status})
        for kind in ("wall", "logical"):
            book.record(
                semconv.LOOP_DURATION,
                _whole(metrics, f"time.{kind}_ns"),
                {semconv.DURATION_KIND: kind},
            )
        for name, labels, number in _COUNTERS:
            book.add(name, _whole(metrics, number), labels)
        self._phases(metrics)
        self._throughput(metrics, a)
        for name in metrics:
            if name.startswith(_DISCARDED):
                labels = book.named(semconv.DISCARD_REASON, name[len(_DISCARDED) :])
                book.add(semconv.DISCARDED, _whole(metrics, name), labels)
        for scalar in a.nonfinite:
            book.add(semconv.TRAIN_NONFINITE, 1, book.named(semconv.SCALAR, scalar))
        for publication in a.publications:
            if publication.completed_ns is not None:
                book.tell(semconv.WEIGHTS_VERSION, [(_NO_LABELS, publication.version)])
        self._distributions(a)

    def _phases(self, metrics: Mapping[str, Number]) -> None:
        for name in metrics:
            if not (name.startswith("phase.") and name.endswith(".busy_ns")):
                continue
            of = name[: -len("busy_ns")]
            phase = of[len("phase.") : -1]
            labels = self._book.named(semconv.PHASE, phase)
            self._book.add(semconv.RANK_PHASE_TIME, _whole(metrics, name), labels)
            if phase != semconv.LOG:  # which is on no stack: its time is LOG_TIME
                self._book.add(semconv.PHASE_TIME, _whole(metrics, f"{of}top_ns"), labels)
            for kind in ("busy", "exposed", "logical"):
                if f"{of}{kind}_ns" in metrics:
                    self._book.record(
                        semconv.PHASE_DURATION,
                        _whole(metrics, f"{of}{kind}_ns"),
                        {**labels, semconv.DURATION_KIND: kind},
                    )

    def _throughput(self, metrics: Mapping[str, Number], a: RolloutAttributes) -> None:
        """Both sides of each kind, to be divided after they were summed; and the last ratios."""
        if a.devices is UNSET:
            return
        ratios: list[tuple[Mapping[str, str], float]] = []
        for kind, ratio, tokens, time, role in _THROUGHPUT:
            labels = {semconv.THROUGHPUT_KIND: kind}
            device_ns = _whole(metrics, time) * build.device_count(a, role)
            if tokens in metrics:
                device_ns += self._held.pop(kind, 0)
                self._book.add(semconv.THROUGHPUT_TOKENS, _whole(metrics, tokens), labels)
            if kind in self._held:
                self._held[kind] += device_ns
            else:
                self._book.add(semconv.DEVICE_TIME, device_ns, labels)
            if (value := metrics.get(ratio)) is not None:
                ratios.append((labels, value))
        self._book.tell(semconv.THROUGHPUT_DEVICE, ratios)
        self._book.tell(
            semconv.DEVICES,
            [({semconv.ROLE: role}, build.device_count(a, role)) for role in ROLES],
        )

    def _distributions(self, a: RolloutAttributes) -> None:
        book = self._book
        for kind, lengths in (("input", a.prompt_lengths), ("output", a.completion_lengths)):
            if lengths is not UNSET:
                book.record_all(semconv.SAMPLE_LENGTH, lengths, {semconv.KIND_OF_TOKENS: kind})
        if a.policy_lag is not UNSET:
            book.record_all(semconv.POLICY_LAG, a.policy_lag)
        for method, calls in a.workers.items():
            durations = [ns for of_one in calls.values() for ns in of_one]
            book.record_all(
                semconv.WORKER_DURATION, durations, book.named(semconv.WORKER_METHOD, method)
            )


def _whole(metrics: Mapping[str, Number], name: str) -> int:
    return int(metrics.get(name) or 0)
