"""The trainer's own code around vLLM, with stand-ins for the engine and for the server's client.

No GPU and no vLLM: which phase is where and when weights count as published; no time means anything.
"""

from __future__ import annotations

import stand_ins
from support import audited
from swift_support import train


def order(window):
    """Phases of a window that have no parent, by their start; without what the plugin does itself."""
    rows = [row for row in window["attributes"]["intervals"] if row[1] is None and not row[6] & 8]
    return [row[2] for row in sorted(rows, key=lambda row: row[3])]


def test_colocated(observed, folder, tmp_path, monkeypatch):
    """The push of an update ends its window; wake-up, sleep and offload are siblings of generation."""
    told = []
    train(
        folder,
        tmp_path,
        watch=lambda trainer: stand_ins.colocated(trainer, told, monkeypatch),
        max_steps=3,
    )
    once = ["wake weights", "load", "wake kv_cache", "infer", "sleep"]
    assert told == once * 3
    files = audited(observed)
    first, second, third = files.of("rollout")
    begin = ["data", "engine_wake", "weight_sync"]
    generate = ["offload", "engine_wake", "generation", "engine_sleep", "offload"]
    rest = ["reward", "adv_pipeline", "log", "policy_train", "optimizer", "log"]
    # Version 0 is pushed in the first window: start-up, and no publication.
    assert order(first) == [*begin, *generate, *rest, "data", "engine_wake", "weight_sync"]
    assert order(second) == [*generate, *rest, "data", "engine_wake", "weight_sync"]
    assert order(third)[: len(generate + rest)] == [*generate, *rest]
    published = [w["attributes"]["publications"] for w in (first, second, third)]
    assert [(p["version"], p["in_window"]) for (p,) in published[:2]] == [(1, True), (2, True)]
    assert published[2][0]["completed_ns"] is None
    for window, (publication,) in zip((first, second), published, strict=False):
        assert publication["completed_ns"] == window["attributes"]["window"]["end_ns"]
    assert files.summary["publications"] == 2
    assert files.summary["publications_pending"] == 1
    assert files.summary["tokens"]["completion"] == 3 * 8 * len(stand_ins.ANSWER)
    assert [w["attributes"]["policy_lag"] for w in files.of("rollout")] == [[0] * 8] * 3


def test_server(observed, folder, tmp_path):
    """Pushed by the server's client; the sync is in the window of its update."""
    told = []
    train(
        folder,
        tmp_path,
        watch=lambda trainer: stand_ins.served(trainer, told, asynchronous=False),
        max_steps=2,
    )
    first, second = audited(observed).of("rollout")
    begin = ["generation", "reward", "adv_pipeline", "log", "policy_train", "optimizer", "log"]
    assert order(first) == ["data", "weight_sync", *begin, "data", "weight_sync"]
    assert order(second)[: len(begin)] == begin
    assert [p["kind"] for p in first["attributes"]["publications"]] == ["collective"]
    assert [each for each in told if each == "infer"] == ["infer"] * 2


def test_generation_beside_the_training(observed, folder, tmp_path):
    """What was made before the last update lags one version behind; the wait is no generation."""
    told = []
    train(
        folder,
        tmp_path,
        watch=lambda trainer: stand_ins.served(trainer, told, asynchronous=True),
        max_steps=3,
    )
    files = audited(observed)
    windows = files.of("rollout")
    assert len(windows) == 3
    # A rollout before the first step, then one beside each step.
    assert [each for each in told if each == "infer"] == ["infer"] * 4
    lags = [w["attributes"]["policy_lag"] for w in windows]
    assert lags == [[0] * 8, [1] * 8, [1] * 8]
    # Its own rollout is waited for in the first window, the next one's at the end of each: before
    # the weights are pushed.
    assert [files.phases(w)["rollout_wait", None] for w in windows] == [2, 1, 0]
    for window in windows:
        rows = window["attributes"]["intervals"]
        lane = window["attributes"]["window"]["lane"]
        assert {row[5] for row in rows if row[2] == "generation"} != {lane}
        assert "generation" not in {row[2] for row in rows if row[5] == lane}
    assert files.summary["publications"] == 2
    assert files.summary["samples"]["consumed"] == 24
