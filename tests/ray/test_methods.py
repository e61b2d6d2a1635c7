"""Methods of classes that a trainer wrote, timed without a change to them."""

from __future__ import annotations

import ray
from plain_actors import Plain

import otel_grpo.ray


def test_plain_class(observed, start) -> None:
    """In the worker the class is imported unchanged, and yet its methods are timed."""
    before = dict(vars(Plain))
    timed = otel_grpo.ray.time_methods(Plain, ["add", "still"], carrier=True)
    assert dict(vars(Plain)) == before
    assert (timed.__name__, timed.__module__) == ("Plain", "plain_actors")
    assert timed().add(1) == Plain().add(1) == 2
    actor = start(timed)
    assert ray.get(actor.add.remote(1, _otel={})) == 2
    assert ray.get(actor.still.remote(4, _otel=None)) == 8
    assert ray.get(actor.all.remote(a=1)) == ["a"]
    assert [call.method for call in observed.calls(actor, 2)] == ["add", "still"]
    assert observed.joined(actor).role == "Plain"


def test_class_of_ray(observed) -> None:
    """What `ray.remote` made of a class, with Ray's own check of the arguments."""

    @ray.remote(num_cpus=0)
    class Local:
        def add(self, value: int) -> int:
            return value + 1

        def other(self) -> int:
            return 1

    assert otel_grpo.ray.time_methods(Local, ["add"], carrier=True) is Local
    actor = Local.options(name="named").remote()
    assert ray.get(actor.add.remote(1, _otel={})) == 2
    assert ray.get(actor.other.remote()) == 1
    (call,) = observed.calls(actor, 1)
    assert call.method == "add"

    # A handle that another process looks up checks by the same signature.

    @ray.remote(num_cpus=0)
    def elsewhere() -> int:
        return ray.get(ray.get_actor("named").add.remote(5, _otel={}))

    assert ray.get(elsewhere.remote()) == 6
    ray.kill(actor)


def test_too_late_and_missing(observed, start, caplog) -> None:
    """A class that the workers have already, or a method that is not there, is told."""

    @ray.remote(num_cpus=0)
    class Local:
        def add(self, value: int) -> int:
            return value + 1

    assert otel_grpo.ray.time_methods(Local, ["nothing"]) is Local
    assert "Local has no nothing" in caplog.text
    actor = start(Local)
    assert ray.get(actor.add.remote(1)) == 2
    assert otel_grpo.ray.time_methods(Local, ["add"]) is Local
    assert "sent the class" in caplog.text
