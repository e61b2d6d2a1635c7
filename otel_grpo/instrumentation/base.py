"""What every trainer's module shares: patches that can be undone, hooks that can't do harm.

A hook stands around a method of the trainer. Whatever fails in the hook, the method is called exactly
once, its result and its exception (the same object) pass unchanged, and the fault is counted.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
from collections.abc import Callable, Generator, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import wrapt
from packaging.specifiers import SpecifierSet

from otel_grpo.tracing.guard import logger

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

_ABSENT: Any = object()


class Providers(NamedTuple):
    """Of the user; None: the run has one of its own."""

    tracer: TracerProvider | None = None
    meter: MeterProvider | None = None


class Outcome(NamedTuple):
    """How the wrapped call ended: with a value, or with the exception that is on its way up."""

    value: Any = None
    error: BaseException | None = None


# A hook's generator runs to its only `yield` before the call and gets the outcome there after it. It
# is told of an exception and not thrown into: a traceback that passed through a hook would show the
# hook's frames. A hook that has nothing to do after the call gives None.
Steps = Generator[None, Outcome, None]
Hook = Callable[..., Steps | None]
# Told of a fault inside a hook: the place, and the exception.
Fault = Callable[[str, Exception], None]


def around(original: Callable[..., Any], hook: Hook, fault: Fault) -> Callable[..., Any]:
    """`original` with `hook` around every call; name, signature and `__wrapped__` are kept."""
    place = f"hook.{getattr(original, '__name__', 'call')}"

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        steps: Steps | None = None
        try:
            steps = hook(*args, **kwargs)
            if steps is not None:
                next(steps)
        except StopIteration:
            steps = None
        except Exception as error:
            steps = None
            fault(place, error)
        try:
            value = original(*args, **kwargs)
        except BaseException as error:
            if steps is not None:
                _finish(steps, Outcome(error=error), place, fault)
            raise
        if steps is not None:
            _finish(steps, Outcome(value), place, fault)
        return value

    return wrapper


def _finish(steps: Steps, outcome: Outcome, place: str, fault: Fault) -> None:
    try:
        steps.send(outcome)
    except StopIteration:
        pass
    except Exception as error:
        try:
            fault(place, error)
        except Exception:
            # Strict mode raises the fault, but never in place of the trainer's own exception.
            if outcome.error is None:
                raise


class Patches:
    """Attributes of classes and modules replaced from outside, each once; all can be put back."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._done)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)`; a second call for the same place does nothing.

        Raises AttributeError if there is no such attribute.
        """
        if any(done is owner and attribute == name for done, attribute, _, _ in self._done):
            return
        before = vars(owner).get(name, _ABSENT)
        original = _inherited(owner, name) if before is _ABSENT else before
        replacement = make(original)
        setattr(owner, name, replacement)
        self._done.append((owner, name, before, replacement))

    def restore(self) -> None:
        """Put every attribute back: own ones as they were, inherited ones are deleted again.

        What somebody else has wrapped since is left alone: to cut it out would undo his patch.
        """
        for owner, name, before, replacement in reversed(self._done):
            if vars(owner).get(name, _ABSENT) is not replacement:
                logger.debug("%s.%s was patched again by others and is left", owner, name)
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._done.clear()


def _inherited(owner: Any, name: str) -> Callable[..., Any]:
    """The method that `owner` inherits, looked up at each call: a later patch of the base counts."""
    target = getattr(owner, name)

    @functools.wraps(target)
    def inherited(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    return inherited


class Expected(NamedTuple):
    """A method or function that is hooked, with the parameters that the hook relies on, in order."""

    name: str
    parameters: tuple[str, ...]


def mismatch(package: str, supported: str, expected: Iterable[tuple[Any, Expected]]) -> str | None:
    """Why the installed `package` is not observed: its release, else the hooks that no longer fit."""
    return unsupported_version(package, supported) or misfits(expected)


def misfits(expected: Iterable[tuple[Any, Expected]]) -> str | None:
    """The hooks that no longer fit; None if all do."""
    drifts = [drift for owner, each in expected if (drift := drifted(owner, *each))]
    return "; ".join(drifts) or None


def unsupported_version(package: str, supported: str) -> str | None:
    """Why the installed `package` is not observed; None if its version is in `supported`."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"{package} has no installed version that could be checked against {supported}"
    # A pre-release counts as the version that it leads to: it has that one's methods, if any.
    if SpecifierSet(supported).contains(version, prereleases=True):
        return None
    return f"{package} {version} is installed and {supported} is supported"


def drifted(owner: Any, name: str, parameters: tuple[str, ...]) -> str | None:
    """How `owner.name` differs from the method that a hook was written for; None if it fits."""
    label = f"{getattr(owner, '__name__', owner)}.{name}"
    target = getattr(owner, name, None)
    if not callable(target):
        return f"{label} is gone"
    found = tuple(inspect.signature(target).parameters)
    if found[: len(parameters)] != parameters:
        return f"{label} takes {found}, expected {parameters}"
    return None


def when_imported(module: str, action: Callable[[ModuleType], None]) -> None:
    """Call `action` with the module once it is imported, at once if it is; never import it.

    An exception of `action` would fail the user's import: it is logged instead.
    """

    def safely(loaded: ModuleType) -> None:
        try:
            action(loaded)
        except Exception:
            logger.warning("otel-grpo: %s is not observed", module, exc_info=True)

    wrapt.register_post_import_hook(safely, module)
