"""Where the time of an iteration goes, and what the trainer's own options make of its samples."""

from __future__ import annotations

import asyncio
import re

import pytest
from support import audited
from swift_support import Spy, train


@pytest.fixture
def reward(swift, monkeypatch):
    """Registers reward functions for one test: `reward(name=class)`."""
    from swift.rewards import orms

    def register(**classes):
        for name, kind in classes.items():
            monkeypatch.setitem(orms, name, kind)
        return list(classes)

    return register


def digits(completions, answer, **kwargs):
    import tiny

    return tiny.right_or_digits([[{"content": each}] for each in completions], answer)


def children(window, parent):
    """(phase, flags) of the intervals below the phase `parent`."""
    rows = window["attributes"]["intervals"]
    names = {row[0]: row[2] for row in rows}
    return [(row[2], row[6]) for row in rows if names.get(row[1]) == parent]


def test_phases_of_an_iteration(observed, folder, tmp_path, reward):
    """Each phase once and where it belongs; the reference's forward pass where there is one."""
    spy = Spy()
    train(folder, tmp_path, watch=spy, beta=0.1, max_steps=2)
    files = audited(observed)
    for window in files.of("rollout"):
        found = files.phases(window)
        assert found["generation", None] == 1
        assert found["reward", None] == 1
        assert found["reward", "reward"] == 1
        assert found["adv_pipeline", None] == 1
        assert found["logprob_old", "adv_pipeline"] == 1
        assert found["logprob_ref", "adv_pipeline"] == 1
        assert found["policy_train", None] == 1
        assert found["optimizer", None] == 1
    first, last = files.of("rollout")
    assert files.phases(first)["data", None] == 2  # the next batch is fetched in the window before
    assert files.phases(last)["data", None] == 0
    # The first window's own log call and that of the rollout; the last has the summary's, too.
    trainers_own = [
        sum(1 for row in w["attributes"]["intervals"] if row[2] == "log" and not row[6] & 8)
        for w in (first, last)
    ]
    assert trainers_own == [2, 3]
    summary = files.summary
    assert summary["time"]["unattributed_ns"] < 0.15 * summary["time"]["windows_ns"]
    names = [
        {each["key"]: each["value"].get("stringValue") for each in span["attributes"]}
        for span in files.by_name()["rl.reward"]
    ]
    assert [n["rl.reward.name"] for n in names if "rl.reward.name" in n] == ["RightOrDigits"] * 2
    scalars = [record["attributes"]["scalars"] for record in files.of("train")]
    logged = [log for log in spy.logs if "loss" in log]
    # The trainer's progress bar rounds them in place, later.
    assert [round(s["grad_norm"], 8) for s in scalars] == [log["grad_norm"] for log in logged]
    assert all(s["grad_norm"] > 0 for s in scalars)


def test_every_reward_function_is_a_child(observed, folder, tmp_path, reward):
    """Plain and asynchronous ones, a class and a function; asynchronous ones overlap."""
    from swift.rewards import ORM

    class Plain(ORM):
        def __call__(self, completions, answer, **kwargs):
            return digits(completions, answer)

    class Slow(ORM):
        async def __call__(self, completions, answer, **kwargs):
            await asyncio.sleep(0.03)
            return [0.0] * len(completions)

    class Late(Slow):
        pass

    names = reward(plain=Plain, slow=Slow, late=Late)
    train(folder, tmp_path, max_steps=1, reward_funcs=names)
    (window,) = audited(observed).of("rollout")
    rows = window["attributes"]["intervals"]
    (whole,) = [row for row in rows if row[2] == "reward" and row[1] is None]
    below = [row for row in rows if row[1] == whole[0]]
    assert [row[2] for row in below] == ["reward"] * 3
    assert len({row[5] for row in below}) == 3  # two tasks beside the trainer's thread
    assert window["metrics"]["phase.reward.busy_ns"] >= 30_000_000
    assert window["metrics"]["phase.reward.sum_ns"] > window["metrics"]["phase.reward.busy_ns"]


