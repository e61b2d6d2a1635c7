"""One iteration of a user's loop: what happened in it, and which samples and updates it counts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry.trace import set_span_in_context

from otel_grpo.core.ledger import Samples, UnreadBatch
from otel_grpo.tracing import given, sanitize
from otel_grpo.tracing.event import Event
from otel_grpo.tracing.phase import Phase
from otel_grpo.tracing.publication import Publication
from otel_grpo.tracing.update import Update

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from opentelemetry.context import Context

    from otel_grpo.core.ledger import Batch, RolloutId
    from otel_grpo.records.model import PublicationKind, WindowStatus
    from otel_grpo.tracing.run import Run
    from otel_grpo.tracing.window import Window


class Iteration:
    """Context manager around one consumed rollout batch, however many updates are made from it.

    Inside another iteration it is that one: the mistake is counted and its calls reach the window
    that is open. Every call is safe: what makes no sense is counted under ``api.*`` and warned about
    once; only strict mode raises.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._window: Window | None = None
        self._owner = False
        self._outside: Context | None = None  # OpenTelemetry's context around the block

    def __enter__(self) -> Iteration:
        self.open()
        # Only for a block: a window that is opened here and closed there would leave it behind.
        if self._owner and self._window is not None and self._run.shared:
            try:
                self._outside = otel_context.get_current()
                otel_context.attach(set_span_in_context(self._window.span, self._outside))
            except Exception as error:
                self._run.guard.fault("iteration.context", error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._outside is not None:
            otel_context.attach(self._outside)
        self.close(error=error)

    def open(self, start_ns: int | None = None) -> Iteration:
        """Open the window, at `start_ns` (Unix nanoseconds of the run's clock) or now."""
        self._window, self._owner = self._run._open_window(start_ns)
        return self

    def join(self) -> Iteration:
        """Speak of the window that is open: who opened it closes it."""
        self._window = self._run.window
        return self

    def close(
        self,
        *,
        end_ns: int | None = None,
        status: WindowStatus | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Close the window, at `end_ns` or now; with `error` or status `aborted` it is aborted."""
        if not self._run.live:
            return
        window, self._window = self._window, None
        if window is None:
            self._run._misuse("iteration_closed", "an iteration was closed that is not open")
        elif self._owner:
            self._run._close_window(window, end_ns, status, error)

    @property
    def number(self) -> int | None:
        """Windows are counted from 1; None once closed."""
        return None if self._window is None else self._window.iteration

    def phase(
        self,
        name: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        parent: Phase | None = None,
        start_ns: int | None = None,
    ) -> Phase:
        """An interval of the phase `name` on the calling thread or task.

        Args:
            name: a canonical phase (``generation``, ``reward``, ``adv_pipeline``, ...) or your own.
            attributes: of the span; tensors and objects are recorded by their type's name.
                ``{"rl.device.synced": False}`` says that the phase only starts work on a device and
                does not wait for it.
            parent: the phase that this one is part of where the context does not tell: in threads.
            start_ns: Unix nanoseconds of the run's clock; default: when it is entered.
        """
        return Phase(self._run, name, attributes, parent=parent, start_ns=start_ns)

    def generated(self, rollout_id: RolloutId, n: int, *, first: int = 0) -> None:
        """`n` completions were sampled, consumed later or not."""
        with Event(self._run, "generated", self._window) as window:
            if window is not None:
                run_of_samples = (
                    given.rollout(rollout_id),
                    given.natural(first, "first"),
                    given.natural(n, "n"),
                )
                self._run.ledger.window.generated.append(run_of_samples)

    def consumed(
        self,
        rollout_id: RolloutId,
        *,
        prompt_lengths: given.Counts | None = None,
        completion_lengths: given.Counts | None = None,
        groups: given.Counts | None = None,
        versions: int | given.Counts | None = None,
        trainer_version: int | None = None,
        trained_lengths: given.Counts | None = None,
        environment_lengths: given.Counts | None = None,
        truncated: given.Flags | None = None,
        first: int = 0,
        n: int | None = None,
    ) -> Samples:
        """The samples of one rollout that this iteration trains on; each counts once, ever.

        Args:
            rollout_id: names the rollout; each rollout needs its own id.
            prompt_lengths: tokens of each sample's prompt. Shape (n,), Python or numpy integers;
                tensors are refused, reading them would wait for the device.
            completion_lengths: tokens that the model wrote, of each sample.
            groups: the group (prompt) of each sample, as an integer.
            versions: weights version that generated the samples: one for all, or one each.
            trainer_version: weights version of the trainer now, for one that does not publish each
                of them; default: the newest one that it published.
            trained_lengths: tokens under the loss mask, of each sample.
            environment_lengths: tokens that tools or the environment wrote, of each sample.
            truncated: whether each completion was cut off.
            first: index of the first sample.
            n: number of samples; only needed when no column is given.

        Returns:
            The ids of the samples, to slice into micro-batches: ``samples[0:8]``.
        """
        columns = {
            "prompt_lengths": prompt_lengths,
            "completion_lengths": completion_lengths,
            "trained_lengths": trained_lengths,
            "environment_lengths": environment_lengths,
            "group_ids": groups,
        }
        indices = given.extent(columns.values(), n, first)
        with Event(self._run, "consumed", self._window) as window:
            if window is not None:
                batch = given.batch(rollout_id, columns, indices, truncated, (first, n))
                if versions is not None:
                    now = self._run.version
                    if trainer_version is not None:
                        now = given.whole(trainer_version, "trainer_version")
                    batch.columns["policy_lag"] = given.lags(versions, now, len(indices))
                self._consume(batch)
        return Samples(rollout_id, indices)

    def consumed_unread(
        self, rollout_id: RolloutId, n: int, read: given.Reader, *, version: int, first: int = 0
    ) -> Samples:
        """As `consumed`, for adapters: what the trainer made is counted on the writer's thread.

        Args:
            rollout_id: names the rollout.
            n: number of samples.
            read: gives their columns, by their names in the record, and whether each was truncated.
                It is called once and then let go. Where it raises, the samples are recorded without.
            version: of the weights that generated them.
            first: index of the first sample.
        """
        indices = range(first, first + n)
        run = self._run
        with Event(run, "consumed", self._window) as window:
            if window is not None:
                lag = run.version - version
                batch = UnreadBatch(
                    rollout_id, first, n, partial(given.read, read, rollout_id, indices, lag)
                )
                self._consume(batch)
                run.have_read(batch)
        return Samples(rollout_id, indices)

    def _consume(self, batch: Batch | UnreadBatch) -> None:
        if self._run.ledger.consume(batch) < batch.n:
            self._run._tell_replay(batch.rollout_id)

    def trained(self, samples: Iterable[tuple[RolloutId, int]]) -> None:
        """A forward and backward pass over samples: a visit of each."""
        with Event(self._run, "trained", self._window) as window:
            if window is not None:
                self._run.ledger.visit(given.visits(samples))

    def discarded(self, reason: str, n: int, *, tokens: int | None = None) -> None:
        """`n` generated samples will never be trained on.

        Args:
            reason: ``stale``, ``filtered``, ``zero_advantage``, ``failed`` or your own.
            n: number of samples.
            tokens: their completion tokens, where known.
        """
        with Event(self._run, "discarded", self._window) as window:
            if window is not None:
                row = (
                    sanitize.label(reason),
                    given.natural(n, "n"),
                    None if tokens is None else given.natural(tokens, "tokens"),
                )
                self._run.ledger.window.discarded.append(row)

    def padding(self, tokens: int) -> None:
        """Padding tokens that were computed in this iteration."""
        with Event(self._run, "padding", self._window) as window:
            if window is not None:
                events = self._run.ledger.window
                events.padding = (events.padding or 0) + given.natural(tokens, "tokens")

    def update(
        self,
        samples: Iterable[tuple[RolloutId, int]] | None = None,
        *,
        nominal: int | None = None,
        start_ns: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Update:
        """Context manager around one optimizer step, on all workers.

        Args:
            samples: the visits that it is made from; default: all since the last update.
            nominal: samples of a full update; one of fewer samples is counted as `partial`.
            start_ns: Unix nanoseconds of the run's clock; default: when it is entered.
            attributes: of its span.
        """
        checked = self._run._checked
        return Update(
            self._run,
            checked("update", samples, lambda s: sum(len(v.indices) for v in given.visits(s))),
            checked("update", nominal, lambda n: given.natural(n, "nominal")),
            start_ns,
            attributes,
        )

    def publication(
        self,
        version: int,
        *,
        kind: PublicationKind = "unknown",
        started_ns: int | None = None,
    ) -> Publication:
        """New weights are due at the generator; call `completed` on the result when they are there.

        Args:
            version: of the weights, growing.
            kind: ``in_place``, ``collective``, ``checkpoint``, ``ipc`` or ``unknown``.
            started_ns: Unix nanoseconds of the run's clock; default: now.
        """
        run = self._run
        publication = Publication(run, self.number or 0)
        with Event(run, "publication", self._window) as window:
            if window is not None:
                publication.version = given.whole(version, "version")
                publication.kind = (
                    run._checked("publication", kind, given.publication_kind) or "unknown"
                )
                publication.started_ns = run._instant("publication", started_ns)
                window.publications.append(publication)
                run.version = max(run.version, publication.version)
        return publication

    def memory(self) -> None:
        """Read the memory of this process and its devices now."""
        self._run.memory()
