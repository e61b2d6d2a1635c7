"""The files of other processes are read as the records go on, and no further."""

import gc
import hashlib
import json
import tracemalloc

from otel_grpo.audit import audit
from otel_grpo.testing import FakeClock, recorded_run

SAMPLES = 400


def record(path, windows):
    """A run of two ranks that hold the same samples; returns the size of the second one's file."""
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
    return add_rank(path)


def add_rank(path):
    """Makes rank 1 confirm what rank 0 says."""
    run = json.loads((path / "run.json").read_bytes())
    run["attempts"][0]["world"]["size"] = 2
    (path / "run.json").write_text(json.dumps(run))
    said = {"run_id": run["run_id"], "attempt": 1}
    who = {"role": "trainer", "name": "trainer-1", "rank": 1, "world": 2, "host": "h", "pid": 9}
    pair = {"boot_id": None, "unix_ns": 0, "perf_ns": 0}
    other = [{"kind": "joined", **said, **who, "clock": pair, "started_unix_ns": 0}]
    lines, prev = [], None
    for line in (path / "metrics_raw.jsonl").read_bytes().splitlines():
        entry = json.loads(line) | {"prev": prev}
        attributes = entry["attributes"]
        if entry["kind"] == "rollout":
            attributes["ranks"] = {"expected": 2, "received": 2, "missing": []}
            attributes["per_rank"] = {"0": {"policy_train": 10**9}, "1": {}}
            shared = {key: attributes[key] for key in attributes.keys() - {"per_rank"}}
            other.append(
                {
                    "kind": "contribution",
                    **said,
                    "rank": 1,
                    "iteration": entry["iteration"],
                    "attributes": shared | {"intervals": [], "segments": []},
                    "update_samples": [attributes["samples"]],
                    "update_trained": [None],
                }
            )
        elif entry["kind"] == "run":
            totals = {"ranks": attributes["ranks"] | {"expected": 2}}
            totals["world"] = attributes["world"] | {"size": 2}
            attributes |= totals
            entry["metrics"] |= {"ranks.expected": 2, "world.size": 2}
        lines.append(json.dumps(entry, separators=(",", ":")).encode())
        prev = hashlib.sha256(lines[-1]).hexdigest()
    (path / "metrics_raw.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    summary = json.loads((path / "summary.json").read_bytes()) | totals | {"head": prev}
    (path / "summary.json").write_text(json.dumps(summary))
    text = "".join(json.dumps(line) + "\n" for line in other)
    (path / "workers" / "trainer-1-9.jsonl").write_text(text)
    return len(text)


def peak(path):
    """Bytes that an audit takes at most."""
    gc.collect()
    tracemalloc.start()
    try:
        report = audit(path)
        assert [f for f in report.findings if f.severity != "note"] == []
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_files_of_ranks(tmp_path):
    """Twice the windows, and not a tenth of the additional bytes."""
    short, long = record(tmp_path / "short", 105), record(tmp_path / "long", 210)
    assert long > 1.9 * short
    audit(tmp_path / "short")  # what is imported and compiled on the way
    few, many = peak(tmp_path / "short"), peak(tmp_path / "long")
    assert many - few < (long - short) / 10
