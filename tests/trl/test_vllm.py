"""TRL's own code around vLLM, with stand-ins for vLLM: its engine, its server, NCCL.

No GPU and no vLLM: which phase is where, when weights count as published and what is counted; no time
means anything. TRL's `VLLMGeneration` and `VLLMClient` are the released ones.
"""

from __future__ import annotations

import inspect
import os
from unittest import mock

import pytest
import stand_in_vllm as engine
from same_training import run
from support import audited, trainer

newest = pytest.mark.skipif(not engine.NEWEST, reason="an older TRL does this in another way")

COLOCATED = {"use_vllm": True, "vllm_mode": "colocate"}
ASLEEP = {**COLOCATED, "vllm_enable_sleep_mode": True}
AFTER = ["adv_pipeline", "reward", "adv_pipeline", "policy_train", "optimizer", "log"]
PUSH = ["data", "weight_sync"]  # the prompts are encoded before
PUSH_ASLEEP = ["data", "weight_sync", "engine_wake", "weight_sync"]
GENERATE_ASLEEP = ["data", "engine_wake", "generation", "engine_sleep", "generation"]
FETCH = ["data"]


@pytest.fixture(autouse=True)
def fresh(trl, monkeypatch):
    """Stand-ins that know nothing yet; TRL sets variables of the environment for vLLM."""
    from trl.generation.vllm_client import VLLMClient

    # It wants a device of CUDA. All else is the client's own.
    monkeypatch.setattr(VLLMClient, "init_communicator", lambda self, device: None)
    engine.forget()
    with mock.patch.dict(os.environ):
        yield
    engine.forget()


def served(url):
    return {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url}


def order(window):
    """Phases of a window that have no parent, by their start; without what the plugin does itself."""
    return [row[2] for row in top(window)]


def top(window):
    rows = [row for row in window["attributes"]["intervals"] if row[1] is None and not row[6] & 8]
    return sorted(rows, key=lambda row: (row[3], row[4]))


def siblings(windows):
    """Whether no phase without a parent lies in the time of another one of its window."""
    return all(
        before[4] <= after[3]
        for window in windows
        for before, after in zip(top(window), top(window)[1:], strict=False)
    )


def published(windows):
    """Version and whether it was complete in its window, of each publication of each window."""
    return [
        [(p["version"], p["in_window"]) for p in window["attributes"].get("publications", [])]
        for window in windows
    ]


def counted(files, given):
    """Tokens and lengths are those that the stand-in made; TRL's own total is the same."""
    tokens = files.summary["tokens"]
    assert tokens["prompt"] == sum(map(len, engine.prompts))
    assert tokens["completion"] == sum(map(len, engine.made))
    assert tokens["total"] == given.state.num_input_tokens_seen
    columns = [w["attributes"]["completion_lengths"] for w in files.of("rollout")]
    assert [n for column in columns for n in column] == list(map(len, engine.made))
    cut = [n for w in files.of("rollout") for n in w["attributes"]["truncated"]]
    assert len(cut) == sum(ids[-1] != engine.END for ids in engine.made)
    assert files.summary["observed"].get("errors", {}) == {}


def test_colocated(observed, tmp_path):
    """The push of an update ends its window, and each phase follows the one before it."""
    given = trainer(tmp_path, max_steps=3, **COLOCATED)
    given.train()
    assert engine.told == ["push", "generate"] * 3
    assert engine.where == ["weight_sync", "generation"] * 3
    files = audited(observed)
    windows = first, second, third = files.of("rollout")
    # Version 0 is pushed in the first window: start-up, and no publication.
    assert order(first) == [*FETCH, *PUSH, "generation", *AFTER, *FETCH, *PUSH]
    assert order(second) == ["generation", *AFTER, *FETCH, *PUSH]
    assert order(third) == ["generation", *AFTER, "log"]
    assert siblings(windows)
    assert published(windows) == [[(1, True)], [(2, True)], [(3, False)]]
    for window in (first, second):
        (publication,) = window["attributes"]["publications"]
        assert publication["completed_ns"] == window["attributes"]["window"]["end_ns"]
        assert publication["started_ns"] == top(window)[-1][3]
    # One push of three was version 0, and the last update is never pushed.
    assert len(set(engine.pushed)) == 3
    assert files.summary["publications"] == len(engine.pushed) - 1
    assert files.summary["publications_pending"] == 1
    assert [w["attributes"]["policy_lag"] for w in windows] == [[0] * 8] * 3
    counted(files, given)


