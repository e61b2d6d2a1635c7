"""The span processor: accounts for every span with a phase, whoever made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from otel_grpo import semconv
from otel_grpo.records.model import FOREIGN
from otel_grpo.tracing import lanes, sanitize
from otel_grpo.tracing.account import Account, Row
from otel_grpo.tracing.spans import attributes_of, flags_at_end, flags_at_start, is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context import Context

    from otel_grpo.tracing.guard import Guard


class AccountProcessor(SpanProcessor):
    """Feeds the account as spans start and end, and hands ended spans on to be written.

    Runs on the caller's thread; nothing may be raised from here, it would reach the trainer.
    """

    def __init__(
        self, account: Account, guard: Guard, write: Callable[[ReadableSpan], object]
    ) -> None:
        self._account = account
        self._guard = guard
        self._write = write
        self.live = True

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if not self.live:
            return
        try:
            attributes = attributes_of(span)
            if (phase := attributes.get(semconv.PHASE)) is not None:
                row = _row(span, phase, attributes)
                self._account.open[row.id] = row
        except Exception as error:
            self._guard.fault("processor.on_start", error)

    def on_end(self, span: ReadableSpan) -> None:
        if not self.live:
            return
        try:
            attributes = attributes_of(span)
            phase = attributes.get(semconv.PHASE)
            if phase is not None:
                self._account_end(span, phase, attributes)
            elif is_foreign(span):
                # Counted, and nothing else: what it holds is not ours to keep.
                self._account.count_foreign(span.end_time or 0)
                return
            self._write(span)
        except Exception as error:
            self._guard.fault("processor.on_end", error)

    def shutdown(self) -> None:
        """The run closes its files itself; the provider may outlive it."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    def _account_end(self, span: ReadableSpan, phase: Any, attributes: Mapping[str, Any]) -> None:
        end = span.end_time or 0
        flags = flags_at_end(span.status.status_code, attributes)
        if not self._account.end(span.context.span_id, end, flags):
            # The phase was set after the start.
            row = _row(span, phase, attributes)
            self._account.open[row.id] = row
            self._account.end(row.id, end, flags)


def _row(span: ReadableSpan, phase: Any, attributes: Mapping[str, Any]) -> Row:
    flags = flags_at_start(attributes)
    if is_foreign(span):
        flags, phase = flags | FOREIGN, sanitize.label(phase)
    parent = span.parent
    return Row(
        span.context.span_id,
        None if parent is None else parent.span_id,
        phase,
        span.start_time or 0,
        None,
        lanes.current(),
        flags,
    )