def test_dynamic_sampling_discards(observed, folder, tmp_path, reward):
    """Groups whose rewards are all the same are generated, counted, and not trained on."""
    from swift.rewards import ORM

    class Odd(ORM):
        """No signal for even sums."""

        def __call__(self, completions, answer, **kwargs):
            return [i * 0.1 if int(a) % 2 else 0.0 for i, a in enumerate(answer)]

    reward(odd=Odd)
    made, kept = {}, []

    def watch(trainer):
        generate, sample = trainer._generate_completions, trainer._dynamic_sampling

        def spy_generate(samples):
            result = generate(samples)
            made.update({each.request_id: each for each in result})
            return result

        def spy_sample(samples, rewards):
            result = sample(samples, rewards)
            kept.extend(each.request_id for each in result[0])
            return result

        trainer._generate_completions, trainer._dynamic_sampling = spy_generate, spy_sample

    options = {"dynamic_sample": "true", "max_resample_times": 3, "max_steps": 2}
    train(folder, tmp_path, watch=watch, reward_funcs="odd", num_generations=2, **options)
    files = audited(observed)
    samples, tokens = files.summary["samples"], files.summary["tokens"]
    lost = [sample for name, sample in made.items() if name not in set(kept)]
    dull = [sample for sample in lost if int(sample.extra["answer"]) % 2 == 0]
    assert dull
    assert samples["generated"] == len(made) > 16
    assert samples["consumed"] == samples["visits"] == len(kept) == 16
    counted = samples["discarded"]
    assert counted["zero_advantage"] == len(dull)
    assert counted.get("surplus", 0) == len(lost) - len(dull)
    rows = [row for w in files.of("rollout") for row in w["attributes"]["discarded"]]
    length = {name: len(each.response_token_ids) for name, each in made.items()}
    assert sum(row[2] for row in rows) == sum(length.values()) - tokens["completion"]
    assert tokens["completion"] == sum(length[name] for name in kept)
    assert any(files.phases(w)["generation", None] > 1 for w in files.of("rollout"))


def test_overlong_samples_are_told(observed, folder, tmp_path):
    """The loss leaves out what was cut off: nothing of it is trained, and its discard says why."""
    spy = Spy()
    train(folder, tmp_path, watch=spy, overlong_filter="true", max_completion_length=40, seed=3)
    files = audited(observed)
    samples, tokens = files.summary["samples"], files.summary["tokens"]
    assert 0 < samples["truncated"] == samples["discarded"]["overlong"] < 16
    assert samples["consumed"] == samples["visits"] == 16
    assert tokens["trained"] == tokens["visited"] == sum(spy.micro_steps) < tokens["completion"]
    assert tokens["completion"] == sum(spy.completion_tokens)


def test_tool_tokens_are_the_environments(observed, folder, tmp_path, monkeypatch):
    """A scheduler that answers once: what it says is neither prompt nor completion."""
    from swift.rollout import MultiTurnScheduler, multi_turns

    class Again(MultiTurnScheduler):
        def step(self, infer_request, response_choice, current_turn):
            infer_request.messages.append({"role": "user", "content": "again"})
            return {"infer_request": infer_request}

        def check_finished(self, infer_request, response_choice, current_turn):
            return current_turn >= 2

    monkeypatch.setitem(multi_turns, "again", Again)
    spy = Spy()
    train(folder, tmp_path, watch=spy, multi_turn_scheduler="again", max_turns=2, max_steps=1)
    (window,) = audited(observed).of("rollout")
    metrics = window["metrics"]
    first, second = spy.prompt_tokens
    assert metrics["tokens.prompt"] == first
    assert metrics["tokens.completion"] == sum(spy.completion_tokens)
    # What the second turn was given, less the first one's prompt and what the model wrote there.
    assert metrics["tokens.environment"] == second - first - spy.completion_tokens[0] > 0
    assert metrics["tokens.trained"] == sum(spy.micro_steps)
    assert metrics["tokens.total"] == first + sum(spy.completion_tokens)