@newest
def test_colocated_and_asleep(observed, tmp_path):
    """Wake-up and sleep are siblings: of the push for the weights, of the generation for the cache."""
    given = trainer(tmp_path, max_steps=2, **ASLEEP)
    engine.forget()  # it falls asleep when it is made
    given.train()
    once = ["wake weights", "push", "wake kv_cache", "generate", "sleep"]
    assert engine.told == once * 2
    phases = ["engine_wake", "weight_sync", "engine_wake", "generation", "engine_sleep"]
    assert engine.where == phases * 2
    files = audited(observed)
    windows = first, second = files.of("rollout")
    assert order(first) == [*(*FETCH, *PUSH_ASLEEP, *GENERATE_ASLEEP, *AFTER, *FETCH, *PUSH_ASLEEP)]
    assert order(second) == [*GENERATE_ASLEEP, *AFTER, "log"]
    assert siblings(windows)
    assert published(windows) == [[(1, True)], [(2, False)]]
    counted(files, given)


@pytest.mark.skipif(engine.NEWEST, reason="TRL 1.10 and newer keep the weights")
def test_asleep_in_the_oldest_release(observed, tmp_path):
    """It wakes the weights twice, and reloads the checkpoint in the time of the generation."""
    given = trainer(tmp_path, max_steps=2, **ASLEEP)
    engine.forget()
    given.train()
    woken = ["wake weights", "reload_weights", "wake kv_cache", "generate", "sleep"]
    assert engine.told == ["wake weights", "push", *woken] * 2
    generate = ["engine_wake", "generation", "engine_wake", "generation", "engine_sleep"]
    assert engine.where == ["engine_wake", "weight_sync", *generate] * 2
    files = audited(observed)
    windows = files.of("rollout")
    assert siblings(windows)
    assert published(windows) == [[(1, True)], [(2, False)]]
    counted(files, given)


@newest
def test_server(observed, tmp_path):
    """TRL's client and a server on loopback: announced, sent, finished; the kind is `collective`."""
    with engine.server() as url:
        given = trainer(tmp_path, max_steps=2, **served(url))
        given.train()
    push = ["/start_weight_update", "/update_weights", "push", "/reset_prefix_cache"]
    assert engine.told == [*push, "generate"] * 2
    files = audited(observed)
    windows = first, second = files.of("rollout")
    assert order(first) == [*FETCH, *PUSH, "generation", *AFTER, *FETCH, *PUSH]
    assert order(second) == ["generation", *AFTER, "log"]
    assert siblings(windows)
    assert published(windows) == [[(1, True)], [(2, False)]]
    assert [p["kind"] for p in first["attributes"]["publications"]] == ["collective"]
    counted(files, given)


@pytest.mark.parametrize(
    "options",
    [pytest.param(COLOCATED, id="awake"), pytest.param(ASLEEP, id="asleep", marks=newest)],
)
def test_a_push_without_an_update_publishes_nothing(observed, tmp_path, options):
    """Two generations for each update: an engine that sleeps gets its weights each time again."""
    given = trainer(
        tmp_path, rows=16, max_steps=3, gradient_accumulation_steps=2, steps_per_generation=1,
        **options,
    )  # fmt: skip
    engine.forget()
    given.train()
    asleep = options is ASLEEP
    assert engine.told.count("generate") == 6
    assert engine.told.count("push") == (6 if asleep else 3)
    assert len(set(engine.pushed)) == 3  # versions 0, 1, 2
    files = audited(observed)
    windows = files.of("rollout")
    # Of two windows the second one has the update.
    assert published(windows) == [[], [(1, True)], [], [(2, True)], [], [(3, False)]]
    assert siblings(windows)
    # The same weights again end no window: their push is in that of the generation.
    push, generate = (PUSH_ASLEEP, GENERATE_ASLEEP) if asleep else (FETCH, ["generation"])
    assert order(windows[1])[: len(push + generate)] == push + generate
    assert order(windows[2])[: len(generate)] == generate
    assert [w["attributes"]["policy_lag"] for w in windows] == [[0] * 8] * 6
    counted(files, given)


