"""Patches that can be undone and hooks that can't do harm, on classes that no trainer owns."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys

import pytest

from otel_grpo.instrumentation.base import (
    Patches,
    around,
    drifted,
    unsupported_version,
    when_imported,
)


class Base:
    def step(self, size: int, *, fast: bool = False) -> int:
        """Of the base."""
        return size

    def other(self) -> str:
        return "other"


class Child(Base):
    def other(self) -> str:
        return "child"


class Recorder:
    """A hook that tells what it saw, and faults that are kept."""

    def __init__(self):
        self.seen, self.faults = [], []

    def hook(self, *args, **kwargs):
        self.seen.append((args[1:], kwargs))
        outcome = yield
        self.seen.append(outcome.value if outcome.error is None else outcome.error)

    def fault(self, place, error):
        self.faults.append((place, str(error)))


@pytest.fixture
def recorder():
    return Recorder()


# --- hooks ----------------------------------------------------------------------------------------


def test_a_hook_stands_around_the_call(recorder):
    """It sees the arguments before and the value after."""
    step = around(Base.step, recorder.hook, recorder.fault)
    assert step(Base(), 3, fast=True) == 3
    assert recorder.seen == [((3,), {"fast": True}), 3]


def test_a_wrapper_looks_like_the_method(recorder):
    """Name, documentation, signature, and the way back."""
    step = around(Base.step, recorder.hook, recorder.fault)
    assert (step.__name__, step.__doc__) == ("step", "Of the base.")
    assert inspect.signature(step) == inspect.signature(Base.step)
    assert step.__wrapped__ is Base.step


@pytest.mark.parametrize("error", [ValueError("the trainer's"), KeyboardInterrupt(), SystemExit(3)])
def test_the_trainers_exception_is_the_same_object(recorder, error):
    """The hook is told of it; no frame of the hook is in its traceback."""

    def fails(self):
        raise error

    with pytest.raises(type(error)) as raised:
        around(fails, recorder.hook, recorder.fault)(Base())
    assert raised.value is error
    assert error.__context__ is None
    assert recorder.seen[-1] is error
    assert [entry.name for entry in raised.traceback][-2:] == ["wrapper", "fails"]


@pytest.mark.parametrize("where", ["call", "before", "after"])
def test_a_fault_in_a_hook_costs_nothing_but_its_count(recorder, where):
    """The call is made once, its value returned; where the hook failed makes no difference."""
    calls = []

    def method(self):
        calls.append(1)
        return "value"

    def raises(*args):
        raise LookupError("ours")

    def before(*args):
        raise LookupError("ours")
        yield

    def after(*args):
        yield
        raise LookupError("ours")

    hook = {"call": raises, "before": before, "after": after}[where]
    assert around(method, hook, recorder.fault)(Base()) == "value"
    assert calls == [1]
    assert recorder.faults == [("hook.method", "ours")]


def test_a_fault_never_takes_the_place_of_the_trainers_exception(recorder):
    """Not even in strict mode, in which faults are raised."""
    error = ValueError("the trainer's")

    def fails(self):
        raise error

    def after(*args):
        yield
        raise LookupError("ours")

    def strict(place, fault):
        raise fault

    with pytest.raises(ValueError, match="the trainer's") as raised:
        around(fails, after, strict)(Base())
    assert raised.value is error


def test_a_hook_may_have_nothing_to_do_after_the_call(recorder):
    """It gives None, or ends before its `yield`."""

    def returns(*args):
        return None

    def ends(*args):
        return
        yield

    for hook in (returns, ends):
        assert around(Base.other, hook, recorder.fault)(Base()) == "other"
    assert recorder.faults == []


# --- patches --------------------------------------------------------------------------------------


def test_restore_leaves_no_trace(recorder):
    """Own attributes are the same objects again, inherited ones are gone."""
    before = dict(vars(Child))
    patches = Patches()
    for name in ("step", "other", "step"):
        patches.wrap(Child, name, lambda original: around(original, recorder.hook, recorder.fault))
    assert Child().step(2) == 2
    assert len(recorder.seen) == 2  # a place is patched once
    assert Base.step is not Child.step
    patches.restore()
    assert dict(vars(Child)) == before
    assert not patches


def test_a_later_patch_of_the_base_is_not_hidden(recorder, monkeypatch):
    """An inherited method is looked up at the call."""
    patches = Patches()
    patches.wrap(Child, "step", lambda original: around(original, recorder.hook, recorder.fault))
    monkeypatch.setattr(Base, "step", lambda self, size: size + 40)
    assert Child().step(2) == 42
    patches.restore()


def test_what_others_wrapped_since_is_left_alone(recorder):
    """Their wrapper calls ours, and to cut ours out would take theirs away."""

    class Target(Base):
        def other(self):
            return "target"

    patches = Patches()
    patches.wrap(Target, "other", lambda original: around(original, recorder.hook, recorder.fault))
    ours = Target.other
    Target.other = theirs = lambda self: "their " + ours(self)
    patches.restore()
    assert Target.other is theirs
    assert Target().other() == "their target"


def test_module_functions_are_patched_too(recorder, monkeypatch):
    """By the name under which the trainer's module knows them."""
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "function", lambda: "plain", raising=False)
    plain = module.function
    patches = Patches()
    patches.wrap(module, "function", lambda original: lambda: "patched " + original())
    assert module.function() == "patched plain"
    patches.restore()
    assert module.function is plain


def test_a_place_that_is_not_there_is_an_error():
    """The contract is checked before; this is a mistake of ours."""
    with pytest.raises(AttributeError):
        Patches().wrap(Child, "missing", lambda original: original)


# --- gates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("1.16.0", None),
        ("1.16.3", None),
        ("1.17.0", "trainer 1.17.0 is installed and >=1.16,<1.17 is supported"),
        ("1.15.2", "trainer 1.15.2 is installed and >=1.16,<1.17 is supported"),
    ],
)
def test_version_gate(monkeypatch, version, reason):
    """A message names both sides."""
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    assert unsupported_version("trainer", ">=1.16,<1.17") == reason


def test_a_package_without_metadata_is_not_trusted():
    """A source tree on the path, for example."""
    assert "no installed version" in unsupported_version("no-such-package-anywhere", ">=1")


def test_drift_is_described():
    """A method that is gone, one that takes something else; more parameters at the end are fine."""
    assert drifted(Base, "step", ("self", "size")) is None
    assert drifted(Base, "stop", ()) == "Base.stop is gone"
    assert drifted(Base, "step", ("self", "count")).startswith("Base.step takes ('self', 'size'")


# --- import hooks ---------------------------------------------------------------------------------


@pytest.fixture
def module_to_come(tmp_path, monkeypatch):
    name = f"trainer_to_come_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_module_is_met_when_the_user_imports_it(module_to_come):
    """Not before: waiting imports nothing."""
    met = []
    when_imported(module_to_come, met.append)
    assert met == []
    assert module_to_come not in sys.modules
    module = importlib.import_module(module_to_come)
    assert met == [module]
    when_imported(module_to_come, met.append)  # it is there already
    assert met == [module, module]


def test_a_fault_of_ours_does_not_fail_the_users_import(module_to_come, caplog):
    """It is logged."""

    def broken(module):
        raise LookupError("ours")

    when_imported(module_to_come, broken)
    assert importlib.import_module(module_to_come).VALUE == 1
    assert f"{module_to_come} is not observed" in caplog.text
