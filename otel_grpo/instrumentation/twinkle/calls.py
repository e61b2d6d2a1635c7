"""The patches of `RayHelper`, through which Twinkle makes workers and calls them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_grpo.instrumentation import base
from otel_grpo.instrumentation.base import Fault, Patches, Steps, around
from otel_grpo.instrumentation.twinkle import remote

if TYPE_CHECKING:
    from otel_grpo.instrumentation.twinkle.session import Session


def patch(
    patches: Patches, helper: Any, session: Callable[[], Session | None], fault: Fault
) -> None:
    """Patch the helper; `session` is asked at each call."""
    calls = _Calls(session, fault)
    for name, make in (
        ("_get_remote_component", calls.of_timed_class),
        ("create_workers", lambda theirs: around(theirs, calls.created, fault)),
        ("execute_all_async", calls.executed),
        ("do_get_and_collect_func", lambda theirs: around(theirs, calls.lazy, fault)),
    ):
        patches.wrap(helper, name, functools.partial(_static, make))


def _static(make: Callable[[Any], Callable[..., Any]], theirs: Any) -> Any:
    return staticmethod(make(theirs.__func__))


class _Calls:
    def __init__(self, session: Callable[[], Session | None], fault: Fault) -> None:
        self._session = session
        self._fault = fault
        self._timed_class = functools.cache(remote.timed_class)

    def of_timed_class(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def get_remote_component(component: Any) -> Any:
            try:
                given = self._timed_class(component)
            except Exception as error:
                self._fault("class", error)
                given = component
            return theirs(given)

        return get_remote_component

    def created(self, *_: Any, **kwargs: Any) -> Steps:
        with _their_path():
            outcome = yield
        session = self._session()
        if session is not None and session.run.live and outcome.error is None:
            session.workers.watch(outcome.value, scaled=kwargs.get("mixed_precision") == "fp16")

    def executed(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def execute_all_async(method_name: str, workers_and_args: Any) -> Any:
            session, given = self._session(), workers_and_args
            if session is not None and session.run.live:
                try:
                    given = session.workers.carried(method_name, workers_and_args)
                except Exception as error:
                    self._fault("carrier", error)
            results = theirs(method_name, given)
            if session is not None:
                session.workers.submitted(workers_and_args, results)
            return results

        return execute_all_async

    def lazy(self, *_: Any, **__: Any) -> Steps:
        outcome = yield
        session = self._session()
        if session is not None and outcome.error is None:
            session.collects(outcome.value)


@contextlib.contextmanager
def _their_path() -> Iterator[None]:
    """The environment without the entry of `otel-grpo run`.

    Twinkle gives each worker a copy of it, before which the path of the user's own `runtime_env` has
    no chance; and the workers need no hook of ours.
    """
    before = os.environ.get("PYTHONPATH")
    ours = str(Path(base.__file__).parent / "auto")
    rest = [entry for entry in (before or "").split(os.pathsep) if entry and entry != ours]
    if before is None or ours not in before.split(os.pathsep):
        yield
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    if not rest:
        del os.environ["PYTHONPATH"]
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before
