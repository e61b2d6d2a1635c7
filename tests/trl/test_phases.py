"""Which time is called what: phases, their parents and lanes, in real trainings."""

from __future__ import annotations

import asyncio
import math

import pytest
from support import Files, audited, overflow_in_step, trainer

AUXILIARY = {"logprob_old", "logprob_ref"}


def saved_model(tmp_path):
    """A model by its path: the trainer loads the reference model from there."""
    import tiny

    def build(words):
        tiny.model(words).save_pretrained(tmp_path / "model")
        words.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return build


def test_a_window_has_the_phases_of_the_loop(observed, tmp_path):
    """One of each, in the order of the loop, that together explain the window."""
    trainer(tmp_path, max_steps=2).train()
    files = audited(observed)
    for window in files.of("rollout"):
        rows = sorted(window["attributes"]["intervals"], key=lambda row: (row[3], row[4]))
        order = [row[2] for row in rows if row[1] is None and not row[6] & 8]
        assert order[-8:-1] == [
            *("generation", "adv_pipeline", "reward", "adv_pipeline", "policy_train", "optimizer"),
            "log",
        ]
        by_end = {}
        for row in rows:
            by_end.setdefault(row[4], []).append(row[2])
        # What ends one phase starts the next: nothing falls between them.
        starts = {row[3]: row[2] for row in rows}
        for phase, following in [
            ("generation", "adv_pipeline"),
            ("reward", "adv_pipeline"),
            ("policy_train", "optimizer"),
        ]:
            end = next(row[4] for row in rows if row[2] == phase and row[1] is None)
            assert starts[end] == following
        assert {row[5] for row in rows} == {window["attributes"]["window"]["lane"]}
    assert files.of("rollout")[0]["attributes"]["intervals"][0][2] == "data"
    assert files.summary["status"] == "completed"
    assert files.summary["observed"].get("errors", {}) == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_steps": 2}, set()),
        ({"max_steps": 2, "beta": 0.04}, {"logprob_ref"}),
        ({"max_steps": 2, "steps_per_generation": 2, "rows": 16}, {"logprob_old"}),
        ({"max_steps": 2, "steps_per_generation": 2, "rows": 16, "beta": 0.04}, AUXILIARY),
    ],
    ids=["aligned", "reference", "misaligned", "both"],
)
def test_auxiliary_forwards_are_told_apart(observed, tmp_path, options, expected):
    """Old policy and reference, below `adv_pipeline`; the loss's own pass is `policy_train`."""
    trainer(tmp_path, model=saved_model(tmp_path) if "beta" in options else None, **options).train()
    files = audited(observed)
    for window in files.of("rollout"):
        phases = files.phases(window)
        found = {phase: parent for phase, parent in phases if phase in AUXILIARY}
        assert found == dict.fromkeys(expected, "adv_pipeline")
        assert all(phases[phase, "adv_pipeline"] == 1 for phase in expected)


@pytest.mark.parametrize(
    ("accumulation", "parts", "beta", "phases"),
    [
        (1, 1, 0.1, ["logprob_ref"]),
        (1, 2, 0.1, ["logprob_old", "logprob_ref"]),
        (1, 2, 0.0, ["logprob_old"]),
    ],
)
def test_with_adapters_the_reference_is_the_policy_itself(accumulation, parts, beta, phases):
    """Both passes get the same model: the order and the configuration tell them apart."""
    from types import SimpleNamespace

    from otel_grpo.instrumentation.trl.session import Session

    policy = object()
    args = SimpleNamespace(gradient_accumulation_steps=accumulation, steps_per_generation=parts)
    on_cpu = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    fake = SimpleNamespace(
        accelerator=on_cpu, ref_model=None, beta=beta, args=args, num_iterations=1, model=policy
    )
    session = Session(fake, run=None)
    assert [session._auxiliary_phase(policy) for _ in phases] == phases


