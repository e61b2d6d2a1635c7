from __future__ import annotations

import msgspec
import pytest

from otel_grpo.records.model import SCHEMA, PublicationCompleted, RunFile, WindowOpened
from otel_grpo.records.reader import (
    BadInput,
    BadLine,
    Line,
    Torn,
    Whole,
    read_lines,
    read_records,
    read_run_file,
    read_summary,
    read_workers,
)


@pytest.fixture
def run_dir(tmp_path, attempt):
    """A run directory with a run.json and no records yet."""
    run = RunFile(SCHEMA, "run", [attempt(1), attempt(2)])
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    return tmp_path


@pytest.fixture
def line(record):
    """A maker of record lines with their line end."""

    def make(attempt=1, seq=0, **changes):
        one = record(attempt=attempt)
        one.seq = seq
        row = {**msgspec.to_builtins(one), **changes}
        return msgspec.json.encode(row) + b"\n"

    return make


def read(run_dir, content):
    """The records of a file with this content: seq for a whole line, minus its number if torn."""
    (run_dir / "metrics_raw.jsonl").write_bytes(content)
    return [
        -one.line.number if isinstance(one, Torn) else one.value.seq
        for one in read_records(run_dir)
    ]


def complaint(run_dir, content):
    """The number and text of the bad line."""
    with pytest.raises(BadLine) as caught:
        read(run_dir, content)
    error = caught.value
    assert str(error) == f"{run_dir / 'metrics_raw.jsonl'}:{error.number}: {error.why}"
    return error.number, error.why


def test_lines_have_numbers_and_offsets(tmp_path):
    """Bytes as they are, without the line end."""
    path = tmp_path / "a"
    path.write_bytes(b"ab\n\ncd")
    assert list(read_lines(path)) == [
        Line(1, b"ab", 0, True),
        Line(2, b"", 3, True),
        Line(3, b"cd", 4, False),
    ]


def test_records_are_typed_and_unknown_fields_accepted(run_dir, line):
    """Each line is a struct; what a later release adds is skipped."""
    raw = line(seq=0) + line(seq=1, new_field={"a": [1]})
    assert read(run_dir, raw) == [0, 1]
    first, second = read_records(run_dir / "metrics_raw.jsonl")
    assert isinstance(first, Whole)
    assert first.value.attributes.status == "applied"
    assert second.line == Line(2, raw.splitlines()[1], len(line(seq=0)), True)


def test_torn_line_at_the_end(run_dir, line):
    """Every beginning of a line at the end is set apart; a whole one without line end is whole."""
    last = line(seq=1)
    for cut in range(1, len(last) - 1, 7):
        assert read(run_dir, line(seq=0) + last[:cut]) == [0, -2]
        assert read(run_dir, line(seq=0) + last[:cut] + b"\n") == [0, -2]
    assert read(run_dir, line(seq=0) + last[:-1]) == [0, 1]
    assert read(run_dir, line(seq=0) + last[:9] + b"\0\0\0") == [0, -2]
    assert read(run_dir, last[:9]) == [-1]


def test_torn_anywhere(run_dir, line):
    """A cut inside a number, a character, an escape or a word is a torn line as well."""
    rich = {"a": -1.5e-300, "b": [True, False, None, -3, 1e22, 0.25], "é\n": "日\\😀"}
    raw = msgspec.json.encode({"x": rich}).replace("日".encode(), b"\\u65e5") + b"\n"
    for cut in range(1, len(raw) - 1):
        assert read(run_dir, line(1, 0) + raw[:cut] + b"\n" + line(2, 1)) == [0, -2, 1], raw[:cut]


def test_torn_lines_before_a_new_attempt(run_dir, line):
    """One or more torn lines may stand right before a new attempt."""
    torn = line()[:30] + b"\n"
    assert read(run_dir, line(1, 0) + torn + line(2, 1)) == [0, -2, 1]
    assert read(run_dir, torn + torn + line(3, 0) + torn + line(4, 1)) == [-1, -2, 0, -4, 1]


