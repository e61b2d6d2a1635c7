"""What values may reach a file: any that a training has, none that it keeps to itself."""

from __future__ import annotations

import array
import enum
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_grpo.testing import FakeClock, RecordedRun, recorded_run
from otel_grpo.tracing import sanitize

SECRET = "the secret prompt of a user"


class Tensor:
    """Stands for a tensor on a device: reading it would wait for the device."""

    shape = ()

    def _read(self, *_: Any) -> Any:
        raise AssertionError("a tensor was read")

    __array__ = __iter__ = __int__ = __float__ = __index__ = __bool__ = __str__ = _read
    __format__ = __eq__ = __lt__ = item = tolist = numpy = detach = cpu = _read  # type: ignore[assignment]
    __hash__ = object.__hash__


Tensor.__module__ = "torch"


class Colour(enum.Enum):
    RED = "red"


class Quoted(str):
    """A string whose own text is not what it prints."""

    def __str__(self) -> str:
        raise AssertionError("printed")


def attributes_of(recorded: RecordedRun, name: str) -> dict[str, Any]:
    (span,) = [span for span in recorded.spans if span["name"] == name]
    return {item["key"]: item["value"] for item in span["attributes"]}


def test_attribute_values(clock: FakeClock) -> None:
    """Plain values as they are; numpy's as plain ones; anything else by the name of its type."""
    given = {
        "str": "text",
        "bool": True,
        "int": 7,
        "float": 0.5,
        "none": None,
        "nan": math.nan,
        "inf": -math.inf,
        "np.float32": np.float32(0.5),
        "np.int64": np.int64(-3),
        "enum": Colour.RED,
        "big": 2**63,
        "bigger": -(2**70),
        "monstrous": 10**5000,
        "list": [1, 2],
        "mixed": [1, "a"],
        "empty": (),
        "tensor": Tensor(),
        "tensors": [Tensor(), Tensor()],
        "array": np.zeros(3),
        "bytes": b"raw",
        "dict": {"a": SECRET},
        "exception": ValueError(SECRET),
        "quoted": Quoted("own text"),
        "np.str_": np.str_("x"),
        "unicode": "héllo 日本 🎉",
        "surrogate": "broken \udce9 name",
        "megabyte": "x" * 10**6,
        "control\n\x00/name": "a\n\x00\u2028b",
        Colour.RED: 1,
        3: "three",
    }
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        with it.phase("reward", attributes=given):
            clock.advance(1)
    got = attributes_of(recorded, "rl.reward")
    assert {name: got[name] for name in given if str(name) in got and isinstance(name, str)} == {
        "str": {"stringValue": "text"},
        "bool": {"boolValue": True},
        "int": {"intValue": "7"},
        "float": {"doubleValue": 0.5},
        "nan": {"doubleValue": "NaN"},
        "inf": {"doubleValue": "-Infinity"},
        "np.float32": {"doubleValue": 0.5},
        "np.int64": {"intValue": "-3"},
        "enum": {"stringValue": "red"},
        "big": {"stringValue": str(2**63)},
        "bigger": {"stringValue": str(-(2**70))},
        "monstrous": {"stringValue": "<int of 16610 bits>"},
        "list": {"arrayValue": {"values": [{"intValue": "1"}, {"intValue": "2"}]}},
        "mixed": {"arrayValue": {"values": [{"stringValue": "1"}, {"stringValue": "a"}]}},
        "empty": {"arrayValue": {"values": []}},
        "tensor": {"stringValue": "<torch.Tensor>"},
        "tensors": {"arrayValue": {"values": [{"stringValue": "<torch.Tensor>"}] * 2}},
        "array": {"stringValue": "<numpy.ndarray>"},
        "bytes": {"stringValue": "<builtins.bytes>"},
        "dict": {"stringValue": "<builtins.dict>"},
        "exception": {"stringValue": "<builtins.ValueError>"},
        "quoted": {"stringValue": "own text"},
        "np.str_": {"stringValue": "x"},
        "unicode": {"stringValue": "héllo 日本 🎉"},
        "surrogate": {"stringValue": "broken ? name"},
        "megabyte": {"stringValue": "x" * (sanitize.MAX_TEXT - 1) + "…"},
        "control\n\x00/name": {"stringValue": "a\n\x00\u2028b"},
    }
    assert got["red"] == {"intValue": "1"}
    assert got["3"] == {"stringValue": "three"}
    assert recorded.summary.observed.errors == {}


def test_attributes_that_fail_cost_no_phase(clock: FakeClock) -> None:
    """A mapping that raises, or is none, is one counted mistake; the phase is there."""
    with recorded_run(clock=clock, strict=False) as recorded, recorded.run.iteration() as it:
        for attributes in ([1, 2], {"a": "ok"}, 7):
            with it.phase("reward", attributes=attributes):
                clock.advance(1)
    assert recorded.rollouts[0].metrics["phase.reward.calls"] == 3
    assert recorded.summary.observed.errors == {"api.attributes": 2}