def test_reward_functions_are_children_wherever_they_run(observed, tmp_path):
    """Asynchronous ones run in tasks of another thread; a name may hold anything."""
    import tiny

    async def slow(completions, answer, **kwargs):
        await asyncio.sleep(0.02)
        return tiny.right_or_digits(completions, answer)

    def quick(completions, answer, **kwargs):
        return tiny.right_or_digits(completions, answer)

    async def other(**kwargs):
        return await slow(**kwargs)

    quick.__name__, other.__name__ = "format/strict", "other.one"
    trainer(tmp_path, reward=[slow, quick, other], max_steps=2).train()
    files = audited(observed)
    for window in files.of("rollout"):
        assert files.phases(window)["reward", "reward"] == 3
        lane = window["attributes"]["window"]["lane"]
        rows = [row for row in window["attributes"]["intervals"] if row[2] == "reward"]
        assert sum(row[5] == lane for row in rows) == 2  # the parent and the synchronous one
        assert len({row[5] for row in rows}) == 3  # each task is a lane
        # Two functions that wait side by side: once in the time that is busy, twice in the sum.
        metrics = window["metrics"]
        assert metrics["phase.reward.busy_ns"] < metrics["phase.reward.sum_ns"]
        assert metrics["phase.reward.calls"] == 4
    names = {
        attribute["value"]["stringValue"]
        for span in files.by_name()["rl.reward"]
        for attribute in span["attributes"]
        if attribute["key"] == "rl.reward.name"
    }
    assert names == {"slow", "format/strict", "other.one"}


