"""Bad input and bad usage: one line, the right exit status, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

GARBAGE = b"\xff\xfe not json\n"
COMMANDS = ("show", "audit", "finish")


def spoil(path: Path, name: str, line: int, content: bytes) -> None:
    """Puts `content` in the place of a line of a file."""
    lines = (path / name).read_bytes().splitlines(keepends=True)
    lines[line - 1] = content
    (path / name).write_bytes(b"".join(lines))


def is_clear(result: Any, *words: str) -> None:
    """Exit status 2; one line on standard error, with these words and no traceback."""
    assert result.exit_code == 2
    said = result.stderr or result.stdout
    assert "Traceback" not in said
    for word in words:
        assert word in said
    if result.stderr:
        assert result.stderr.startswith("otel-grpo: ")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory_that_is_not_there(call: Any, tmp_path: Path, command: str) -> None:
    is_clear(call(command, tmp_path / "nothing"), str(tmp_path / "nothing"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory_of_another_tool(call: Any, tmp_path: Path, command: str) -> None:
    """It has files of the same kind, but not ours: nothing is added to it."""
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    is_clear(call(command, tmp_path), str(tmp_path), "run")
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_in_the_place_of_the_directory(call: Any, reference: Any, command: str) -> None:
    path = reference.write() / "metrics_raw.jsonl"
    is_clear(call(command, path), str(path), "directory")


def test_a_line_of_garbage_is_named(call: Any, reference: Any) -> None:
    """In the middle: `audit` sees more in it, a line that was changed after it was written."""
    path = reference.write()
    spoil(path, "metrics_raw.jsonl", 3, GARBAGE)
    is_clear(call("show", path), "metrics_raw.jsonl:3")
    assert "metrics_raw.jsonl:3" in call("audit", path).stdout


@pytest.mark.parametrize("command", ["show", "audit"])
def test_garbage_after_the_last_line_is_named(call: Any, reference: Any, command: str) -> None:
    reference.torn = GARBAGE
    is_clear(call(command, reference.write()), "metrics_raw.jsonl:8")


@pytest.mark.parametrize("command", ["show", "audit"])
def test_a_line_of_another_schema_version_is_named(call: Any, reference: Any, command: str) -> None:
    reference.records[-1].schema = "otel-grpo/9"
    is_clear(call(command, reference.write()), "metrics_raw.jsonl:7", "otel-grpo/9")


@pytest.mark.parametrize("command", ["show", "audit"])
@pytest.mark.parametrize("name", ["run.json", "summary.json", "metrics_raw.jsonl"])
def test_an_empty_file_is_named(call: Any, reference: Any, command: str, name: str) -> None:
    path = reference.write()
    (path / name).write_bytes(b"")
    is_clear(call(command, path), name)


@pytest.mark.parametrize("command", ["show", "audit"])
@pytest.mark.parametrize("name", ["run.json", "summary.json"])
@pytest.mark.parametrize("content", [GARBAGE, b"[]", b'{"schema": "otel-grpo/9"}', b'{"a": 1}'])
def test_a_document_that_is_not_ours_is_named(
    call: Any, reference: Any, command: str, name: str, content: bytes
) -> None:
    path = reference.write()
    (path / name).write_bytes(content)
    is_clear(call(command, path), name)


def test_a_torn_last_line_is_no_fault_of_the_input(call: Any, killed: Any) -> None:
    """A killed process leaves one: it is set apart, and `show` shows the rest."""
    assert call("show", killed.write()).exit_code == 0


def test_a_line_that_is_torn_in_the_middle_is_named(call: Any, reference: Any) -> None:
    path = reference.write()
    spoil(path, "metrics_raw.jsonl", 4, b'{"schema":"otel-gr\n')
    is_clear(call("show", path), "metrics_raw.jsonl:4", "cut off")


def test_an_unreadable_file_is_named(call: Any, reference: Any) -> None:
    """A directory in its place: no user may read that, not even root."""
    path = reference.write()
    (path / "summary.json").unlink()
    (path / "summary.json").mkdir()
    is_clear(call("show", path), "summary.json", "cannot be read")


@pytest.mark.parametrize("command", ["show", "finish"])
def test_with_json_an_error_is_json_too(call: Any, tmp_path: Path, command: str) -> None:
    """On standard output, where a script reads."""
    result = call(command, tmp_path, "--json")
    assert result.exit_code == 2
    assert result.stderr == ""
    error = json.loads(result.stdout)["error"]
    assert set(error) == {"what", "where", "mend"}
    assert error["where"] == str(tmp_path)


def test_with_json_wrong_usage_is_json_too(call: Any) -> None:
    result = call("show", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == {"error": {"what": "Missing argument 'RUN_DIR'."}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "otel-grpo: No such command 'nothing'. (see `otel-grpo --help`)\n"),
        (["show", "a", "b"], "otel-grpo show: Got unexpected extra argument (b)"),
        (["show", "--nothing", "a"], "otel-grpo show: No such option"),
        (["audit"], "otel-grpo audit: Missing argument 'RUN_DIR...'."),
        (["audit", "--min-coverage", "7", "a"], "otel-grpo audit: Invalid value for"),
    ],
)
def test_wrong_usage_is_one_line(call: Any, arguments: list[str], said: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


def test_help_and_version(call: Any) -> None:
    from otel_grpo import __version__

    assert call("--version").stdout == f"otel-grpo {__version__}\n"
    result = call("--help")
    assert result.exit_code == 0
    for command in ("run", *COMMANDS):
        assert f"\n  {command} " in result.stdout
        assert call(command, "--help").exit_code == 0
    assert call().exit_code == 2


def test_hostile_names_in_a_message_are_escaped(call: Any, tmp_path: Path) -> None:
    result = call("show", tmp_path / "a\x1b[31m\nb")
    assert result.stderr.count("\n") == 1
    assert "a\\x1b[31m\\nb" in result.stderr


def test_a_fault_of_ours_is_one_line_too(
    call: Any, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a traceback only where that is asked for."""
    path = reference.write()

    def fail(_: Path) -> None:
        raise RuntimeError("a\nb")

    monkeypatch.delenv("OTEL_GRPO_STRICT", raising=False)
    monkeypatch.setattr("otel_grpo.cli.load.load", fail)
    result = call("show", path)
    is_clear(result, "a fault of otel-grpo itself", "RuntimeError: a\\nb", "OTEL_GRPO_STRICT")
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    assert isinstance(call("show", path).exception, RuntimeError)


