"""Rank and world come from the process group, whatever the environment says."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from otel_grpo.ranks.identity import Identity, identity


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")


def group(available=True, initialized=True, rank=3, world=4):
    return SimpleNamespace(
        distributed=SimpleNamespace(
            is_available=lambda: available,
            is_initialized=lambda: initialized,
            get_rank=lambda: rank,
            get_world_size=lambda: world,
        )
    )


def test_the_group_tells(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", group())
    assert identity() == Identity(3, 4)


@pytest.mark.parametrize(
    "torch",
    [None, SimpleNamespace(), group(available=False), group(initialized=False), group(rank=None)],
)
def test_without_a_group_a_process_is_alone(monkeypatch, torch):
    """Two processes that train alone are two runs, though a launcher started both."""
    if torch is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", torch)
    assert identity() == Identity(0, 1)