def test_each_log_call_is_one_line(observed, tmp_path):
    """The dict of the event, its numbers as they are; what is not finite is null and counted."""
    from transformers import TrainerCallback

    class Logger(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:
                given.log({"mine": math.nan, "huge": math.inf, "big": 2**70, "word": "text"})

        def on_log(self, args, state, control, logs=None, **kwargs):
            logs["added by another callback"] = 1.0

    given = trainer(tmp_path, callbacks=[Logger()], max_steps=4, logging_steps=2)
    given.train()
    files = audited(observed)
    assert [line["step"] for line in files.flat] == [1, 2, 4, 4]
    mine, first, second, last = files.flat
    assert (mine["mine"], mine["huge"], mine["big"]) == (None, None, 2**70)
    assert "train_loss" in last
    assert all("added by another callback" not in line for line in files.flat)
    history = given.state.log_history
    assert [(line["step"], line.get("loss")) for line in files.flat] == [
        (entry["step"], entry.get("loss")) for entry in history
    ]
    assert sorted(files.of("rollout")[0]["attributes"]["nonfinite"]) == ["huge", "mine"]
    assert files.summary["nonfinite"] == 2
    # The scalars of two steps stand in the record of the second and say so.
    covered = [t["attributes"].get("covers", []) for t in files.of("train")]
    assert covered == [[], [1, 2], [], [3, 4]]
    assert files.of("train")[1]["attributes"]["scalars"]["loss"] == first["loss"]
    assert files.of("train")[3]["attributes"]["scalars"]["loss"] == second["loss"]


def test_a_step_that_the_gradient_scaler_skips_is_no_update(observed, tmp_path):
    """A real overflow in accelerate's own path: the trainer counts the step, no weight has changed."""
    import torch
    from transformers import TrainerCallback

    weights = []

    class Watch(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            parameters = given.model.parameters()
            weights.append(torch.cat([each.detach().flatten() for each in parameters]))

    given = trainer(tmp_path, max_steps=3, callbacks=[Watch()], optim="adamw_torch")
    # What accelerate makes for fp16, which it refuses on a CPU; the scaler itself works there.
    given.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    overflow_in_step(given, 1)
    given.train()
    first, second, third = weights
    assert torch.equal(first, second)
    assert not torch.equal(second, third)
    files = audited(observed)
    assert given.state.global_step == 3
    updates = [w["attributes"]["updates"][0] for w in files.of("rollout")]
    assert [(u["status"], u["reason"]) for u in updates] == [
        ("applied", None),
        ("skipped", "overflow"),
        ("applied", None),
    ]
    assert files.summary["updates"]["applied"] == 2
    assert files.summary["updates"]["skipped"] == 1
    publications = [w["attributes"].get("publications", []) for w in files.of("rollout")]
    assert [[p["version"] for p in each] for each in publications] == [[1], [], [2]]


def test_a_fused_optimizer_does_not_say_what_it_skips(observed, tmp_path, caplog):
    """The trainer takes the step for done, and so do we; one warning says so."""
    import torch

    given = trainer(tmp_path, max_steps=1, optim="adamw_torch_fused")
    given.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    loss = given.compute_loss
    given.compute_loss = lambda *args, **kwargs: loss(*args, **kwargs) * math.inf
    given.train()
    assert given.accelerator.optimizer_step_was_skipped is False
    (record,) = (each for each in caplog.records if each.name == "otel_grpo")
    assert "which steps the scaler skips" in record.getMessage()
    assert audited(observed).summary["updates"]["applied"] == 1


def test_publication_is_the_end_of_the_last_update(observed, tmp_path):
    """In place: two updates of one window publish once, when the second is complete."""
    trainer(tmp_path, rows=16, per_device_train_batch_size=4, steps_per_generation=4, max_steps=8,
            gradient_accumulation_steps=2).train()  # fmt: skip
    files = audited(observed)
    for number, window in enumerate(files.of("rollout"), start=1):
        (publication,) = window["attributes"]["publications"]
        update = window["attributes"]["updates"][-1]
        assert len(window["attributes"]["updates"]) == 2
        assert publication["kind"] == "in_place"
        assert publication["version"] == 2 * number
        assert publication["started_ns"] == publication["completed_ns"] == update["end_ns"]


def test_what_the_environment_wrote_is_not_the_models(observed, tmp_path, monkeypatch):
    """Tool results count apart; truncated samples that the loss leaves out train nothing."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    given = trainer(tmp_path, max_steps=1, mask_truncated_completions=True)
    end = given.processing_class.eos_token_id

    def rollouts(prompts, trainer):
        # Three tokens of the model, two of a tool, one of the model; every second one is cut off.
        ids = [[65, 66, 67, 48, 49, end if i % 2 else 68] for i in range(len(prompts))]
        return {
            "prompt_ids": [[70] * (i + 1) for i in range(len(prompts))],
            "completion_ids": ids,
            "logprobs": None,
            "env_mask": [[1, 1, 1, 0, 0, 1]] * len(prompts),
        }

    given.rollout_func = rollouts
    given.train()
    (window,) = audited(observed).of("rollout")
    metrics, attributes = window["metrics"], window["attributes"]
    assert attributes["prompt_lengths"] == list(range(1, 9))
    assert metrics["tokens.prompt"] == 36
    assert metrics["tokens.completion"] == 8 * 4
    assert metrics["tokens.environment"] == 8 * 2
    assert metrics["tokens.trained"] == 4 * 4
    assert attributes["truncated"] == [0, 2, 4, 6]
    assert metrics["tokens.total"] == 36 + 32 == given.state.num_input_tokens_seen


def test_what_profiling_contexts_log_is_log(observed, tmp_path):
    """Those that report to a service, wherever they stand; the others log nothing."""
    import tiny
    from trl.extras.profiling import ProfilingContext

    def reward(completions, answer, **kwargs):
        for sinks in (["wandb"], ["tensorboard"], []):
            with ProfilingContext("mine", report_to=sinks):
                pass
        return tiny.right_or_digits(completions, answer)

    trainer(tmp_path, max_steps=1, reward=[reward]).train()
    (window,) = audited(observed).of("rollout")
    names = {row[0]: row[2] for row in window["attributes"]["intervals"]}
    logs = [row for row in window["attributes"]["intervals"] if names.get(row[1]) == "reward"]
    assert [row[2] for row in logs] == ["reward", "log"]


def test_in_a_shared_provider_the_users_spans_are_below_ours(trl, tmp_path, monkeypatch):
    """What `opentelemetry-instrument` loads; the files are the same."""
    import tiny
    from opentelemetry import trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otel_grpo.instrumentation.trl import TrlInstrumentor

    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    exported, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracer = provider.get_tracer("the user's")

    def reward(completions, answer, **kwargs):
        with tracer.start_as_current_span("score"):
            return tiny.right_or_digits(completions, answer)

    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("OTEL_GRPO_STRICT", "true")
    TrlInstrumentor().instrument(tracer_provider=provider, meter_provider=meters)
    try:
        trainer(tmp_path, max_steps=1, reward=[reward]).train()
    finally:
        TrlInstrumentor().uninstrument()
    spans = {span.context.span_id: span for span in exported.get_finished_spans()}
    (score,) = (span for span in spans.values() if span.name == "score")
    parent = spans[score.parent.span_id]
    assert parent.name == "rl.reward"
    assert parent.attributes["rl.reward.name"] == "reward"
    files = audited(tmp_path / "run")
    (window,) = files.of("rollout")
    assert window["attributes"]["foreign_spans"] == 1
    (samples,) = (
        metric
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "rl.sample.samples"
    )
    (point,) = samples.data.data_points
    assert point.value == window["metrics"]["samples.consumed"]
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_callbacks_are_taken_back(observed, tmp_path):
    """After the training the trainer's list is what it was."""
    given = trainer(tmp_path, max_steps=1)
    before = list(given.callback_handler.callbacks)
    given.train()
    assert given.callback_handler.callbacks == before


def test_workers_of_the_data_loader_write_nothing(observed, tmp_path):
    """They are forked while the run is open; all lines are the trainer's process's."""
    trainer(tmp_path, max_steps=2, dataloader_num_workers=2).train()
    files = audited(observed)
    assert len(list((observed / "spans").iterdir())) == 1
    assert len(list((observed / "workers").iterdir())) == 1
    assert files.summary["records"] == {"train": 2, "rollout": 2, "run": 1}
    ids = [span["spanId"] for span in files.spans()]
    assert len(set(ids)) == len(ids)


def test_a_broken_hook_harms_nothing(trl, tmp_path, monkeypatch):
    """Every method of the session fails: the training is the same and the faults are counted."""
    import otel_grpo
    from otel_grpo.instrumentation.trl import contract
    from otel_grpo.instrumentation.trl.session import Session

    def losses(name):
        given = trainer(tmp_path / name, max_steps=2)
        given.train()
        return [log.get("loss") for log in given.state.log_history]

    def broken(*args, **kwargs):
        raise LookupError("ours")

    expected = losses("alone")
    hooked = [each.name for each in contract.METHODS if each.name != "train"]
    for name in [*hooked, "enter_profiling", "logged", "optimizer_stepped", "train_begins"]:
        if hasattr(Session, name):
            monkeypatch.setattr(Session, name, broken)
    monkeypatch.setenv("OTEL_GRPO_RUN_DIR", str(tmp_path / "run"))
    otel_grpo.instrument()
    try:
        assert losses("observed") == expected
    finally:
        otel_grpo.uninstrument()
    errors = Files(tmp_path / "run").summary["observed"]["errors"]
    assert errors["trl.hook._generate"] == 2
    assert errors["trl.hook.training_step"] == 2
    assert errors["trl.callback"] >= 4


def test_steps_of_an_iteration(observed, tmp_path):
    """Few functions of ours on the thread that trains: there no cache holds them, each is its cost."""
    import sys

    from transformers import TrainerCallback

    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call" and "/otel_grpo/" in frame.f_code.co_filename

    class Counter(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            sys.setprofile(count if state.global_step == 2 else None)

    trainer(tmp_path, callbacks=[Counter()], max_steps=4).train()
    assert 100 < calls < 400
