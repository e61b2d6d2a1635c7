"""What the TRL session says of a device that works on while the host goes on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from otel_grpo import semconv
from otel_grpo.instrumentation.trl.session import Session
from otel_grpo.records.model import NOT_DEVICE_SYNCED
from otel_grpo.testing import recorded_run


@pytest.mark.parametrize(("device", "flag"), [("cuda", NOT_DEVICE_SYNCED), ("cpu", 0)])
def test_phases_on_a_device_are_marked(device: str, flag: int) -> None:
    """On an accelerator training and optimizer are marked as not synchronised, a log is not."""
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(
            device=SimpleNamespace(type=device),
            sync_gradients=True,
            optimizer_step_was_skipped=False,
        ),
        args=SimpleNamespace(gradient_accumulation_steps=1, per_device_train_batch_size=4),
    )
    with recorded_run() as recorded:
        session = Session(trainer, recorded.run)
        session._open_window(recorded.run.clock.now())
        for phase in (semconv.POLICY_TRAIN, semconv.LOG):
            session._start(phase).stop()
        session._begin_update(recorded.run.clock.now())
        session.optimizer_stepped()
        session.close_window()
    flags = {row[2]: row[6] for row in recorded.rollouts[0].attributes.intervals}
    assert flags["policy_train"] == flags["optimizer"] == flag
    assert flags["log"] == 0
