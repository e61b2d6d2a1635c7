"""When new weights have arrived, and what the trainer says of it: in order, late, or never."""

from __future__ import annotations

from training import BESIDE, COLOCATED

ASTRAY = (
    *("--mode", "async", "--lead", "1", "--workers", "2", "--micro-batch", "32"),
    *("--iterations", "6", "--fault", "lost@2", "--fault", "late@3", "--fault", "swapped@4"),
    "--no-shutdown",
)
STALE = (
    *("--mode", "async", "--lead", "1", "--workers", "2", "--micro-batch", "32"),
    *("--iterations", "4", "--publish-every", "2", "--staleness", "1"),
)


def publications(files):
    return [record["attributes"].get("publications", []) for record in files.of("rollout")]


def test_colocated_window_ends_after_the_last_receiver(recorded):
    """By the receiver's own clock: its call is over before the driver hears of it."""
    files = recorded(*COLOCATED)
    received = sorted(
        line["end_ns"] for _, line in files.worker_lines("call") if line["method"] == "receive"
    )
    for record, end in zip(files.of("rollout"), received, strict=True):
        (publication,) = record["attributes"]["publications"]
        assert publication["in_window"]
        assert publication["kind"] == "ipc"
        assert end <= publication["completed_ns"] <= record["attributes"]["window"]["end_ns"]


def test_snapshot_beside_the_training(recorded):
    """Version and queue are those of the moment at which the weights had arrived."""
    for version, (publication,) in enumerate(publications(recorded(*BESIDE)), 1):
        assert publication["version"] == publication["snapshot"]["version"] == version
        assert publication["snapshot"]["queue"] in {0, 1, 2}
        assert publication["bytes"] == 4 * 90_688  # parameters of the tiny model


def test_confirmations_that_go_astray(recorded):
    """Never told is pending; told late or in another order counts, at the time it was told."""
    files = recorded(*ASTRAY)
    rows = [row for window in publications(files) for row in window]
    assert [row["version"] for row in rows] == [1, 2, 3, 4, 5, 6]
    told = {row["version"]: row["completed_ns"] for row in rows}
    assert told[2] is None
    del told[2]
    assert sorted(told, key=told.get) == [1, 3, 5, 4, 6]
    ends = {
        record["iteration"]: record["attributes"]["window"]["end_ns"]
        for record in files.of("rollout")
    }
    assert told[3] > ends[3]
    assert told[4] > ends[4]
    assert (files.summary["publications"], files.summary["publications_pending"]) == (5, 1)


def test_ray_that_nobody_shuts_down(trained, recorded):
    """The run ends in order, and so does the process."""
    assert trained(*ASTRAY).process.returncode == 0
    assert recorded(*ASTRAY).summary["status"] == "completed"


def test_every_second_update_is_published(recorded):
    """A window without a publication has none pending; an outdated batch is dropped whole."""
    files = recorded(*STALE)
    assert [[row["version"] for row in window] for window in publications(files)] == [
        [],
        [2],
        [],
        [4],
    ]
    assert (files.summary["publications"], files.summary["publications_pending"]) == (2, 0)
    # Batches 1, 2 and 3 are of version 0; the third comes up after two updates.
    stale = [record["metrics"].get("samples.discarded.stale") for record in files.of("rollout")]
    assert stale == [None, None, 64, None]
    lags = [set(record["attributes"]["policy_lag"]) for record in files.of("rollout")]
    assert lags == [{0}, {1}, {0}, {1}]
    assert files.summary["samples"]["generated"] == 5 * 64
    assert files.summary["samples"]["consumed"] == 4 * 64
