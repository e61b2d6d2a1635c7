"""Trainings that end before their time: what reaches the user, and what is in the files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import audited, trainer

ROOT = Path(__file__).parents[2]


class UserError(Exception):
    """Nobody else's."""


def fails_in_reward(error):
    import tiny

    calls = []

    def reward(completions, answer, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise error
        return tiny.right_or_digits(completions, answer)

    return {"reward": [reward]}


def fails_in_async_reward(error):
    import tiny

    calls = []

    async def reward(completions, answer, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise error
        return tiny.right_or_digits(completions, answer)

    return {"reward": [reward]}


def fails_in_model(error):
    import tiny
    import torch

    def build(words):
        model, calls = tiny.model(words), []

        def failing(*_):
            if torch.is_grad_enabled():  # not a generation
                calls.append(1)
                if len(calls) == 2:
                    raise error

        model.model.register_forward_pre_hook(failing)
        return model

    return {"model": build}


def fails_in_callback(event):
    def options(error):
        from transformers import TrainerCallback

        def fail(self, args, state, control, **kwargs):
            # The step counts itself after `on_optimizer_step`.
            if state.global_step == (1 if "optimizer" in event else 2):
                raise error

        return {"callbacks": [type("Failing", (TrainerCallback,), {event: fail})()]}

    return options


CASES = {
    # where -> how, status of the second window's update
    "reward": (fails_in_reward, None),
    "async reward": (fails_in_async_reward, None),
    "model": (fails_in_model, None),
    "before the optimizer's step": (fails_in_callback("on_pre_optimizer_step"), "failed"),
    "after the optimizer's step": (fails_in_callback("on_optimizer_step"), "applied"),
    "log": (fails_in_callback("on_log"), "applied"),
    "end of the step": (fails_in_callback("on_step_end"), "applied"),
}


# In a task of the trainer's event loop a KeyboardInterrupt ends that loop, not the training.
PAIRS = [
    pytest.param(options, update, error, id=f"{where}, {type(error).__name__}")
    for where, (options, update) in CASES.items()
    for error in (UserError("of the user"), KeyboardInterrupt())
    if isinstance(error, UserError) or options is not fails_in_async_reward
]


@pytest.mark.parametrize(("options", "update", "error"), PAIRS)
def test_exceptions_pass_unchanged(observed, tmp_path, options, update, error):
    """The same object reaches the user; the second window is aborted, the first is whole."""
    with pytest.raises(type(error)) as raised:
        trainer(tmp_path, max_steps=3, **options(error)).train()
    assert raised.value is error
    assert error.__context__ is None
    assert not any("otel_grpo" in str(frame.path) for frame in raised.traceback[-1:])
    files = audited(observed)
    assert [w["attributes"]["window"]["status"] for w in files.of("rollout")] == [
        "complete",
        "aborted",
    ]
    aborted = files.of("rollout")[1]["attributes"]
    updates = [u["status"] for u in aborted.get("updates", [])]
    assert all(u["end_ns"] <= aborted["window"]["end_ns"] for u in aborted.get("updates", []))
    assert updates == ([] if update is None else [update])
    if update == "failed":
        assert files.of("train")[1]["attributes"]["reason"] == type(error).__name__
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    assert files.summary["status"] == status
    assert files.summary["windows"] == {"complete": 1, "partial": 0, "aborted": 1}
    assert files.summary["records"]["run"] == 1


def test_a_loop_that_starts_over_is_a_new_beginning(observed, tmp_path, trl):
    """As after running out of memory: the window that broke off is aborted, the run goes on."""

    class Again(trl.GRPOTrainer):
        def _inner_training_loop(self, *args, **kwargs):
            try:
                return super()._inner_training_loop(*args, **kwargs)
            except UserError:
                return super()._inner_training_loop(*args, **kwargs)

    options = fails_in_reward(UserError("of the user"))
    trainer(tmp_path, max_steps=2, kind=Again, **options).train()
    files = audited(observed)
    statuses = [w["attributes"]["window"]["status"] for w in files.of("rollout")]
    assert statuses == ["complete", "aborted", "complete", "complete"]
    assert files.summary["status"] == "completed"
    assert files.summary["updates"]["applied"] == 3


# A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that.
CHILD = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {demo!r})
import train_trl
if {leave}:
    import tiny
    calls, reward = [], tiny.right_or_digits
    def leaving(**batch):
        calls.append(1)
        if len(calls) == 3:
            os._exit(7)
        return reward(**batch)
    tiny.right_or_digits = leaving
sys.argv = ["train", "--output-dir", {output!r}, "--iterations", "100000", "--max-tokens", "8"]
train_trl.main()
"""

ENDS = {
    # how it ends -> exit status, windows that are lost at most are those of the writer's queue
    "SIGTERM": -signal.SIGTERM,
    "SIGKILL": -signal.SIGKILL,
    "SIGINT": None,
    "os._exit": 7,
}


def start(directory: Path, how: str) -> subprocess.Popen:
    script = CHILD.format(
        demo=str(ROOT / "demo"), output=str(directory / "output"), leave=how == "os._exit"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    run = [sys.executable, "-m", "otel_grpo.cli", "run", "--run-dir", str(directory / "run"), "--"]
    return subprocess.Popen(
        [*run, *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def windows_written(directory: Path) -> int:
    file = directory / "run" / "metrics_raw.jsonl"
    return file.read_text().count('"kind":"rollout"') if file.exists() else 0


def wait_for_windows(process: subprocess.Popen, directory: Path, n: int) -> None:
    deadline = time.monotonic() + 120
    while windows_written(directory) < n:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_end_of_a_process(trl, tmp_path):
    """Signals and `os._exit`: whole lines, a summary by `finish`, and nothing of ours on stderr."""
    processes = {}
    for how in ENDS:
        (tmp_path / how).mkdir()
        processes[how] = start(tmp_path / how, how)
    try:
        for how, process in processes.items():
            if how != "os._exit":
                wait_for_windows(process, tmp_path / how, 2)
                process.send_signal(getattr(signal, how))
    except BaseException:
        for process in processes.values():  # they would train for hours
            process.kill()
        raise
    for how, process in processes.items():
        directory = tmp_path / how
        _, told = process.communicate(timeout=120)
        if ENDS[how] is not None:
            assert process.returncode == ENDS[how]
        assert (
            "otel_grpo/" not in told.replace("otel_grpo/instrumentation/base.py", "")
            or how == "SIGINT"
        )
        subprocess.run(
            [sys.executable, "-m", "otel_grpo.cli", "finish", str(directory / "run")],
            check=True, cwd=ROOT, capture_output=True,
        )  # fmt: skip
        files = audited(directory / "run")
        assert files.summary["status"] == "interrupted"
        assert files.summary["windows"]["complete"] >= 2
        # That a window was opened may have been in the writer's queue.
        killed = how in ("SIGTERM", "SIGKILL")
        assert files.summary["windows"]["aborted"] in ([0, 1] if killed else [1])
        assert [w["iteration"] for w in files.of("rollout")] == list(
            range(1, len(files.of("rollout")) + 1)
        )
        # Ctrl-C is an orderly end.
        assert len(files.of("run")) == (1 if how == "SIGINT" else 0)
