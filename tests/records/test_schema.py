from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest

import otel_grpo
from otel_grpo.records import schema
from otel_grpo.records.model import (
    SCHEMA,
    Observed,
    PublicationCompleted,
    Ranks,
    RolloutAttributes,
    RolloutRecord,
    RunFile,
    Update,
    Window,
    WindowOpened,
)

DOCUMENTS = {"RunFile": "run.json", "Summary": "summary.json"}


@pytest.fixture(scope="module")
def shipped():
    """The schema as it is shipped."""
    content = json.loads(schema.PATH.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(content)
    return content


def errors(shipped, name, line):
    """What is wrong with a line, as a file of that name."""
    of_file = {**shipped, "$ref": f"#/$defs/{name}"}
    del of_file["anyOf"]
    validator = jsonschema.Draft202012Validator(of_file)
    return [error.message for error in validator.iter_errors(json.loads(line))]


@pytest.fixture
def rollout():
    """A rollout record with a row of everything that is a tuple."""
    return RolloutRecord(
        scope="iteration", run_id="run", attempt=1, seq=0, prev=None, time_unix_ns=1,
        stage="generation", iteration=1, optimizer_step=0,
        metrics={"time.wall_ns": 10, "throughput.device": float("nan")},
        attributes=RolloutAttributes(
            window=Window(0, 10, "complete", 1),
            intervals=[("a", None, "generation", 0, None, 1, 2)],
            segments=[(["generation"], 10)],
            ranks=Ranks(1, 1),
            samples=[("r", 0, 8), (5, 0, 8)],
            discarded=[("stale", 1, None)],
            updates=[Update(1, 0, 5, 8, None, "applied")],
        ),
        observed=Observed(),
    )  # fmt: skip


def test_shipped_schema_is_generated(capsys, monkeypatch, tmp_path):
    """The file is what the structs say; --check tells when it is not, and writing mends it."""
    assert schema.main(["--check"]) == 0
    old = tmp_path / "schema" / "old.json"
    monkeypatch.setattr(schema, "PATH", old)
    assert schema.main(["--check"]) == 1
    assert capsys.readouterr().err == (
        f"{old} is out of date: run python -m otel_grpo.records.schema\n"
    )
    assert schema.main([]) == 0
    assert schema.main(["--check"]) == 0
    assert schema.main(["--chek"]) == 2


def test_real_lines_are_valid(shipped, rollout, record, attempt):
    """Lines of every kind that are at hand here pass."""
    lines = [
        ("Record", rollout),
        ("Record", record(scalars={"loss": float("inf"), "kl": 0.5})),
        ("WorkerLine", WindowOpened("run", 1, 1, 0)),
        ("WorkerLine", PublicationCompleted("run", 1, 1, 2, 9)),
        ("RunFile", RunFile(SCHEMA, "run", [attempt()])),
    ]
    for name, one in lines:
        line = msgspec.json.encode(one)
        assert errors(shipped, name, line) == []
        assert jsonschema.Draft202012Validator(shipped).is_valid(json.loads(line))


def test_files_of_a_real_run_are_valid(shipped, tmp_path):
    """Every line of every file of a run of two attempts passes."""
    for _ in range(2):
        with otel_grpo.start_run(tmp_path / "run", trainer="loop") as run:
            with run.iteration() as it:
                with it.phase("generation"):
                    pass
                samples = it.consumed("r", prompt_lengths=[3, 4], completion_lengths=[5, 6])
                it.trained(samples)
                with it.update(samples=samples):
                    pass
                it.publication(1)
            run.log_scalars({"loss": float("nan")})
    path = tmp_path / "run"
    lines = [("Record", one) for one in (path / "metrics_raw.jsonl").read_bytes().splitlines()]
    for file in (path / "workers").iterdir():
        lines += [("WorkerLine", one) for one in file.read_bytes().splitlines()]
    lines += [(n, (path / f).read_bytes()) for n, f in DOCUMENTS.items()]
    assert {json.loads(line)["kind"] for name, line in lines if name == "Record"} == {
        "train", "rollout", "run",
    }  # fmt: skip
    assert [(name, errors(shipped, name, line)) for name, line in lines] == [
        (name, []) for name, _ in lines
    ]


def test_unknown_fields_are_valid(shipped, rollout):
    """A reader of version 1 accepts what a later release adds."""
    row = {**msgspec.to_builtins(rollout), "later": 1}
    assert errors(shipped, "Record", msgspec.json.encode(row)) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("schema", "otel-grpo/2"), ("schema", None), ("seq", "0"), ("kind", "epoch"), ("metrics", [])],
)
def test_wrong_lines_are_not_valid(shipped, rollout, field, value):
    """A wrong schema, kind or type is found, and so is a missing schema."""
    row = msgspec.to_builtins(rollout)
    if value is None:
        del row[field]
    else:
        row[field] = value
    assert errors(shipped, "Record", msgspec.json.encode(row)) != []
