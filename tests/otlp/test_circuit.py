"""When attempts are due, on a clock that the tests turn."""

from __future__ import annotations

import random

import pytest

from otel_grpo.otlp.circuit import Circuit


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def circuit(clock):
    return Circuit(clock)


def test_pauses_double_up_to_a_bound(circuit):
    """0.5, 1, 2, 4, 8, 16, 30, 30 s, each give or take a fifth."""
    assert circuit.wait_s() == 0
    for pause in (0.5, 1, 2, 4, 8, 16, 30, 30):
        circuit.failed(None)
        assert 0.8 * pause - 1e-9 <= circuit.wait_s() <= 1.2 * pause + 1e-9


def test_away_after_three_failures_and_back_after_one_answer(circuit):
    """An answer puts everything back to the start."""
    for away in (False, False, True, True):
        circuit.failed(None)
        assert circuit.open is away
    circuit.well()
    assert (circuit.open, circuit.wait_s()) == (False, 0)
    circuit.failed(None)
    assert circuit.wait_s() <= 0.6


def test_the_receiver_may_ask_for_more(circuit, clock):
    """A longer pause is the receiver's, and impatience does not cut it."""
    circuit.failed(7)
    circuit.impatient = True
    assert circuit.wait_s() == 7
    clock.time += 7
    assert circuit.wait_s() == 0
    circuit.failed(0.1)  # shorter than our own
    assert circuit.wait_s() == 0  # for it is impatient, once
    circuit.failed(None)
    assert circuit.wait_s() > 0


def test_the_end(circuit, clock):
    """A receiver that is not away has the time until the deadline; one that is away one attempt."""
    circuit.failed(None)
    assert not circuit.hopeless()
    circuit.deadline = clock.time + 3
    assert not circuit.hopeless()
    circuit.failed(None)
    circuit.failed(None)
    assert circuit.hopeless()
    circuit.impatient = True
    assert not circuit.hopeless()
    assert circuit.wait_s() == 0
    circuit.failed(None)
    assert circuit.hopeless()


def test_a_pause_that_outlives_the_end_is_not_begun(circuit, clock):
    """Who is asked to come back in a minute need not wait 3 s for that."""
    circuit.deadline = clock.time + 3
    circuit.impatient = True
    circuit.failed(60)
    assert circuit.hopeless()
    circuit.well()
    assert not circuit.hopeless()
    clock.time += 3
    assert circuit.hopeless()


def test_away_for_weeks(circuit):
    """The ten thousandth failure is followed by a pause like any other."""
    for _ in range(10_000):
        circuit.failed(None)
    assert 24 <= circuit.wait_s() <= 36


def test_the_global_random_numbers_are_left_alone(circuit):
    """A training that was seeded draws what it would draw without us."""
    before = random.getstate()
    for _ in range(20):
        circuit.failed(None)
    assert random.getstate() == before
