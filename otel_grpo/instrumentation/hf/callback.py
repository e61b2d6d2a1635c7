"""The trainer's own events, by its own interface."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_grpo.instrumentation.base import Fault
    from otel_grpo.instrumentation.hf.session import LoopSession


# What is asked of `transformers.TrainerCallback`.
EVENTS = ("on_train_begin", "on_optimizer_step", "on_log", "on_train_end")


@contextlib.contextmanager
def attached(session: LoopSession, fault: Fault) -> Iterator[None]:
    """Two callbacks in the trainer's list while it trains: one before all others, one after them.

    The first hears of a step or a log before another callback can fail or change the dict; the last
    hears of the end when the others are done.
    """
    base = sys.modules["transformers"].TrainerCallback

    def heard(tell: Callable[..., None]) -> Callable[..., None]:
        def event(_: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            try:
                tell(**kwargs)
            except Exception as error:
                fault("callback", error)

        return event

    first = type("OtelGrpoFirst", (base,), {
        "on_train_begin": heard(lambda **_: session.train_begins()),
        "on_optimizer_step": heard(lambda **_: session.optimizer_stepped()),
        "on_log": heard(lambda logs=None, **_: session.logged(logs or {})),
    })()  # fmt: skip
    last = type("OtelGrpoLast", (base,), {
        "on_train_end": heard(lambda **_: session.close_window()),
    })()  # fmt: skip
    callbacks = session.trainer.callback_handler.callbacks
    callbacks.insert(0, first)
    callbacks.append(last)
    try:
        yield
    finally:
        for callback in (first, last):
            if callback in callbacks:
                callbacks.remove(callback)


def missing_events(callback: type) -> str | None:
    """What of the interface is gone; None if it is all there."""
    gone = [event for event in EVENTS if not hasattr(callback, event)]
    return "; ".join(f"{callback.__name__}.{event} is gone" for event in gone) or None