def test_an_evaluation_that_gets_the_weights_first(observed, tmp_path):
    """Its push publishes; the next generation finds the weights there and begins a window at once."""
    import tiny

    given = trainer(
        tmp_path, max_steps=2, eval_dataset=tiny.sums(2), eval_strategy="steps", eval_steps=1,
        per_device_eval_batch_size=8, eval_on_start=True, **COLOCATED,
    )  # fmt: skip
    given.train()
    # The first evaluation is before the first window: version 0 is there when it starts.
    evaluated = ["push", "generate"]
    assert engine.told == [*evaluated, "generate", *evaluated, "generate", *evaluated]
    files = audited(observed)
    windows = first, second = files.of("rollout")
    assert published(windows) == [[(1, True)], [(2, True)]]
    assert files.phases(first)["weight_sync", "evaluation"] == 1
    assert order(first)[:4] == [*FETCH, "data", "generation", "adv_pipeline"]
    assert order(second)[:3] == ["data", "generation", "adv_pipeline"]
    assert siblings(windows)
    assert files.summary["publications_pending"] == 0
    # An evaluation's samples are not the training's: the second and the fourth generation are.
    trained = engine.made[8:16] + engine.made[24:32]
    assert files.summary["tokens"]["completion"] == sum(map(len, trained))


def test_a_skipped_step_publishes_nothing(observed, tmp_path, monkeypatch):
    """TRL counts the step and pushes again: the same weights, in the window of the generation."""
    given = trainer(tmp_path, max_steps=3, **COLOCATED)
    monkeypatch.setattr(
        type(given.accelerator),
        "optimizer_step_was_skipped",
        property(lambda accelerator: given.state.global_step == 0),
    )
    given.train()
    assert engine.told == ["push", "generate"] * 3
    windows = audited(observed).of("rollout")
    assert published(windows) == [[], [(1, True)], [(2, False)]]
    assert order(windows[1]) == [*PUSH, "generation", *AFTER, *FETCH, *PUSH]


# --- rollout functions


def rollouts(prompts, given):
    """Two turns by the trainer's engine, with three tokens of an environment between them."""
    words = given.processing_class
    ids = [
        words.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        for prompt in prompts
    ]
    turn = given.vllm_generation.generate
    _, first, _, _ = turn(prompts=ids, images=None, num_generations=1)
    told = [a + b + [7, 8, 9] for a, b in zip(ids, first, strict=True)]
    _, second, _, _ = turn(prompts=told, images=None, num_generations=1)
    both = list(zip(first, second, strict=True))
    return {
        "prompt_ids": ids,
        "completion_ids": [[*a, 7, 8, 9, *b] for a, b in both],
        "logprobs": [[engine.LOGPROB] * (len(a) + 3 + len(b)) for a, b in both],
        "env_mask": [[1] * len(a) + [0] * 3 + [1] * len(b) for a, b in both],
    }