def test_a_reader_that_goes_away_is_no_fault(reference: Any) -> None:
    """`otel-grpo show RUN | head -0`: silent, and not exit status 1, which is a finding."""
    path = reference.write()
    read, write = os.pipe()
    os.close(read)
    for arguments in (["show", str(path)], ["show", str(path), "--json"], ["audit", str(path)]):
        result = subprocess.run(
            [sys.executable, "-m", "otel_grpo.cli", *arguments],
            check=False,
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert (result.returncode, result.stderr) == (141, b"")
    os.close(write)


def test_a_terminal_without_the_letters_shows_them_escaped(reference: Any) -> None:
    """The rest of the page is as it would be."""
    name = "\u00e9t\u00e9"
    trainer = msgspec.structs.replace(reference.run_file.attempts[0].trainer, name=name)
    attempt = msgspec.structs.replace(reference.run_file.attempts[0], trainer=trainer)
    reference.run_file = msgspec.structs.replace(reference.run_file, attempts=[attempt])
    reference.change(trainer=trainer)
    done = subprocess.run(
        [sys.executable, "-m", "otel_grpo.cli", "show", str(reference.write())],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"\\xe9t\\xe9" in done.stdout
    assert b"Throughput" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_behind_the_output_is_said(reference: Any) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "otel_grpo.cli", "show", str(reference.write())],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "otel-grpo: standard output: No space left on device\n"


def test_ctrl_c_is_no_traceback(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("otel_grpo.cli.load.load", interrupt)
    assert call("show", ".").exit_code == 130
