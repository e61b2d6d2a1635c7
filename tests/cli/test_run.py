"""`run` takes itself out of the way: the command is what the caller sees."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import otel_grpo

HOOKS = str(Path(otel_grpo.__file__).parent / "instrumentation" / "auto")
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getpid()]))"


@pytest.mark.parametrize("status", [0, 1, 2, 3, 127, 255])
def test_the_exit_status_of_the_command_is_the_exit_status(child: Any, status: int) -> None:
    result = child("run", "--", sys.executable, "-c", f"raise SystemExit({status})")
    assert result.returncode == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_command_that_dies_of_a_signal_dies_of_that_signal(child: Any, number: int) -> None:
    """The caller sees the signal itself, not a status that stands for it."""
    result = child("run", "--", sys.executable, "-c", f"import os; os.kill(os.getpid(), {number})")
    assert result.returncode == -number


def test_a_signal_to_the_command_line_reaches_the_command() -> None:
    """There is no process in between: a scheduler's SIGTERM is the training's."""
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "time.sleep(30)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "otel_grpo.cli", "run", "--", sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(otel_grpo.__file__).parents[1],
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 7


def test_arguments_environment_and_streams_are_the_command_s(child: Any) -> None:
    """Its own `--json`, `--help` and `--` reach it; standard input too."""
    arguments = ["--json", "--help", "--", "a b", "*"]
    result = child("run", sys.executable, "-c", SHOW, *arguments, env={"MINE": "x"})
    argv, environment, _ = json.loads(result.stdout)
    assert argv == arguments
    assert environment["MINE"] == "x"
    echo = "import sys; sys.stdout.write(sys.stdin.read()); sys.stderr.write('err')"
    result = child("run", "--", sys.executable, "-c", echo, input="in")
    assert (result.stdout, result.stderr) == ("in", "err")


def test_the_run_is_named_in_the_environment(child: Any, tmp_path: Path) -> None:
    """Absolute, because a training may change its directory before its run starts."""
    result = child(
        "run", "--run-dir", "here", "--run-id", "abc", "--", sys.executable, "-c", SHOW,
        cwd=tmp_path,
    )  # fmt: skip
    _, environment, _ = json.loads(result.stdout)
    assert environment["OTEL_GRPO_RUN_DIR"] == str(tmp_path / "here")
    assert environment["OTEL_GRPO_RUN_ID"] == "abc"
    assert not (tmp_path / "here").exists()


def test_what_is_not_asked_for_is_not_set(child: Any) -> None:
    """Each training of a sweep gets a directory of its own; what the user set stays."""
    result = child("run", "--", sys.executable, "-c", SHOW)
    _, environment, _ = json.loads(result.stdout)
    assert "OTEL_GRPO_RUN_DIR" not in environment
    assert "OTEL_GRPO_RUN_ID" not in environment
    result = child("run", sys.executable, "-c", SHOW, env={"OTEL_GRPO_RUN_DIR": "mine"})
    assert json.loads(result.stdout)[1]["OTEL_GRPO_RUN_DIR"] == "mine"


def test_an_endpoint_is_the_standard_variable(child: Any) -> None:
    """Unless the user has set it: then his counts, and one line says so."""
    variable = "OTEL_EXPORTER_OTLP_ENDPOINT"
    arguments = ("run", "--otlp", "http://[::1]:4318", "--", sys.executable, "-c", SHOW)
    _, environment, _ = json.loads(child(*arguments, env={variable: ""}).stdout)
    assert environment[variable] == "http://[::1]:4318"
    theirs = child(*arguments, env={variable: "https://theirs"})
    assert json.loads(theirs.stdout)[1][variable] == "https://theirs"
    assert theirs.stderr == (
        f"otel-grpo run: {variable} is set and counts; --otlp http://[::1]:4318 does not\n"
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:4318", "is no URL of http or https"),
        ("", "is no URL of http or https"),
        ("grpc://localhost:4317", "is no URL of http or https"),
        ("http://", "is no URL of http or https"),
        ("http://host:port", "is no URL (Port"),
        ("http://host:0", "names port 0"),
        ("http://[::1", "is no URL (Invalid IPv6"),
        ("http://host/a b", "is no URL of http or https"),
        ("http://host:4318/v1/traces", "leave /v1/traces out"),
        ("http://host:4318/otlp/v1/metrics/", "leave /v1/metrics out"),
        ("http://host/?token=1", "has a query"),
        ("http://me:secret@host", "OTEL_EXPORTER_OTLP_HEADERS takes tokens"),
    ],
)
def test_what_is_no_endpoint_is_said_in_one_line(url: str, said: str, call: Any) -> None:
    """Before the command is started, and without a password."""
    result = call("run", "--otlp", url, "--", "/bin/false")
    assert result.exit_code == 2
    assert result.stderr.startswith("otel-grpo: --otlp: ")
    assert said in result.stderr
    assert "secret" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_hooks_come_first_on_the_path_and_once(child: Any) -> None:
    """Also where `run` is called below `run`; what the user has on the path stays in its order."""
    before = os.pathsep.join(["/a", HOOKS, "/b", str(Path(otel_grpo.__file__).parents[1])])
    result = child("run", sys.executable, "-c", SHOW, env={"PYTHONPATH": before})
    entries = json.loads(result.stdout)[1]["PYTHONPATH"].split(os.pathsep)
    assert entries[:3] == [HOOKS, "/a", "/b"]
    assert entries.count(HOOKS) == 1


def test_each_start_has_an_id_of_its_own(child: Any) -> None:
    """Two starts draw two ids, which say that they were drawn; a given one stays."""
    ids = set()
    for _ in range(2):
        result = child("run", sys.executable, "-c", SHOW, env={"RANK": ""})
        ids.add(json.loads(result.stdout)[1]["OTEL_GRPO_LAUNCH"])
    assert len(ids) == 2
    assert all(re.fullmatch("drawn-[0-9a-f]{16}", each) for each in ids)
    result = child("run", sys.executable, "-c", SHOW, env={"OTEL_GRPO_LAUNCH": "mine"})
    assert json.loads(result.stdout)[1]["OTEL_GRPO_LAUNCH"] == "mine"


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID"])
def test_one_start_for_each_rank_draws_no_id(child: Any, name: str) -> None:
    """`srun otel-grpo run`: an id of each would tell the ranks of one job apart."""
    result = child("run", sys.executable, "-c", SHOW, env={name: "0"})
    assert "OTEL_GRPO_LAUNCH" not in json.loads(result.stdout)[1]


def test_the_command_finds_the_package_from_anywhere(child: Any, tmp_path: Path) -> None:
    """A grandchild too: a launcher starts the processes that train."""
    script = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import otel_grpo; print(otel_grpo.__file__)'])\n"
    )
    result = child("run", sys.executable, "-c", script, cwd=tmp_path)
    assert result.stdout.strip() == otel_grpo.__file__
    assert result.stderr == ""


def test_a_sitecustomize_of_the_user_still_runs(child: Any, tmp_path: Path) -> None:
    """Ours is found first and hands on to the next."""
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 'ran'\n")
    path = os.pathsep.join([str(tmp_path), str(Path(otel_grpo.__file__).parents[1])])
    script = "import sitecustomize; print(mine, sitecustomize.__file__)"
    result = child("run", sys.executable, "-c", script, env={"PYTHONPATH": path})
    assert result.stdout == f"ran {tmp_path / 'sitecustomize.py'}\n"


def test_a_command_that_trains_nothing_leaves_no_trace(child: Any, tmp_path: Path) -> None:
    """No directory, no file, nothing imported that it would not import itself."""
    script = "import sys; print([m for m in sys.modules if m.startswith(('otel_grpo', 'opentel'))])"
    result = child("run", sys.executable, "-c", script, cwd=tmp_path)
    assert (result.stdout, result.stderr) == ("[]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_not_found_is_said_in_one_line(child: Any) -> None:
    """127, as from a shell, so that scripts go on to work with `run` before the command."""
    result = child("run", "--", "no-such-command", "--json")
    assert result.returncode == 127
    assert result.stdout == ""
    assert result.stderr == (
        "otel-grpo run: no-such-command: command not found; check its name and PATH\n"
    )


def test_a_file_that_is_not_executable_is_said_in_one_line(child: Any, tmp_path: Path) -> None:
    """126, as from a shell; a directory is answered the same."""
    (tmp_path / "train.py").write_text("")
    for name in ("train.py", ""):
        result = child("run", "--", tmp_path / name)
        assert result.returncode == 126
        assert result.stderr.count("\n") == 1
        assert "not executable; start it by its interpreter" in result.stderr


def test_no_command_is_wrong_usage(child: Any) -> None:
    for arguments in (["run"], ["run", "--"], ["run", "--run-dir", "x"]):
        result = child(*arguments)
        assert result.returncode == 2
        assert result.stderr == (
            "otel-grpo run: Missing argument '-- CMD...'. (see `otel-grpo run --help`)\n"
        )


def test_run_adds_little_to_the_start_of_a_training() -> None:
    """Neither the SDK nor rich nor msgspec is loaded to start a command."""
    script = (
        "import os, sys\n"
        "def heavy(*_):\n"
        "    names = {'rich', 'msgspec', 'numpy', 'opentelemetry.sdk', 'torch', 'psutil'}\n"
        "    os.write(1, repr(sorted(names & set(sys.modules))).encode())\n"
        "    os._exit(0)\n"
        "os.execvpe = heavy\n"
        "from otel_grpo.cli import main\n"
        "main(['run', '--', 'true'])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(otel_grpo.__file__).parents[1],
    )
    assert result.stdout == "[]"
