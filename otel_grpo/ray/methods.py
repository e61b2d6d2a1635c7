"""Methods of a class that somebody else wrote, timed without a change to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, TypeVar, cast

from otel_grpo.tracing.guard import logger
from otel_grpo.tracing.timed import timed

C = TypeVar("C")


def time_methods(
    actor_class: C, methods: Iterable[str], *, memory: bool = False, carrier: bool = False
) -> C:
    """The class with these methods timed. Call it on the driver, before the first ``.remote()``.

    What ``@ray.remote`` made of a class is changed and given back. Of a plain class a subclass of
    the same name is made, for `ray.remote`: in the workers the class itself is imported unchanged.

    Args:
        actor_class: plain, or Ray's.
        methods: names; one that the class doesn't have is told, and left out.
        memory: as in `otel_grpo.timed`.
        carrier: as in `otel_grpo.timed`.
    """
    try:
        return cast("C", _timed(actor_class, list(methods), memory=memory, carrier=carrier))
    except Exception as error:
        logger.warning("otel-grpo: %r is not timed: %r", actor_class, error)
        return actor_class


def _timed(actor_class: Any, methods: list[str], **options: bool) -> Any:
    metadata = getattr(actor_class, "__ray_metadata__", None)
    theirs = actor_class if metadata is None else metadata.modified_class
    if metadata is not None and _was_sent(metadata):
        raise RuntimeError("Ray has sent the class to the workers")
    missing = [name for name in methods if not hasattr(theirs, name)]
    if missing:
        logger.warning("otel-grpo: %s has no %s", theirs.__name__, ", ".join(missing))
    made = {
        name: timed(**options)(inspect.getattr_static(theirs, name))
        for name in methods
        if name not in missing
    }
    if metadata is None:
        names = ("__module__", "__qualname__", "__doc__")
        like = {name: getattr(theirs, name) for name in names}
        return type(theirs)(theirs.__name__, (theirs,), {**like, **made})
    for name, method in made.items():
        setattr(theirs, name, method)
        # Ray read the arguments from the method as it was.
        bound = not isinstance(method, (staticmethod, classmethod))
        parameters = inspect.signature(getattr(theirs, name)).parameters.values()
        metadata.method_meta.signatures[name] = list(parameters)[bound:]
    return actor_class


def _was_sent(metadata: Any) -> bool:
    import ray

    sent = metadata.last_export_cluster_and_job
    now = ray.get_runtime_context().worker.current_cluster_and_job
    return bool(ray.is_initialized() and sent == now)