def test_many_attributes_keep_the_phase(clock: FakeClock) -> None:
    """A thousand attributes, or one under our own name, leave the account as it is."""
    many: dict[str, Any] = {f"key{n}": n for n in range(1000)}
    many |= {"rl.phase": "stolen", "rl.run.id": "stolen"}
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        with it.phase("generation", attributes=many):
            clock.advance(1)
    assert recorded.rollouts[0].metrics["phase.generation.busy_ns"] == 10**9
    got = attributes_of(recorded, "rl.sample")
    assert got["rl.phase"] == {"stringValue": "generation"}
    assert got["rl.run.id"] == {"stringValue": recorded.run.run_id}
    assert len(got) >= 1000


NAMES = ("rewards/format", "a\nb\x00c", "日本", "rl.phase.x y", "x" * 10_000, "broken \ud800", "")


@pytest.mark.parametrize("name", NAMES)
def test_phase_names(clock: FakeClock, name: str) -> None:
    """Any text names a phase; the record stays one readable line and sums up."""
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        with it.phase(name):
            clock.advance(1)
    (record,) = recorded.rollouts
    (row,) = record.attributes.intervals
    assert row[2] == sanitize.text(name)
    assert record.metrics[f"phase.{row[2]}.busy_ns"] == 10**9
    assert record.metrics["time.unattributed_ns"] == 0
    assert recorded.summary.phases[row[2]]["busy_ns"] == 10**9


def test_reasons_and_rollout_ids(clock: FakeClock) -> None:
    """Names of rollouts and reasons may be any text or number; an object's content is not printed."""
    ids = [*NAMES, -5, 2**70, np.int64(9), np.str_("np"), Quoted("quoted")]
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        for rollout_id in ids:
            it.trained(it.consumed(rollout_id, prompt_lengths=[1]))
            it.generated(rollout_id, 1)
        for reason in (*NAMES, ValueError(SECRET), Colour.RED, Tensor()):
            it.discarded(reason, 1)
            with it.update() as update:
                update.skip(reason)
            with it.update() as update:
                update.fail(reason)
    (record,) = recorded.rollouts
    assert record.metrics["samples.consumed"] == record.metrics["samples.visits"] == len(ids)
    assert record.metrics["samples.discarded.<builtins.ValueError>"] == 1
    assert record.metrics["samples.discarded.red"] == 1
    assert record.metrics["samples.discarded.<torch.Tensor>"] == 1
    assert record.metrics["updates.skipped"] == record.metrics["updates.failed"] == 10
    assert SECRET not in repr(recorded.records)


def test_columns_in_any_form(clock: FakeClock) -> None:
    """Python's and numpy's numbers in lists, tuples and arrays are one column; a later write is none."""
    lengths = [3, 2**40, 0, 5]
    mine = np.array(lengths)
    forms: list[Any] = [
        lengths,
        tuple(lengths),
        list(mine),
        mine,
        mine.astype(np.uint64),
        array.array("q", lengths),
        np.repeat(mine, 2)[::2],
    ]
    cut = [True, False, False, True]
    flags: list[Any] = [
        cut,
        tuple(cut),
        [1, 0, 0, 300],
        np.array(cut),
        [*np.array(cut)],
        np.array([2, 0, 0, 1]),
    ]
    with recorded_run(clock=clock) as recorded:
        for number in range(max(len(forms), len(flags))):
            with recorded.run.iteration() as it:
                it.consumed(
                    number,
                    prompt_lengths=forms[number % len(forms)],
                    truncated=flags[number % len(flags)],
                )
                it.consumed(f"none {number}", prompt_lengths=[], truncated=[])
                mine[:] = 7  # the training goes on with its array
            mine[:] = lengths
    for record in recorded.rollouts:
        assert record.attributes.prompt_lengths == lengths
        assert record.attributes.truncated == [0, 3]
        assert record.metrics["tokens.prompt"] == 2**40 + 8
    assert len(recorded.rollouts) == 7


def test_scalars(clock: FakeClock) -> None:
    """NaN and infinity are null and counted by name; what is no number is left out, never read."""
    scalars = {
        "loss": 0.25,
        "np": np.float32(0.5),
        "int": np.int64(4),
        "big": 2**100,
        "monstrous": 10**5000,
        "nan": math.nan,
        "inf": math.inf,
        "np.nan": np.float32("nan"),
        "none": None,
        "tensor": Tensor(),
        "text": SECRET,
        "list": [1.0],
        "rewards/a b": 1.0,
        "broken \ud800": 2.0,
        7: 3.0,
    }
    with recorded_run(clock=clock) as recorded, recorded.run.iteration() as it:
        with it.update():
            clock.advance(1)
        recorded.run.log_scalars(scalars, step=np.int64(3), epoch=math.nan)
    nonfinite = ["monstrous", "nan", "inf", "np.nan"]
    finite = {
        "loss": 0.25, "np": 0.5, "int": 4, "big": 2**100, "rewards/a b": 1.0, "broken ?": 2.0,
        "7": 3.0,
    }  # fmt: skip
    (line,) = recorded.flat
    assert line == {"step": 3, "none": None, **finite, **dict.fromkeys(nonfinite)}
    (train,) = recorded.trains
    assert train.attributes.scalars == {**finite, **dict.fromkeys(nonfinite)}
    assert train.metrics["nonfinite"] == 4
    (record,) = recorded.rollouts
    assert record.attributes.nonfinite == nonfinite
    assert record.metrics["nonfinite"] == recorded.summary.nonfinite == 4


