"""Energy from counters, by hand; the audit's own way gives the same."""

from __future__ import annotations

from hypothesis import given, strategies as st

from otel_grpo.audit.energy import energy
from otel_grpo.core.energy import spent
from otel_grpo.records.model import Hardware


def test_last_minus_first_of_each_device() -> None:
    """Rows in any order; two devices: (900 - 100) + (30 - 30)."""
    rows = [(0, 5, 400), (0, 1, 100), (1, 2, 30), (0, 9, 900), (1, 8, 30), (0, 7, None)]
    assert spent(rows) == 800


def test_one_device_that_can_t_be_told_leaves_all_open() -> None:
    """Read once, never, or a counter that went down: the sum of the others would say too little."""
    known = [(0, 1, 100), (0, 2, 300)]
    assert spent(known) == 200
    assert spent([*known, (1, 1, 5)]) is None
    assert spent([*known, (1, 1, None), (1, 2, None)]) is None
    assert spent([*known, (1, 1, 9), (1, 2, 3), (1, 3, 50)]) is None
    assert spent([]) is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 9), st.one_of(st.none(), st.integers(0, 2**50))
        ),
        max_size=12,
    )
)
def test_the_audit_agrees(rows: list[tuple[int, int, int | None]]) -> None:
    """Sorted values here, differences of an array there."""
    table = Hardware(
        instant=[row[1] for row in rows],
        device=[row[0] for row in rows],
        energy_mj=[row[2] for row in rows],
    )
    assert energy(table) == spent(rows)