def test_cut_line_in_the_middle(run_dir, line):
    """Inside an attempt a cut line is no accident of its process."""
    number, why = complaint(run_dir, line(1, 0) + line()[:30] + b"\n" + line(1, 1))
    assert number == 2
    assert "cut off in the middle of an attempt" in why


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        (b"garbage", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"", "is blank"),
        (b"[1]", "is not a record of otel-grpo/1"),
        (b"{}", "is not a record of otel-grpo/1"),
        (b'{"schema":"otel-grpo/9","kind":"rollout"}', "has schema otel-grpo/9, but this version"),
        (b'{"schema":"other","kind":"rollout"}', "was written by another tool"),
        (b'{"x":' + b"[" * 100_000, "is not JSON"),
    ],
)
@pytest.mark.parametrize("place", ["first", "middle", "last", "before an attempt"])
def test_bad_line(run_dir, line, garbage, why, place):
    """Any other bad line is named with its number and the reason, wherever it stands."""
    content, number = {
        "first": (garbage + b"\n" + line(1, 0), 1),
        "middle": (line(1, 0) + garbage + b"\n" + line(1, 1), 2),
        "last": (line(1, 0) + garbage + b"\n", 2),
        "before an attempt": (line(1, 0) + garbage + b"\n" + line(2, 1), 2),
    }[place]
    found, text = complaint(run_dir, content)
    assert found == number
    assert text.startswith(why)


def test_other_schema_in_a_whole_record(run_dir, line):
    """A record of a later version that happens to decode is refused all the same."""
    assert complaint(run_dir, line(schema="otel-grpo/2")) == (
        1,
        "has schema otel-grpo/2, but this version reads otel-grpo/1: use the release that wrote it",
    )


def test_wrong_type_is_named_with_its_path(run_dir, line):
    """The sentence says which field is wrong."""
    number, why = complaint(run_dir, line(seq="one"))
    assert number == 1
    assert "$.seq" in why


def test_nothing_to_read(tmp_path, run_dir):
    """An empty file, a missing one and a directory of another tool are told apart."""
    with pytest.raises(BadInput, match=r"metrics_raw\.jsonl: does not exist"):
        read_records(run_dir)
    (run_dir / "metrics_raw.jsonl").write_bytes(b"")
    with pytest.raises(BadInput, match=r"metrics_raw\.jsonl: is empty"):
        read_records(run_dir)
    (tmp_path / "other").mkdir()
    with pytest.raises(BadInput, match=r"is not a run directory of otel-grpo: it has no run\.json"):
        read_summary(tmp_path / "other")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"{", "is not a JSON object"),
        (b"[]", "is not a JSON object"),
        (b"{}", "was written by another tool: its schema is None"),
        (b'{"schema": 1}', "was written by another tool: its schema is 1"),
        (b'{"schema": "otel-grpo/3"}', "has schema otel-grpo/3, but this version reads"),
        (b'{"schema": "otel-grpo/1", "run_id": 5}', "is not what otel-grpo/1 says .*run_id"),
        (b'{"x": ' + b"[" * 100_000, "is not a JSON object"),
    ],
)
def test_bad_documents(tmp_path, content, why):
    """run.json and summary.json say what is wrong with them."""
    for name, read_it in (("run.json", read_run_file), ("summary.json", read_summary)):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadInput, match=f"{name}: {why}"):
            read_it(path)


def test_run_file(run_dir):
    """From the directory or from the file itself."""
    assert read_run_file(run_dir) == read_run_file(run_dir / "run.json")
    assert [one.attempt for one in read_run_file(run_dir).attempts] == [1, 2]


def test_workers(run_dir):
    """All files of workers/ by name, torn ends apart; none is no error."""
    assert list(read_workers(run_dir)) == []
    folder = run_dir / "workers"
    folder.mkdir()
    opened, completed = WindowOpened("run", 1, 1, 5), PublicationCompleted("run", 1, 1, 2, 9)
    (folder / "driver-0-2.jsonl").write_bytes(msgspec.json.encode(completed) + b"\n{")
    (folder / "driver-0-1.jsonl").write_bytes(msgspec.json.encode(opened) + b"\n")
    found = list(read_workers(run_dir))
    assert [path.name for path, _ in found] == ["driver-0-1.jsonl"] + ["driver-0-2.jsonl"] * 2
    assert [one.value for _, one in found[:2]] == [opened, completed]
    assert isinstance(found[2][1], Torn)