def test_files_are_plain_json(clock: FakeClock, tmp_path: Path) -> None:
    """Every line of every file is JSON to a reader that knows no NaN and no more than UTF-8."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    with recorded_run(tmp_path / "run", clock=clock, config={"a": math.nan}) as recorded:
        with recorded.run.iteration() as it:
            with it.phase("x", attributes={"nan": math.nan, "inf": [math.inf]}), it.update():
                clock.advance(1)
            recorded.run.log_scalars({"nan": math.nan})
    files = [path for path in (tmp_path / "run").rglob("*.json*") if path.is_file()]
    assert len(files) == 6
    for path in files:
        text = path.read_text("utf-8")
        for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
            json.loads(line, parse_constant=refuse)
        assert path.stat().st_mode & 0o077 == 0


def test_texts_of_exceptions_are_never_stored(clock: FakeClock, tmp_path: Path) -> None:
    """An exception leaves the name of its type: its text may hold a prompt."""

    class PromptError(Exception):
        pass

    def readings() -> list:
        raise PromptError(SECRET)

    mine = PromptError(SECRET)
    with pytest.raises(PromptError) as caught:
        with recorded_run(
            tmp_path / "run", clock=clock, readings=readings, strict=False,
            config={"prompt": SECRET}, trainer="loop",
        ) as recorded:  # fmt: skip
            recorded.run.window_secret = SECRET  # type: ignore[attr-defined]
            with recorded.run.iteration() as it, it.phase("generation"), it.phase("reward"):
                it.memory()
                with it.update():
                    clock.advance(1)
                    raise mine
    assert caught.value is mine
    assert mine.__context__ is None
    stored = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert SECRET.encode() not in stored
    assert b"PromptError" in stored
    (record,) = recorded.rollouts
    assert record.attributes.window.status == "aborted"
    assert recorded.summary.status == "failed"
    assert {row[2]: row[6] & 1 for row in record.attributes.intervals if row[2] != "log"} == {
        "generation": 1, "reward": 1, "optimizer": 1
    }  # fmt: skip


def test_config_that_cannot_be_read_is_no_obstacle(clock: FakeClock) -> None:
    """A configuration that can't be encoded has no fingerprint; the run is recorded."""
    circle: dict[str, Any] = {}
    circle["self"] = circle

    class Mute:
        def __str__(self) -> str:
            raise KeyError("no text")

    for config in (circle, {"a": "\ud800"}, {"t": Tensor()}, {1: 1, "a": 2}, {"m": Mute()}):
        with recorded_run(clock=clock, config=config, strict=False) as recorded:
            with recorded.run.iteration():
                clock.advance(1)
        assert len(recorded.rollouts) == 1


def test_base_that_makes_no_sense_is_no_obstacle(clock: FakeClock) -> None:
    """Restored counts that are none are left out and counted; the run is recorded."""
    for base in ({"tokens": "many"}, {"tokens": -1}, [1]):
        with recorded_run(clock=clock, base=base, strict=False) as recorded:
            pass
        assert recorded.summary.base == {}
        assert recorded.summary.observed.errors == {"api.base": 1}


def test_names_of_a_base_that_no_file_can_hold(clock: FakeClock) -> None:
    """They are written as they can be, whenever they become known; the summary is not lost."""
    with recorded_run(clock=clock, base={"\ud800": 1}) as recorded:
        recorded.run.resumed(**{"\udce9 tokens": 2})
    assert recorded.summary.status == "completed"
    assert recorded.summary.base == {"? tokens": 2}


def test_names_of_the_run(clock: FakeClock, tmp_path: Path) -> None:
    """Trainer, role and run id may be any text: they name files and stand in records."""
    with recorded_run(
        tmp_path / "run", clock=clock, trainer="my/loop \ud800", run_id="exp/1 \ud800",
        role="driver/../x", algorithm="日本", base={"optimizer_step": np.int64(3)},
    ) as recorded:  # fmt: skip
        with recorded.run.iteration():
            clock.advance(1)
    assert recorded.summary.run_id == "exp/1 ?"
    assert recorded.summary.trainer.name == "my/loop ?"
    assert recorded.summary.base == {"optimizer_step": 3}
    assert len(recorded.spans) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
