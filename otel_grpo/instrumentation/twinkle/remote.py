"""Twinkle over Ray, from the driver: workers that are timed, and calls that nobody waits for.

What goes to a worker goes by value and does without this package there.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from otel_grpo.instrumentation.twinkle import contract
from otel_grpo.tracing.carrier import KEYWORD
from otel_grpo.tracing.timed import timed

if TYPE_CHECKING:
    from otel_grpo.tracing.run import Run

# A worker answers a question about its scaler at once, or never.
_ANSWER_S = 30.0


class Workers:
    """The actors of one run, with what is under way in them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._numbers: dict[Any, int] = {}  # of each actor, as its files have it; the driver is 0
        self._scales: dict[Any, float | None] = {}  # of actors whose gradients are scaled
        self._last: list[tuple[Any, Any]] = []  # the workers of the last call, with what it gives

    # --- at their start

    def watch(self, actors: Sequence[Any], *, scaled: bool) -> None:
        """These actors were made just now, from a class of `timed_class`."""
        # A process that does not use Ray must not import it: it would then also shut it down.
        from otel_grpo.ray.actors import watch

        watch(self._run, actors)
        for actor in actors:
            self._numbers[actor._actor_id] = len(self._numbers) + 1
        if scaled:
            self.scales(actors)

    def scales(self, actors: Sequence[Any]) -> None:
        """These scale their gradients from now on, by a scaler that is new."""
        self._scales.update(dict.fromkeys((actor._actor_id for actor in actors), None))

    # --- calls

    def carried(self, method: str, calls: Sequence[Any]) -> Sequence[Any]:
        """Calls to workers, each with the place in the trace that it belongs to."""
        if method not in contract.TIMED:
            return calls
        carrier = self._run.carrier()
        if not carrier or any(worker._actor_id not in self._numbers for worker, _, _ in calls):
            return calls
        return [(worker, args, {**kwargs, KEYWORD: carrier}) for worker, args, kwargs in calls]

    def submitted(self, calls: Sequence[Any], results: Sequence[Any]) -> None:
        self._last = [(call[0], result) for call, result in zip(calls, results, strict=False)]

    def under_way(self, model: Any, adapter: str | None) -> UnderWay:
        """The last call, an update; its workers are asked for their scale right after it."""
        asked = {
            actor._actor_id: actor.__ray_call__.remote(_scale(), adapter)
            for actor in model._actors
            if actor._actor_id in self._scales
        }
        calls, self._last = self._last, []
        numbers = [self._numbers.get(worker._actor_id, 0) for worker, _ in calls]
        return UnderWay([result for _, result in calls], numbers, asked)

    def overflowed(self, under_way: UnderWay) -> list[int]:
        """The numbers of the workers whose scale has become smaller: they made no step."""
        import ray

        found = []
        for actor, asked in under_way.asked.items():
            told = ray.get(asked, timeout=_ANSWER_S)
            if told is None:
                continue
            now, first = told
            before, self._scales[actor] = self._scales[actor], now
            if now < (first if before is None else before):
                found.append(self._numbers.get(actor, 0))
        return found


class UnderWay:
    """A call on all workers, which are asked without waiting for what the training waits for."""

    def __init__(self, results: list[Any], numbers: list[int], asked: dict[Any, Any]) -> None:
        self.asked = asked
        self._results = results
        self._numbers = numbers

    def ended(self) -> bool:
        """Whether every worker has come to its end."""
        import ray

        refs = [each for each in self._results if isinstance(each, ray.ObjectRef)]
        refs += self.asked.values()
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0) if refs else ([], [])
        return len(ready) == len(refs)

    def failures(self) -> dict[int, BaseException]:
        """By worker, what those that have failed by now raised."""
        import ray

        found: dict[int, BaseException] = {}
        for number, ref in zip(self._numbers, self._results, strict=True):
            if not isinstance(ref, ray.ObjectRef) or not ray.wait([ref], timeout=0)[0]:
                continue
            try:
                ray.get(ref)
            except Exception as error:
                found[number] = error
        return found


def _scale() -> Callable[[Any, str | None], tuple[float, float] | None]:
    """What a worker is asked after a step: its scale now, and at first.

    A function inside a function goes there by value.
    """

    def scale(model: Any, adapter: str | None) -> tuple[float, float] | None:
        group = model.optimizer_group[model._get_default_group() if adapter is None else adapter]
        scaler = group.scaler
        return None if scaler is None else (float(scaler.get_scale()), float(scaler._init_scale))

    return scale


# --- classes that are timed on the workers


def timed_class(component: type) -> type:
    """The class with those of its methods timed that are worth it; as it is if it has none.

    Its methods are looked up on the worker, where the class is as Twinkle wrote it: here its
    attributes may be our hooks.
    """
    names = [name for name in contract.TIMED if callable(getattr(component, name, None))]
    if not {"forward_backward", "sample"} & set(names):
        return component
    made: dict[str, Any] = {
        name: timed(memory=contract.TIMED[name], carrier=True)(_forwarding(component, name))
        for name in names
    }
    # Who gets an optimizer trains; who only has forward passes does neither.
    method, does = ("__init__", "generate") if "sample" in names else ("set_optimizer", "train")
    made[method] = _joining(_forwarding(component, method), does)
    like = {name: getattr(component, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(component)(component.__name__, (component,), {**like, **made})


def _forwarding(component: type, name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(component, name)(self, *args, **kwargs)

    theirs = getattr(component, name)
    vars(method)["__signature__"] = inspect.signature(theirs)
    method.__name__ = name
    method.__qualname__ = f"{component.__qualname__}.{name}"
    method.__doc__ = theirs.__doc__
    return method


def _joining(method: Callable[..., Any], does: str) -> Callable[..., Any]:
    """The method of a worker that says what its device does, once it is through."""

    def joined(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        try:
            from otel_grpo.ray import join
        except ImportError:
            return result
        join(does=[does])
        return result

    vars(joined).update(vars(method))
    joined.__name__, joined.__doc__ = method.__name__, method.__doc__
    joined.__qualname__ = method.__qualname__
    return joined


# --- results that the driver collects later, or never


def collected(lazy: Any, around: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    """Have `around` stand around the wait for a lazy result, whenever it is waited for.

    Nothing is asked of the result here, not even whether it is true: any question would wait. Its
    class is made anew for each call, so the patch is this result's alone; it may be sent to a worker
    with its class, so what stands in it must be able to travel.
    """
    kind = type(lazy)
    kind._get_result = _collecting(kind._get_result, around)


def _collecting(
    theirs: Callable[[Any], Any], around: Callable[[], contextlib.AbstractContextManager[Any]]
) -> Callable[[Any], Any]:
    def _get_result(self: Any) -> Any:
        if self._result is not None:
            return theirs(self)
        with around():
            return theirs(self)

    return _get_result


class Waits:
    """Gives the phase of a wait on this driver, and nothing on a worker."""

    def __init__(self, phase: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._phase = phase

    def __call__(self) -> contextlib.AbstractContextManager[Any]:
        return self._phase()

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing(), ()


def _nothing() -> Callable[[], Any]:
    def make() -> Any:
        from contextlib import nullcontext

        return nullcontext

    return make
