"""An audit takes in a file of any size line by line."""

import gc
import tracemalloc

from otel_grpo.audit import audit
from otel_grpo.audit.columns import Counted, column
from otel_grpo.testing import FakeClock, recorded_run

SAMPLES = 1_000


def record(path, windows):
    """A run of that many windows of 1,000 samples; returns the size of its records."""
    clock = FakeClock()
    with recorded_run(path, clock=clock) as recorded:
        for k in range(windows):
            with recorded.run.iteration() as it:
                lengths = [3 + (k + i) % 50 for i in range(SAMPLES)]
                samples = it.consumed(k, prompt_lengths=lengths, completion_lengths=lengths)
                with it.phase("policy_train"):
                    clock.advance(1)
                    it.trained(samples)
                with it.update(samples):
                    pass
            if k % 50 == 0:
                recorded.run.output.flush()  # no turn of a fake clock gives the writer time
    return (path / "metrics_raw.jsonl").stat().st_size


def peak(path):
    """Bytes that an audit takes at most."""
    gc.collect()
    tracemalloc.start()
    try:
        assert audit(path).exit_status == 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Three times the windows, and not a tenth of the additional bytes."""
    short, long = record(tmp_path / "short", 110), record(tmp_path / "long", 330)
    assert long > 2.5 * short
    audit(tmp_path / "short")  # what is imported and compiled on the way
    few, many = peak(tmp_path / "short"), peak(tmp_path / "long")
    assert many - few < (long - short) / 10


def test_small_windows_are_merged():
    """However many there are: one table, with every value in it."""
    counted = Counted()
    for k in range(5_000):
        counted.merge(Counted(column([k % 7, 10])))
        assert len(counted._parts) <= 101
    described = counted.describe(ranks=True)
    assert (described["min"], described["max"], described["p50"]) == (0, 10, 6)
    assert described["mean"] == (sum(k % 7 for k in range(5_000)) + 50_000) / 10_000