@newest
def test_rollout_function(observed, tmp_path, monkeypatch):
    """Its time is generation but for the engine's switches; tokens are split by its mask."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    given = trainer(tmp_path, max_steps=2, max_completion_length=32, **ASLEEP)
    given.rollout_func = rollouts
    engine.forget()
    given.train()
    # TRL pushes before it calls the function, and the second turn needs the weights again.
    turn = ["wake weights", "push", "wake kv_cache", "generate", "sleep"]
    assert engine.told == turn * 4
    files = audited(observed)
    windows = files.of("rollout")
    push = ["weight_sync", "engine_wake", "weight_sync", "generation"]
    cached = ["engine_wake", "generation", "engine_sleep", "generation"]
    assert order(windows[1]) == ["generation", *cached, *push, *cached, *AFTER, "log"]
    assert siblings(windows)
    assert published(windows) == [[(1, True)], [(2, False)]]
    tokens = files.summary["tokens"]
    assert tokens["completion"] == sum(map(len, engine.made))
    assert tokens["environment"] == 2 * 8 * 3
    assert tokens["trained"] == tokens["completion"]
    assert tokens["prompt"] == sum(map(len, engine.prompts[:8] + engine.prompts[16:24]))
    assert tokens["total"] == given.state.num_input_tokens_seen


def test_rollout_function_that_returns_tensors(trl, tmp_path, monkeypatch):
    """To read them might wait for a device: the training goes on, and the fault is told."""
    import torch
    from support import Files

    import otel_grpo

    def tensors(prompts, given):
        ids = [torch.tensor(engine.complete([1, 2, 3])) for _ in prompts]
        logprobs = [[engine.LOGPROB] * len(each) for each in ids]
        return {"prompt_ids": [[1, 2, 3]] * len(ids), "completion_ids": ids, "logprobs": logprobs}

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    otel_grpo.instrument()
    try:
        given = trainer(tmp_path, max_steps=2, **COLOCATED)
        given.rollout_func = tensors
        given.train()
    finally:
        otel_grpo.uninstrument()
    files = Files(tmp_path / "run")
    assert files.summary["updates"]["applied"] == 2
    assert sum(files.summary["observed"]["errors"].values()) == 2
    assert published(files.of("rollout")) == [[(1, True)], [(2, False)]]


@pytest.mark.parametrize("column", ["completion_ids", "tool_mask"])
def test_no_tensor_is_read(trl, column):
    """Whichever of the lists holds them."""
    import torch

    from otel_grpo.instrumentation.trl.rollout import count

    given = {"prompt_ids": [[1]], "completion_ids": [[2, 3]], "tool_mask": [[1, 0]]}
    rule = {"stops": (), "group_size": 1, "drops_truncated": False}
    columns, _ = count(**given, **rule)
    assert (columns["completion_lengths"], columns["environment_lengths"]) == ([1], [1])
    tensors = [torch.tensor(each) for each in given[column]]
    with pytest.raises(TypeError, match="tensors"):
        count(**{**given, column: tensors}, **rule)


# --- tools


class Adder:
    """An environment: what it is asked for is done in its own time."""

    asked = 0

    def reset(self, **_):
        return None

    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: the first one.
            b: the second one.
        """
        Adder.asked += 1
        engine.tell("tool")
        return str(a + b)


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def with_tools(**tools):
    """A trainer whose model calls a tool in every second sample, and then answers."""

    def kind(processing_class, **options):
        from trl import GRPOTrainer
        from trl.chat_template_utils import qwen3_chat_template

        processing_class.chat_template = qwen3_chat_template
        call = [*processing_class(CALL)["input_ids"], engine.END]
        answer = [*processing_class("5")["input_ids"], engine.END]

        def next_ids(number, prompt):
            return call if number % 16 < 8 and number % 2 == 0 else answer[number % 2 :]

        engine.Rule.next_ids = next_ids
        return GRPOTrainer(processing_class=processing_class, **tools, **options)

    return kind


def generated_by_rule(given):
    """The stand-in's tokens from the model's own `generate`."""
    import torch

    def generate(input_ids, attention_mask, **_):
        engine.tell("generate")
        ids = [
            engine.complete(row[mask.bool()].tolist())
            for row, mask in zip(input_ids, attention_mask, strict=True)
        ]
        width = max(map(len, ids))
        padded = [
            each + [given.processing_class.pad_token_id] * (width - len(each)) for each in ids
        ]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)

    given.model.generate = generate


