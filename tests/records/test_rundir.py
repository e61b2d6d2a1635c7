from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import subprocess
import sys

import msgspec
import pytest

from otel_grpo.records.model import SCHEMA
from otel_grpo.records.reader import read_run_file
from otel_grpo.records.rundir import RunDirError, nowhere, open_run_dir
from otel_grpo.records.writer import Writer


@pytest.fixture
def make_run(attempt, record):
    """Make one attempt with ``n`` records, from its opening to its release."""

    def make(path, n=2, run_id=None):
        run = open_run_dir(path, run_id)
        run.write_run_file(attempt(run.attempt))
        writer = Writer(run.sinks(msgspec.json.encode), seq=run.seq, prev=run.prev)
        writer.start()
        for _ in range(n):
            writer.put("metrics_raw", record(run.run_id, run.attempt))
            writer.put("metrics", b"{}")
            writer.put("workers", b"{}")
            writer.put("spans", 1)
        assert writer.close()
        assert all(counts.written == n for counts in writer.counts().values())
        run.release()
        return run

    return make


def tree(path):
    """Every file below a directory with its bytes."""
    return {
        str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()
    }


def test_new_directory(tmp_path, make_run):
    """Owner-only, whatever the umask; run.json first; a run id of its own."""
    old = os.umask(0)
    try:
        run = make_run(tmp_path / "deep" / "run")
    finally:
        os.umask(old)
    assert (run.attempt, run.seq, run.prev, run.warning, run.earlier) == (1, 0, None, None, ())
    modes = {one: stat.S_IMODE(one.stat().st_mode) for one in [run.path, *run.path.rglob("*")]}
    assert {mode for one, mode in modes.items() if one.is_dir()} == {0o700}
    assert {mode for one, mode in modes.items() if one.is_file()} == {0o600}
    names = {str(one.relative_to(run.path)) for one in modes if one.is_file()}
    own = f"driver-0-{os.getpid()}.jsonl"
    assert names == {
        ".otel-grpo", "run.json", "metrics_raw.jsonl", "metrics.jsonl", f"spans/{own}",
        f"workers/{own}",
    }  # fmt: skip
    content = json.loads(run.run_file.read_bytes())
    assert (content["schema"], content["run_id"]) == (SCHEMA, run.run_id)


def test_default_directory(tmp_path, monkeypatch):
    """runs/<utc time>-<id> below the working directory, and absolute."""
    monkeypatch.chdir(tmp_path)
    run = open_run_dir(None, "job 1/x")
    run.release()
    assert run.path.parent == tmp_path / "runs"
    assert re.fullmatch(r"\d{8}T\d{6}Z-job_1_x", run.path.name)
    assert run.run_id == "job 1/x"


def test_a_directory_of_the_user_keeps_its_mode(tmp_path, make_run):
    """Only what we make is narrowed; files of others beside ours don't matter."""
    tmp_path.chmod(0o755)
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "trainer_state.json").write_text("{}")
    run = make_run(tmp_path)
    assert (run.path, run.warning) == (tmp_path, None)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize("same_id", [True, False])
def test_next_attempt(tmp_path, make_run, check_chain, same_id):
    """The same directory again is the next attempt, and the chain goes on."""
    first = make_run(tmp_path / "run", 3, "mine")
    second = make_run(tmp_path / "run", 2, "mine" if same_id else None)
    assert (second.path, second.run_id, second.attempt) == (first.path, "mine", 2)
    assert (second.seq, second.warning) == (3, None)
    assert [one.attempt for one in second.earlier] == [1]
    rows = check_chain(second.metrics_raw)
    assert [(row["seq"], row["attempt"]) for row in rows] == [
        (0, 1), (1, 1), (2, 1), (3, 2), (4, 2),
    ]  # fmt: skip
    assert [one.attempt for one in read_run_file(second.path).attempts] == [1, 2]
    assert second.metrics.read_bytes() == b"{}\n" * 5


def test_attempt_that_never_wrote_run_json(tmp_path, make_run):
    """An attempt counts when anything of it was written; one that wrote nothing does not."""
    make_run(tmp_path / "run")
    open_run_dir(tmp_path / "run").release()
    assert make_run(tmp_path / "run").attempt == 2


