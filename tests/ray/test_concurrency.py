"""What a trainer runs side by side stays side by side, in its order and on its threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import ray
from plain_actors import Concurrent, Plain

import otel_grpo.ray

METHODS = ["meet", "ameet", "add"]


class Seen(NamedTuple):
    """What the workers themselves noted of one round."""

    order: list[str]
    on_main_thread: dict[str, bool]
    threads: dict[str, int]
    all_at_once: bool


def round_of(actors: dict[str, Any], folder: Path, carrier: dict[str, str] | None) -> Seen:
    """Auxiliary forwards, a reward model and environments: all submitted before any is waited for."""
    folder.mkdir()
    keywords = {} if carrier is None else {"_otel": carrier}
    names = ["old", "pool", "loop"]
    calls = {
        "old": [actors["old"].meet.remote(str(folder), "old", 5, **keywords)],
        "pool": [actors["pool"].meet.remote(str(folder), f"p{n}", 5, **keywords) for n in (1, 2)],
        "loop": [actors["loop"].ameet.remote(str(folder), f"l{n}", 5, **keywords) for n in (1, 2)],
    }
    # The queue behind them: its order is that of the submissions.
    after = [actors["old"].add.remote(n, **keywords) for n in range(5)]
    assert ray.get(after) == [1, 2, 3, 4, 5]
    for refs in calls.values():
        ray.get(refs)
    notes = {name: ray.get(actors[name].noted.remote()) for name in names}
    everything = [note for of in notes.values() for note in of]
    starts, ends = [note[1] for note in everything], [note[2] for note in everything]
    return Seen(
        order=[note[0] for note in notes["old"]],
        on_main_thread={name: {note[4] for note in of} == {True} for name, of in notes.items()},
        threads={name: len({note[3] for note in of}) for name, of in notes.items()},
        all_at_once=max(starts) < min(ends),
    )


def test_side_by_side(observed, start, tmp_path) -> None:
    """Five calls on three actors are in flight at once with us as without us."""

    def actors(change: Any) -> dict[str, Any]:
        return {
            "old": start(change(Plain)),
            "pool": start(change(Plain), max_concurrency=2),
            "loop": start(change(Concurrent)),
        }

    def timed(plain: type) -> type:
        methods = [name for name in METHODS if hasattr(plain, name)]
        return otel_grpo.ray.time_methods(plain, methods, carrier=True)

    without = round_of(actors(lambda plain: plain), tmp_path / "without", None)
    observing = actors(timed)
    with observed.run.iteration() as it, it.phase("adv_pipeline"):
        with_us = round_of(observing, tmp_path / "with", observed.run.carrier())
    assert without.all_at_once
    assert without == with_us
    assert without.threads == {"old": 1, "pool": 2, "loop": 1}
    # And our own lines say the same: all of the five at once.
    calls = [
        call
        for name, n in (("old", 6), ("pool", 2), ("loop", 2))
        for call in observed.calls(observing[name], n)
        if call.method != "add"
    ]
    assert len(calls) == 5
    assert max(call.start_ns for call in calls) < min(call.end_ns for call in calls)
