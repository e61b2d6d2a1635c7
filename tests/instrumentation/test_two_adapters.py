"""Two adapters in one process, the trainer of one built upon the other's: one of them observes."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest

from otel_grpo.instrumentation.training import TrainingHooks
from otel_grpo.instrumentation.windows import WindowSession


class Inner:
    def train(self):
        return self.step()

    def step(self):
        return "stepped"


class Outer(Inner):
    def train(self):
        return super().train()


class Session(WindowSession):
    def step(self):
        self._next_window(self.run.clock.now())
        yield


class Hooks(TrainingHooks[Session]):
    package, supported, session_class = "any", ">=1", Session

    def __init__(self, system, kind):
        super().__init__()
        self.system = system
        self._wrap(kind, "train", self._train)
        self._wrap(kind, "step", self._on_trainer("step"))

    def apply(self, module):
        raise NotImplementedError

    def unsupported_training(self, trainer):
        return getattr(trainer, "unsupported", None)


@pytest.fixture
def adapters(tmp_path, monkeypatch):
    """Both in place; gives the runs that were started."""
    started = []

    def start(self, trainer):
        from otel_grpo import start_run

        run = start_run(tmp_path / self.system, trainer=self.system)
        started.append(run)
        self._session = Session(trainer, run)
        return self._session

    monkeypatch.setattr(importlib.metadata, "version", lambda package: "1.0")
    monkeypatch.setattr(TrainingHooks, "_begin", start)
    both = [Hooks("inner", Inner), Hooks("outer", Outer)]
    yield SimpleNamespace(started=started)
    for hooks in both:
        hooks.remove()


def test_the_outer_one_observes(adapters, tmp_path):
    """One run with one window, although both adapters' methods are called."""
    assert Outer().train() == "stepped"
    (run,) = adapters.started
    assert run.path == tmp_path / "outer"
    text = (tmp_path / "outer" / "metrics_raw.jsonl").read_text()
    assert text.count('"kind":"rollout"') == 1


def test_each_observes_its_own(adapters, tmp_path):
    """A training of the inner trainer alone is the inner adapter's."""
    Inner().train()
    assert [run.path for run in adapters.started] == [tmp_path / "inner"]


def test_a_training_inside_another_is_not_observed(adapters, caplog):
    """Of another trainer: one warning."""

    class Nested(Outer):
        def step(self):
            Inner().train()
            return super().step()

    Nested().train()
    assert len(adapters.started) == 1
    (record,) = caplog.records
    assert "a training that runs beside another one is not observed" in record.getMessage()