def test_other_run_id_goes_to_a_sibling(tmp_path, make_run):
    """Nothing of the run that is there is touched, and the requeued job finds its sibling again."""
    make_run(tmp_path / "run", run_id="a")
    before = tree(tmp_path / "run")
    other = make_run(tmp_path / "run", run_id="b")
    assert other.path == tmp_path / "run-2"
    assert other.warning == (
        f"{tmp_path}/run is the directory of run a: this run is recorded in {tmp_path}/run-2"
    )
    again = make_run(tmp_path / "run", run_id="b")
    third = make_run(tmp_path / "run", run_id="c")
    assert (again.path, again.attempt) == (other.path, 2)
    assert (third.path, third.attempt) == (tmp_path / "run-3", 1)
    assert tree(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("run.json", b'{"id": 1}', "holds a run.json that is not ours"),
        ("run.json", b"", "holds a run.json that is not ours"),
        (
            "run.json",
            b'{"schema": "otel-grpo/2", "run_id": "a", "attempts": []}',
            "holds a run.json that is not ours",
        ),
        ("summary.json", b"{}", "holds a summary.json but no run.json of ours"),
        ("metrics_raw.jsonl", b"{}\n", "holds a metrics_raw.jsonl but no run.json of ours"),
        ("spans", b"", "holds a spans that is no directory"),
    ],
)
def test_files_of_another_tool(tmp_path, make_run, name, content, why):
    """A directory that somebody else uses is left as it is."""
    path = tmp_path / "run"
    path.mkdir()
    (path / name).write_bytes(content)
    run = make_run(path)
    assert (run.path, run.attempt) == (tmp_path / "run-2", 1)
    assert run.warning == f"{path} {why}: this run is recorded in {tmp_path}/run-2"
    assert tree(path) == {name: content}


def test_foreign_summary_or_records_in_our_directory(tmp_path, make_run):
    """A summary or records that another tool wrote over ours are not overwritten."""
    make_run(tmp_path / "a")
    (tmp_path / "a" / "summary.json").write_bytes(b"[1]")
    assert make_run(tmp_path / "a").warning.startswith(
        f"{tmp_path}/a holds a summary.json that is not ours"
    )
    assert (tmp_path / "a" / "summary.json").read_bytes() == b"[1]"

    other = make_run(tmp_path / "other")
    make_run(tmp_path / "b")
    (tmp_path / "b" / "metrics_raw.jsonl").write_bytes(other.metrics_raw.read_bytes())
    assert make_run(tmp_path / "b").warning.startswith(
        f"{tmp_path}/b holds a metrics_raw.jsonl that is not ours"
    )