@newest
@pytest.mark.parametrize("options", [{}, ASLEEP], ids=["transformers", "vllm"])
def test_tools(observed, tmp_path, monkeypatch, options):
    """A tool's time is `reward`, and its tokens are the environment's; each turn is generation."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tools = {"environment_factory": Adder} if options else {"tools": [Adder().add]}
    given = trainer(
        tmp_path, max_steps=1, max_completion_length=400, kind=with_tools(**tools), **options
    )
    engine.told.clear()
    engine.where.clear()
    if not options:
        generated_by_rule(given)
    given.train()
    files = audited(observed)
    (window,) = files.of("rollout")
    steps = list(zip(engine.told, engine.where, strict=True))
    assert [step for step in steps if step[0] == "tool"] == [("tool", "reward")] * 4
    assert [step for step in steps if step[0] == "generate"] == [("generate", "generation")] * 2
    if options:
        turn = ["wake weights", "push", "wake kv_cache", "generate", "sleep"]
        assert engine.told == [*turn, *["tool"] * 4, *turn]
        # Then the results are encoded, and the engine needs its weights again.
        again = ["reward", *PUSH_ASLEEP[1:], *GENERATE_ASLEEP, "reward", "generation"]
        assert order(window) == [
            *(*FETCH, *FETCH, *PUSH_ASLEEP[1:], *GENERATE_ASLEEP, *again, *AFTER, "log")
        ]
    else:
        turns = ["generation", "reward", "generation", "reward", "generation"]
        assert order(window) == [*FETCH, *turns, *AFTER, "log"]
    assert siblings([window])
    # The second turn of a sample follows its prompt, its call and what the tool wrote.
    tokens, made, prompts = files.summary["tokens"], engine.made, engine.prompts
    assert len(made) == 8 + 4
    assert tokens["completion"] == sum(map(len, made))
    assert tokens["prompt"] == sum(map(len, prompts[:8]))
    first = [(prompts[i], made[i]) for i in (0, 2, 4, 6)]
    between = [
        len(later) - len(prompt) - len(ids)
        for later, (prompt, ids) in zip(prompts[8:], first, strict=True)
    ]
    assert min(between) > 0
    assert tokens["environment"] == sum(between)
    assert window["attributes"]["environment_lengths"] == [n for each in between for n in (each, 0)]
    assert tokens["total"] == given.state.num_input_tokens_seen


# --- nothing else changes


@newest
def test_observed_training_is_the_same(trl, tmp_path, monkeypatch):
    """Losses, gradient norms, texts, batches, weights, random states, and what vLLM was asked for."""
    import otel_grpo

    def training(name):
        engine.forget()
        with mock.patch.dict(os.environ):
            seen = run(tmp_path / name, max_steps=3, **ASLEEP)
        return seen, list(engine.told), list(engine.pushed)

    alone = training("alone")
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    otel_grpo.instrument()
    try:
        observed = training("observed")
    finally:
        otel_grpo.uninstrument()
    assert observed == alone
    assert any(log.get("grad_norm", 0) > 0 for log in alone[0]["logs"])
    audited(tmp_path / "run")


@pytest.mark.parametrize("place", ["reset_prefix_cache", "generate"])
def test_an_engine_that_fails(observed, tmp_path, monkeypatch, place):
    """Its own exception ends the training; what was due stays so, and nothing is published."""
    given = trainer(tmp_path, max_steps=3, **COLOCATED)
    failure = RuntimeError("the engine's")
    working = getattr(engine.LLM, place)

    def fails(*args, **kwargs):
        if given.state.global_step:
            raise failure
        return working(*args, **kwargs)

    monkeypatch.setattr(engine.LLM, place, fails)
    with pytest.raises(RuntimeError) as raised:
        given.train()
    assert raised.value is failure
    files = audited(observed)
    windows = files.of("rollout")
    assert files.summary["status"] == "failed"
    if place == "generate":  # the push before it has ended the window
        assert published(windows) == [[(1, True)], []]
        assert order(windows[1]) == ["generation"]
    else:
        assert published(windows) == [[(1, False)]]
        assert order(windows[0])[-2:] == PUSH
    assert windows[-1]["attributes"]["window"]["status"] == "aborted"
    assert siblings(windows)


@newest
@pytest.mark.parametrize("broken", ["start", "end"])
def test_broken_hooks_harm_nothing(trl, tmp_path, monkeypatch, broken):
    """Around TRL's methods and the engine's: faults are counted, every generation has a window."""
    from support import Files

    import otel_grpo
    from otel_grpo.instrumentation.trl.session import Session

    def losses(name):
        engine.forget()
        with mock.patch.dict(os.environ):
            given = trainer(tmp_path / name, max_steps=2, **ASLEEP)
            given.train()
        return [log.get("loss") for log in given.state.log_history], list(engine.told)

    def breaks(self):
        if broken == "end":
            yield
        raise LookupError("ours")
        yield

    expected = losses("alone")
    hooked = ("sync_weights", "generate", "wake_up", "sleep")
    for name in hooked:
        monkeypatch.setattr(Session, name, breaks)
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    otel_grpo.instrument()
    try:
        assert losses("observed") == expected
    finally:
        otel_grpo.uninstrument()
    files = Files(tmp_path / "run")
    errors = files.summary["observed"]["errors"]
    times = {"sync_weights": 2, "generate": 2, "wake_up": 4, "sleep": 2}
    assert errors == {f"trl.hook.{name}": n for name, n in times.items()}
    assert len(files.of("rollout")) == 2
    assert files.summary["samples"]["consumed"] == 16


def test_hooks_of_vllm_are_taken_back(trl, tmp_path):
    """TRL's class and the engine's are what they were."""
    from trl.generation.vllm_generation import VLLMGeneration

    import otel_grpo

    places = [VLLMGeneration, engine.LLM]
    before = [dict(vars(place)) for place in places]
    with mock.patch.dict(os.environ, OTEL_GRPO_RUN_DIR=str(tmp_path / "run")):
        otel_grpo.instrument()
        try:
            trainer(tmp_path, max_steps=1, **ASLEEP).train()
            assert engine.LLM.sleep is not before[1]["sleep"]
        finally:
            otel_grpo.uninstrument()
    assert [dict(vars(place)) for place in places] == before


# --- what the hooks rely on


def test_a_drifted_method_is_named(monkeypatch):
    """TRL's own or the engine's: trainings with vLLM are refused, the others observed."""
    import sys

    from trl.generation.vllm_generation import VLLMGeneration

    from otel_grpo import instrumentation
    from otel_grpo.instrumentation.trl import contract

    assert contract.vllm_mismatch(sys.modules[contract.VLLM]) is None
    monkeypatch.delattr(VLLMGeneration, "sync_weights")
    monkeypatch.delattr(engine.LLM, "sleep")
    reason = contract.vllm_mismatch(sys.modules[contract.VLLM])
    assert reason == "VLLMGeneration.sync_weights is gone; LLM.sleep is gone"
    instrumentation.instrument()
    try:
        hooks = instrumentation._applied[contract.MODULE]
        owners = {owner.__name__ for owner, *_ in hooks._patches._done}
        assert hooks.notes == [f"with vLLM nothing is observed: {reason}"]
    finally:
        instrumentation.uninstrument()
    assert "GRPOTrainer" in owners
    assert "VLLMGeneration" not in owners


@newest
def test_where_trl_pushes_and_generates(trl):
    """A push comes first in each turn, and only after a step; the engine wakes in the push."""
    from trl.generation.vllm_generation import VLLMGeneration

    def ordered(method, *parts):
        source = inspect.getsource(method)
        places = [source.find(part) for part in parts]
        assert -1 not in places, parts
        assert places == sorted(places), parts

    due = (
        "self.state.global_step != self._last_loaded_step",
        "self.vllm_generation.sync_weights()",
    )
    ordered(trl.GRPOTrainer._generate_single_turn, *due, "self.vllm_generation.generate(")
    ordered(trl.GRPOTrainer._generate, *due, "self.rollout_func(prompts, self)",
            "self._tokenize_prompts(prompts)", "self._generate_single_turn(",
            "self._tool_call_loop(")  # fmt: skip
    ordered(VLLMGeneration.sync_weights, 'self.llm.wake_up(tags=["weights"])', ".load_weights(")
    ordered(VLLMGeneration.generate, "self.sync_weights()", "if accelerator.is_main_process:",
            "self.vllm_client.generate(", "broadcast_object_list(",
            'self.llm.wake_up(tags=["kv_cache"])', "self.llm.generate(", "self.llm.sleep(")  # fmt: skip