def test_evaluation_is_not_training(observed, folder, tmp_path):
    """Its generations, rewards and tokens are counted nowhere; its time is `evaluation`."""
    spy = Spy()
    options = {
        "val_dataset": str(folder / "sums.jsonl") + "#8",
        "eval_strategy": "steps",
        "eval_steps": 1,
        "per_device_eval_batch_size": 4,
        "max_steps": 2,
    }
    train(folder, tmp_path, watch=spy, **options)
    files = audited(observed)
    tokens = files.summary["tokens"]
    assert tokens["completion"] == sum(spy.completion_tokens)
    assert files.summary["samples"]["generated"] == 16
    for window in files.of("rollout"):
        metrics = window["metrics"]
        assert files.phases(window)["evaluation", None] == 1
        assert files.phases(window)["generation", "evaluation"] >= 1
        assert metrics["phase.generation.calls"] == 1
        assert metrics["time.logical_ns"] - metrics["time.work_ns"] > 0


def test_resumed_training_counts_its_own_session(observed, folder, tmp_path):
    """A second attempt in the same directory; what the checkpoint had is its base."""
    saving = {"save_strategy": "steps", "save_steps": 1}
    train(folder, tmp_path / "out", max_steps=1, **saving)
    first = audited(observed)
    assert [w["metrics"]["phase.checkpoint.calls"] for w in first.of("rollout")] == [1]
    spy = Spy()
    resume = {"resume_from_checkpoint": str(tmp_path / "out" / "checkpoint-1")}
    train(folder, tmp_path / "out", watch=spy, max_steps=3, **saving, **resume)
    files = audited(observed)
    assert files.summary["attempt"] == 2
    assert files.summary["base"] == {"optimizer_step": 1}
    assert files.summary["updates"]["applied"] == 2
    assert files.summary["tokens"]["completion"] == sum(spy.completion_tokens)


def test_what_profiling_sends_is_log(observed, folder, tmp_path, monkeypatch, swift):
    """The same calls in the same order as without us; each lies in the phase that it reports."""
    import sys
    from types import SimpleNamespace

    import otel_grpo

    utils = sys.modules["swift.rlhf_trainers.utils"]
    calls = []

    def log(metrics, **options):
        calls.append((sorted(metrics), options))

    def watch(trainer):
        trainer.args.report_to = ["wandb"]

    fake = SimpleNamespace(run=object(), log=log)
    monkeypatch.setattr(utils, "wandb", fake, raising=False)
    monkeypatch.setattr(swift, "wandb", fake, raising=False)
    train(folder, tmp_path / "observed", watch=watch, max_steps=1)
    seen, calls = calls, []
    otel_grpo.uninstrument()
    train(folder, tmp_path / "alone", watch=watch, max_steps=1)
    assert seen == calls
    assert len(seen) > 5
    (window,) = audited(observed).of("rollout")
    assert [each for each in children(window, "reward") if each[0] == "log"]
    below = [phase for phase, _ in children(window, "adv_pipeline") if phase == "log"]
    assert len(below) >= 1


TIMED = ("elapsed_time", "remaining_time", "train_speed(s/it)", "step_time", "train_runtime")
TIMED += ("train_samples_per_second", "train_steps_per_second")


def lines(output):
    """Of the trainer's file: the bytes, but for what its clock says and where it lies."""
    timed = "|".join(map(re.escape, TIMED)).encode()
    text = (output / "logging.jsonl").read_bytes().replace(str(output).encode(), b"OUTPUT")
    return re.sub(rb'("(?:%b)": )("[^"]*"|[-+.0-9e]+)' % timed, rb"\1TIME", text).splitlines()


def test_the_trainers_own_file_keeps_its_bytes(swift, folder, tmp_path, monkeypatch):
    """Also where the run directory is the output directory; no flat file of ours lies there."""
    import otel_grpo

    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    train(folder, tmp_path / "alone", **options)
    both = tmp_path / "observed"
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(both))
    otel_grpo.instrument()
    try:
        train(folder, both, **options)
    finally:
        otel_grpo.uninstrument()
    files = audited(both)
    assert lines(both) == lines(tmp_path / "alone")
    assert len(lines(both)) == 5
    ours = {".otel-grpo", "metrics_raw.jsonl", "run.json", "spans", "summary.json", "workers"}
    mine = {path.name for path in both.iterdir()}
    assert mine - {path.name for path in (tmp_path / "alone").iterdir()} == ours
    assert files.summary["observed"]["sinks"]["metrics"]["created"] == 0