def test_broken_summary_of_ours_does_not_matter(tmp_path, make_run):
    """A power cut may leave an empty summary: it is made again."""
    make_run(tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_bytes(b"")
    assert make_run(tmp_path / "run").attempt == 2


def test_flat_file_of_the_trainer_is_never_touched(tmp_path, attempt):
    """metrics.jsonl of somebody else, there before or made in between: our lines are dropped."""
    for name in ("before", "between"):
        path = tmp_path / name
        path.mkdir()
        if name == "before":
            (path / "metrics.jsonl").write_bytes(b"theirs")
        for number in (1, 2):
            run = open_run_dir(path)
            run.write_run_file(attempt(run.attempt))
            writer = Writer(run.sinks(msgspec.json.encode))
            (path / "metrics.jsonl").write_bytes(b"theirs")
            writer.start()
            writer.put("metrics", b"{}")
            assert writer.close()
            run.release()
            assert (run.path, run.attempt) == (path, number)
            assert (path / "metrics.jsonl").read_bytes() == b"theirs"
            assert writer.counts()["metrics"].reasons == {"not_ours": 1}


@pytest.mark.parametrize("cut", [1, 2, 100, 300])
def test_torn_end(tmp_path, make_run, record, check_chain, cut):
    """A killed attempt's torn line is closed, not counted, not removed; one byte short is whole."""
    path = make_run(tmp_path / "run", 3).metrics_raw
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    kept = 3 if cut == 1 else 2  # only the line end was lost
    second = make_run(tmp_path / "run", 2)
    assert (second.attempt, second.seq) == (2, kept)
    assert second.prev == hashlib.sha256(whole.splitlines()[kept - 1]).hexdigest()
    now = path.read_bytes()
    assert now.startswith(whole[:-cut] + b"\n{")
    rows = check_chain(path, torn=() if cut == 1 else (3,))
    assert [row["seq"] for row in rows] == list(range(kept + 2))


def test_only_torn_lines(tmp_path, make_run):
    """Attempts that were killed in their first line leave nothing to chain to."""
    run = make_run(tmp_path / "run", 1)
    run.metrics_raw.write_bytes(run.metrics_raw.read_bytes()[:50])
    second = make_run(tmp_path / "run", 1)
    assert (second.attempt, second.seq, second.prev) == (2, 0, None)


@pytest.mark.parametrize("size", [10, 65_400, 65_536, 200_000])
def test_tail_is_found_over_long_lines(tmp_path, attempt, record, size):
    """The last whole record is found behind a torn line and blocks of any length."""
    run = open_run_dir(tmp_path / "run")
    run.write_run_file(attempt())
    one = record(run.run_id, scalars={"x" * size: 1})
    one.seq = 41
    line = msgspec.json.encode(one)
    run.metrics_raw.write_bytes(b"{}\n" + line + b"\n" + line[: size // 2])
    run.release()
    second = open_run_dir(tmp_path / "run")
    second.release()
    assert (second.seq, second.prev) == (42, hashlib.sha256(line).hexdigest())


def test_tail_is_read_from_the_end(tmp_path, make_run, monkeypatch):
    """A file of a gigabyte is not read to find its last line."""
    run = make_run(tmp_path / "run", 1)
    line = run.metrics_raw.read_bytes()
    with run.metrics_raw.open("wb") as file:  # sparse: takes no room
        file.seek(1 << 30)
        file.write(b"\n" + line)
    second = open_run_dir(tmp_path / "run")
    second.release()
    assert second.prev == hashlib.sha256(line[:-1]).hexdigest()


def test_directory_in_use(tmp_path, make_run, attempt):
    """A second opening goes to a fresh sibling, never into another run's by chance."""
    first = open_run_dir(tmp_path / "run")
    second = open_run_dir(tmp_path / "run")
    second.write_run_file(attempt())
    second.release()
    third = open_run_dir(tmp_path / "run")
    assert [one.path.name for one in (first, second, third)] == ["run", "run-2", "run-3"]
    assert [one.attempt for one in (first, second, third)] == [1, 1, 1]
    assert len({one.run_id for one in (first, second, third)}) == 3
    assert "in use by another process" in second.warning
    first.release()
    third.release()


def open_at_once(path, count):
    code = (
        "import sys, pathlib; from otel_grpo.records.rundir import open_run_dir\n"
        "if len(sys.argv) > 2:\n"
        "    import fcntl\n"
        "    def flock(*_): raise OSError(38, 'no locks')\n"
        "    fcntl.flock = flock\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "run = open_run_dir(pathlib.Path(sys.argv[1]), 'same')\n"
        "print(run.path.name, run.attempt, flush=True); sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", code, *map(str, path)]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    answers = sorted(child.stdout.readline().split() for child in children)
    for child in children:
        child.communicate("\n", timeout=60)
    return answers


@pytest.mark.parametrize("locks", [True, False])
def test_processes_at_once(tmp_path, locks):
    """Of processes that open one directory at the same time each gets an attempt of its own."""
    path = [tmp_path / "run"] if locks else [tmp_path / "run", "no locks"]
    assert open_at_once(path, 4) == [["run", "1"], ["run-2", "1"], ["run-3", "1"], ["run-4", "1"]]


def test_no_locks_on_this_file_system(tmp_path, make_run, monkeypatch):
    """Where nothing can be locked, attempts still follow each other."""

    def flock(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert [make_run(tmp_path / "run").attempt for _ in range(3)] == [1, 2, 3]


def test_drafts_of_a_killed_process_are_removed(tmp_path, make_run):
    """What a kill in the middle of a rewrite leaves is cleared away at the next attempt."""
    make_run(tmp_path / "run")
    draft = tmp_path / "run" / ".summary.json.1-2.tmp"
    draft.write_bytes(b"half")
    make_run(tmp_path / "run")
    assert not draft.exists()


@pytest.mark.parametrize("below", ["a file", "/proc"])
def test_no_directory_can_be_made(tmp_path, below):
    """A typed error with the place and the reason; the sinks then only count."""
    if below == "a file":
        (tmp_path / below).write_bytes(b"")
        path = tmp_path / below / "run"
    else:
        path = type(tmp_path)("/proc/run")
    with pytest.raises(RunDirError) as caught:
        open_run_dir(path)
    assert caught.value.filename == str(path)
    assert caught.value.errno in (errno.EEXIST, errno.ENOENT)
    assert "cannot make a run directory" in caught.value.strerror
    assert [(sink.name, sink.lost) for sink in nowhere("ENOTDIR")] == [
        (name, "ENOTDIR") for name in ("metrics_raw", "metrics", "workers", "spans")
    ]


def test_directory_not_writable(tmp_path, run_child):
    """No right to write is such an error, with the reason in words."""
    tmp_path.chmod(0o500)
    number, text = run_child(
        """
        from otel_grpo.records.rundir import RunDirError
        if os.getuid() == 0:  # who may write anywhere
            os.setuid(65534)
        try:
            open_run_dir(Path(sys.argv[1]))
        except RunDirError as error:
            print(json.dumps([error.errno, error.strerror]))
        """,
        tmp_path / "run",
    )
    assert number == errno.EACCES
    assert text == "cannot make a run directory: Permission denied (EACCES)"
