"""Right files, worked by hand: every number here was written down from the specification, none
was computed by the package. Instants are small so that one can follow them with a pencil.
"""

import hashlib
import json
from pathlib import Path

import pytest

SCHEMA = "otel-grpo/1"
RUN = "run-1"
GIGA = 10**9
STAGES = {
    "train": ("update", "policy_train"),
    "rollout": ("iteration", "generation"),
    "run": ("run", "run"),
}
TRAINER = {"name": "loop", "version": "1", "adapter_version": None, "algorithm": "grpo"}
WORLD = {
    "size": 2,
    "devices": [
        {"id": "GPU-a", "kind": "cuda", "host": "h"},
        {"id": "GPU-b", "kind": "cuda", "host": "h"},
    ],
}


def dump(value):
    return json.dumps(value, separators=(",", ":")).encode()


def flat(tree, prefix=""):
    result = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            result[prefix + name] = value
    return result


def phase(name, **values):
    return {f"phase.{name}.{key}": value for key, value in values.items()}


def record(kind, iteration, step, metrics, attributes, *, time, attempt=1, **more):
    scope, stage = STAGES[kind]
    return {
        "schema": SCHEMA,
        "kind": kind,
        "scope": scope,
        "run_id": RUN,
        "attempt": attempt,
        "seq": None,
        "prev": None,
        "time_unix_ns": time,
        "stage": stage,
        "iteration": iteration,
        "optimizer_step": step,
        "trace_id": "0123456789abcdef0123456789abcdef",
        "span_id": "0123456789abcdef",
        "metrics": metrics,
        "attributes": attributes,
        "observed": {"self_ns": 1, **more},
    }


def worked_rows(origin, lane=1):
    """The worked example of the semantics, section 3."""
    o = origin
    return [
        ["g", None, "generation", o, o + 40, lane, 0],
        ["r", "g", "reward", o + 30, o + 40, lane, 0],
        ["a", None, "adv_pipeline", o + 40, o + 60, lane, 0],
        ["lo", "a", "logprob_old", o + 42, o + 55, 2, 0],
        ["lr", "a", "logprob_ref", o + 45, o + 58, 3, 0],
        ["t", None, "policy_train", o + 60, o + 90, lane, 0],
        ["l", "t", "log", o + 70, o + 75, lane, 8],
        ["e", None, "evaluation", o + 90, o + 95, lane, 0],
        ["b", None, "log", o + 60, o + 100, 4, 0],
    ]


WORKED_SEGMENTS = [
    [[], 5],
    [["adv_pipeline"], 4],
    [["adv_pipeline", "logprob_old"], 3],
    [["adv_pipeline", "logprob_old", "logprob_ref"], 10],
    [["adv_pipeline", "logprob_ref"], 3],
    [["evaluation"], 5],
    [["generation"], 30],
    [["log"], 5],
    [["policy_train"], 25],
    [["reward"], 10],
]


def _phase(name, busy, logical, top, exposed, self_exposed, total):
    return phase(
        name,
        busy_ns=busy,
        logical_ns=logical,
        top_ns=top,
        exposed_ns=exposed,
        self_exposed_ns=self_exposed,
        sum_ns=total,
        calls=1,
    )


WORKED_METRICS = {
    "time.wall_ns": 100,
    "time.log_ns": 5,
    "time.logical_ns": 95,
    "time.work_ns": 90,
    "time.overlapped_ns": 0,
    "time.unattributed_ns": 5,
    "time.log_background_ns": 40,
    **_phase("generation", 40, 40, 40, 40, 30, 40),
    **_phase("reward", 10, 10, 0, 10, 10, 10),
    **_phase("adv_pipeline", 20, 20, 20, 20, 4, 20),
    **_phase("logprob_old", 13, 13, 0, 3, 0, 13),
    **_phase("logprob_ref", 13, 13, 0, 3, 0, 13),
    **_phase("policy_train", 30, 25, 25, 25, 25, 30),
    **_phase("evaluation", 5, 5, 5, 5, 5, 5),
    **phase("log", busy_ns=5, top_ns=0, self_exposed_ns=5, sum_ns=5, calls=1),
}


def bare_metrics(**more):
    """What every rollout record has, all zero."""
    names = ["samples.consumed", "samples.visits", "samples.revisited", "samples.pending"]
    names += [f"updates.{s}" for s in ("attempted", "applied", "skipped", "failed", "unconfirmed")]
    names += ["updates.partial", "publications", "publications.pending", "nonfinite"]
    return dict.fromkeys(names, 0) | more


def window(start, end, status="complete", lane=1):
    return {"start_ns": start, "end_ns": end, "status": status, "lane": lane}


RANKS = {"expected": 2, "received": 2, "missing": []}
DEVICES = [[0, ["train", "generate"]], [1, ["generate"]]]


def _first():
    tokens = 116
    busy = {
        "generation": 40,
        "reward": 10,
        "adv_pipeline": 20,
        "logprob_old": 13,
        "logprob_ref": 13,
        "policy_train": 30,
        "evaluation": 5,
        "log": 5,
    }
    metrics = bare_metrics() | {
        **WORKED_METRICS,
        **{f"per_token.{name}_ns": ns / tokens for name, ns in busy.items()},
        "groups": 2,
        "samples.generated": 6,
        "samples.consumed": 4,
        "samples.visits": 4,
        "samples.truncated": 1,
        "samples.discarded.stale": 2,
        "tokens.prompt": 16,
        "tokens.prompt_unique": 8,
        "tokens.completion": 100,
        "tokens.environment": 2,
        "tokens.trained": 98,
        "tokens.visited": 98,
        "tokens.padding": 6,
        "tokens.total": tokens,
        "length.prompt.min": 3,
        "length.prompt.max": 5,
        "length.prompt.p50": 3,
        "length.prompt.p90": 5,
        "length.prompt.p99": 5,
        "length.prompt.mean": 4.0,
        "length.completion.min": 10,
        "length.completion.max": 40,
        "length.completion.p50": 20,
        "length.completion.p90": 40,
        "length.completion.p99": 40,
        "length.completion.mean": 25.0,
        "policy_lag.min": 0,
        "policy_lag.max": 0,
        "policy_lag.mean": 0.0,
        "updates.attempted": 1,
        "updates.applied": 1,
        "publications": 1,
        "devices": 2,
        "throughput.device": 116 * GIGA / 180,
        "throughput.device_wall": 116 * GIGA / 200,
        "throughput.generation": 100 * GIGA / 80,
        "throughput.train": 98 * GIGA / 30,
        "worker.step.count": 3,
        "worker.step.min_ns": 9,
        "worker.step.median_ns": 9,
        "worker.step.max_ns": 12,
        "worker.step.mean_ns": 10.5,
        "memory.allocator.allocated.min_bytes": 50,
        "memory.allocator.allocated.max_bytes": 100,
        "memory.allocator.allocated.sum_bytes": 150,
        "memory.allocator.allocated.mean_bytes": 75.0,
        "memory.process.rss.min_bytes": 20,
        "memory.process.rss.max_bytes": 30,
        "memory.process.rss.sum_bytes": 50,
        "memory.process.rss.mean_bytes": 25.0,
        "memory.device.used.min_bytes": 600,
        "memory.device.used.max_bytes": 600,
        "memory.device.used.sum_bytes": 600,
        "memory.device.used.mean_bytes": 600.0,
        "energy_mj": 640,
        "memory.host.used.min_bytes": 1100,
        "memory.host.used.max_bytes": 1100,
        "memory.host.used.sum_bytes": 1100,
        "memory.host.used.mean_bytes": 1100.0,
    }
    attributes = {
        "window": window(1000, 1100),
        "intervals": worked_rows(1000),
        "segments": WORKED_SEGMENTS,
        "ranks": RANKS,
        "devices": DEVICES,
        "samples": [["r1", 0, 4]],
        "prompt_lengths": [3, 3, 5, 5],
        "completion_lengths": [10, 20, 30, 40],
        "trained_lengths": [10, 20, 30, 38],
        "environment_lengths": [0, 0, 0, 2],
        "group_ids": [0, 0, 1, 1],
        "visit_counts": [1, 1, 1, 1],
        "policy_lag": [0, 0, 0, 0],
        "truncated": [3],
        "generated": [["r1", 0, 6]],
        "discarded": [["stale", 2, 50]],
        "pending": 0,
        "padding": 6,
        "updates": [
            {
                "step": 1,
                "start_ns": 1085,
                "end_ns": 1090,
                "samples": 4,
                "nominal": 4,
                "status": "applied",
            }
        ],
        "publications": [
            {
                "kind": "in_place",
                "version": 1,
                "started_ns": 1090,
                "completed_ns": 1090,
                "in_window": True,
            }
        ],
        "memory": {
            "instant": [1080, 1081, 1095],
            "rank": [0, 1, 0],
            "host": ["h", "h", "h"],
            "pid": [7, 8, 7],
            "device": [0, 1, 0],
            "allocator_allocated": [100, 50, 80],
            "process_rss": [10, 20, 30],
            "device_used": [500, None, 600],
            "host_used": [1000, 1100, 1050],
        },
        "hardware": {
            "instant": [995, 1095, 990, 1040],
            "device": [0, 0, 1, 1],
            "energy_mj": [7000, 7600, 50, 90],
            "temperature_c": [60, 62, None, 40],
        },
        "workers": {"step": {"0": [5, 7], "1": [9]}},
    }
    return metrics, attributes


def _second():
    metrics = bare_metrics() | {
        "time.wall_ns": 100,
        "time.log_ns": 0,
        "time.logical_ns": 100,
        "time.work_ns": 100,
        "time.overlapped_ns": 0,
        "time.unattributed_ns": 10,
        "time.log_background_ns": 0,
        **_phase("generation", 40, 40, 40, 40, 40, 40),
        **_phase("policy_train", 50, 50, 50, 50, 50, 50),
        "per_token.generation_ns": 40 / 28,
        "per_token.policy_train_ns": 50 / 28,
        "groups": 1,
        "samples.consumed": 2,
        "samples.visits": 7,
        "samples.revisited": 4,
        "samples.pending": 4,
        "tokens.prompt": 8,
        "tokens.prompt_unique": 4,
        "tokens.completion": 20,
        "tokens.trained": 20,
        "tokens.visited": 126,
        "tokens.total": 28,
        "length.prompt.min": 4,
        "length.prompt.max": 4,
        "length.prompt.p50": 4,
        "length.prompt.p90": 4,
        "length.prompt.p99": 4,
        "length.prompt.mean": 4.0,
        "length.completion.min": 8,
        "length.completion.max": 12,
        "length.completion.p50": 8,
        "length.completion.p90": 12,
        "length.completion.p99": 12,
        "length.completion.mean": 10.0,
        "policy_lag.min": 0,
        "policy_lag.max": 1,
        "policy_lag.mean": 0.5,
        "updates.attempted": 2,
        "updates.applied": 1,
        "updates.skipped": 1,
        "updates.partial": 1,
        "publications.pending": 1,
        "nonfinite": 1,
        "devices": 2,
        "throughput.device": 28 * GIGA / 200,
        "throughput.device_wall": 28 * GIGA / 200,
        "throughput.generation": 20 * GIGA / 80,
        "throughput.train": 126 * GIGA / 50,
    }
    attributes = {
        "window": window(1100, 1200, "partial"),
        "intervals": [
            ["g2", None, "generation", 1110, 1150, 1, 0],
            ["t2", None, "policy_train", 1150, None, 1, 2],
        ],
        "segments": [[[], 10], [["generation"], 40], [["policy_train"], 50]],
        "ranks": RANKS,
        "devices": DEVICES,
        "samples": [[7, 0, 2]],
        "prompt_lengths": [4, 4],
        "completion_lengths": [8, 12],
        "trained_lengths": [8, 12],
        "group_ids": [5, 5],
        "visit_counts": [2, 1],
        "policy_lag": [1, 0],
        "revisited": [["r1", 0, 4, 1, 98]],
        "pending": 4,
        "updates": [
            {
                "step": 1,
                "start_ns": 1160,
                "end_ns": 1161,
                "samples": 2,
                "nominal": 2,
                "status": "skipped",
                "reason": "overflow",
            },
            {
                "step": 2,
                "start_ns": 1180,
                "end_ns": 1190,
                "samples": 1,
                "nominal": 2,
                "status": "applied",
            },
        ],
        "publications": [
            {
                "kind": "collective",
                "version": 2,
                "started_ns": 1190,
                "completed_ns": None,
                "in_window": False,
            }
        ],
        "nonfinite": ["kl"],
    }
    return metrics, attributes


def _third():
    metrics = bare_metrics() | {
        "time.wall_ns": 90,
        "time.log_ns": 0,
        "time.logical_ns": 90,
        "time.work_ns": 90,
        "time.overlapped_ns": 0,
        "time.unattributed_ns": 70,
        "time.log_background_ns": 0,
        **_phase("policy_train", 20, 20, 20, 20, 20, 20),
        "phase.policy_train.calls": 0,
        "samples.pending": 1,
        "updates.attempted": 1,
        "updates.failed": 1,
        "devices": 2,
    }
    attributes = {
        "window": window(1210, 1300, "aborted"),
        "intervals": [["t2", None, "policy_train", 1150, 1230, 1, 16]],
        "segments": [[[], 70], [["policy_train"], 20]],
        "ranks": RANKS,
        "devices": DEVICES,
        "pending": 1,
        "updates": [
            {
                "step": 2,
                "start_ns": 1220,
                "end_ns": 1230,
                "samples": 3,
                "nominal": 2,
                "status": "failed",
                "reason": "remote",
                "ranks": [1],
            }
        ],
    }
    return metrics, attributes


def train_record(iteration, step, status, n, interval, **more):
    start, end = interval
    intervals = [
        ["t", None, "policy_train", start, end, 1, 0],
        ["o", "t", "optimizer", end - 5, None, 1, 2],
    ]
    intervals[0][4] = None
    intervals[0][6] = 2
    metrics = {"samples": n, "update.busy_ns": end - start, "nonfinite": 1}
    attributes = {
        "interval": [start, end],
        "intervals": intervals,
        "n": n,
        "status": status,
        "scalars": {"loss": 0.5, "kl": None},
    } | more
    if "trained" in more:
        metrics["tokens.trained"] = more["trained"]
    return record("train", iteration, step, metrics, attributes, time=end)


TOTALS = {
    "status": "failed",
    "started_unix_ns": 950,
    "ended_unix_ns": 1320,
    "trainer": TRAINER,
    "world": WORLD,
    "time": {
        "wall_ns": 370,
        "startup_ns": 50,
        "windows_ns": 290,
        "between_ns": 10,
        "shutdown_ns": 20,
        "log_ns": 5,
        "logical_ns": 285,
        "work_ns": 280,
        "overlapped_ns": 0,
        "unattributed_ns": 85,
    },
    "windows": {"complete": 1, "partial": 1, "aborted": 1},
    "phases": {},
    "workers": {"step": {"count": 3, "min_ns": 9, "median_ns": 9, "max_ns": 12, "mean_ns": 10.5}},
    "groups": 3,
    "samples": {
        "generated": 6,
        "consumed": 6,
        "visits": 11,
        "revisited": 4,
        "truncated": 1,
        "pending": 1,
        "discarded": {"stale": 2},
    },
    "tokens": {
        "prompt": 24,
        "prompt_unique": 12,
        "completion": 120,
        "environment": 2,
        "trained": 118,
        "visited": 224,
        "padding": 6,
        "total": 144,
    },
    "updates": {
        "attempted": 4,
        "applied": 2,
        "skipped": 1,
        "failed": 1,
        "unconfirmed": 0,
        "partial": 1,
    },
    # One of the second window's was confirmed after its record was written.
    "publications": 2,
    "publications_pending": 0,
    "length": {
        "prompt": {"min": 3, "max": 5, "p50": 4, "p90": 5, "p99": 5, "mean": 4.0},
        "completion": {"min": 8, "max": 40, "p50": 12, "p90": 40, "p99": 40, "mean": 20.0},
    },
    "memory": {
        "allocator.allocated": {
            "min_bytes": 50,
            "max_bytes": 100,
            "sum_bytes": 150,
            "mean_bytes": 75.0,
        },
        "process.rss": {"min_bytes": 20, "max_bytes": 30, "sum_bytes": 50, "mean_bytes": 25.0},
        "device.used": {"min_bytes": 600, "max_bytes": 600, "sum_bytes": 600, "mean_bytes": 600.0},
        "host.used": {
            "min_bytes": 1100,
            "max_bytes": 1100,
            "sum_bytes": 1100,
            "mean_bytes": 1100.0,
        },
    },
    "energy_mj": 640,
    "policy_lag": {"min": 0, "max": 1, "mean": 1 / 6},
    "nonfinite": 1,
    "throughput": {
        "device": 144 * GIGA / 560,
        "device_wall": 144 * GIGA / 580,
        "generation": 120 * GIGA / 160,
        "train": 224 * GIGA / 100,
        "formula": "sum(tokens) * 1e9 / sum(work_ns * devices)",
    },
    "ranks": {"expected": 2, "complete_windows": 3, "incomplete_windows": 0},
    "base": {"global_step": 30},
}
NAMES = ("busy_ns", "logical_ns", "top_ns", "exposed_ns", "self_exposed_ns", "sum_ns", "calls")
for _name, _values in {
    "generation": (80, 80, 80, 80, 70, 80, 2),
    "reward": (10, 10, 0, 10, 10, 10, 1),
    "adv_pipeline": (20, 20, 20, 20, 4, 20, 1),
    "logprob_old": (13, 13, 0, 3, 0, 13, 1),
    "logprob_ref": (13, 13, 0, 3, 0, 13, 1),
    "policy_train": (100, 95, 95, 95, 95, 100, 2),
    "evaluation": (5, 5, 5, 5, 5, 5, 1),
}.items():
    TOTALS["phases"][_name] = dict(zip(NAMES, _values, strict=True))
TOTALS["phases"]["log"] = {
    "busy_ns": 5,
    "top_ns": 0,
    "self_exposed_ns": 5,
    "sum_ns": 5,
    "calls": 1,
}

SINKS = {"sinks": {"metrics_raw": {"created": 8, "written": 8, "dropped": 0, "pending": 0}}}


class Files:
    """The files of one run, to be changed and written."""

    def __init__(self):
        first, second, third = _first(), _second(), _third()
        self.records = [
            train_record(1, 1, "applied", 4, (1060, 1090), trained=98),
            record("rollout", 1, 1, *first, time=1100),
            train_record(2, 1, "skipped", 2, (1150, 1161)),
            train_record(2, 2, "applied", 1, (1161, 1190)),
            record("rollout", 2, 2, *second, time=1200),
            record("rollout", 3, 2, *third, time=1300),
            train_record(3, 2, "failed", 3, (1210, 1230)),
            record("run", 3, 2, flat(TOTALS), TOTALS, time=1320),
        ]
        self.summary = {
            "schema": SCHEMA,
            "run_id": RUN,
            "attempt": 1,
            "attempts": [],
            **TOTALS,
            "records": {"train": 4, "rollout": 3, "run": 1},
            "head": None,
            "open": None,
            "observed": SINKS,
        }
        self.run = {
            "schema": SCHEMA,
            "run_id": RUN,
            "attempts": [self.attempt(1, 950, {"global_step": 30})],
        }
        self.workers = [
            {"kind": "window_opened", "iteration": k, "start_ns": at}
            for k, at in ((1, 1000), (2, 1100), (3, 1210))
        ]
        self.workers.append(
            {"kind": "publication_completed", "iteration": 2, "version": 2, "completed_ns": 1310}
        )
        self.spans = {"driver-0-7.jsonl": [["1111111111111111", "2222222222222222"]]}

    @staticmethod
    def attempt(number, started, base=None):
        return {
            "attempt": number,
            "started_unix_ns": started,
            "host": "h",
            "pid": 7,
            "clock": {"boot_id": None, "unix_ns": 0, "perf_ns": 0},
            "trainer": TRAINER,
            "world": WORLD,
            "base": base or {},
        }

    def lines(self):
        """The records chained, as bytes without line ends; sets the summary's head."""
        result, prev = [], None
        for seq, entry in enumerate(self.records):
            entry["prev"] = prev
            if entry["seq"] is None:
                entry["seq"] = seq
            result.append(dump(entry))
            prev = hashlib.sha256(result[-1]).hexdigest()
        if self.summary is not None:
            self.summary["head"] = prev
        return result

    def write(self, folder, lines=None):
        """All files; ``lines`` in place of the records' own."""
        folder = Path(folder)
        (folder / "workers").mkdir(parents=True, exist_ok=True)
        (folder / "spans").mkdir(exist_ok=True)
        own = self.lines()
        text = b"".join(line + b"\n" for line in (own if lines is None else lines))
        (folder / "metrics_raw.jsonl").write_bytes(text)
        (folder / "run.json").write_bytes(dump(self.run))
        if self.summary is not None:
            (folder / "summary.json").write_bytes(dump(self.summary))
        notices = [{"run_id": RUN, "attempt": 1, **entry} for entry in self.workers]
        (folder / "workers" / "driver-0-7.jsonl").write_bytes(
            b"".join(dump(entry) + b"\n" for entry in notices)
        )
        for name, requests in self.spans.items():
            body = b"".join(dump(spans_line(ids)) + b"\n" for ids in requests)
            (folder / "spans" / name).write_bytes(body)
        return folder


def spans_line(ids, start=1, end=2):
    spans = [
        {
            "traceId": "0123456789abcdef0123456789abcdef",
            "spanId": span,
            "parentSpanId": "",
            "name": "rl.loop",
            "kind": 1,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(end),
        }
        for span in ids
    ]
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}


@pytest.fixture
def files():
    """A right run of three windows: the worked example, a partial window, an aborted one."""
    made = Files()
    # A copy by text, so that no two records share a list that a test changes.
    for name in ("records", "summary", "run", "workers", "spans"):
        setattr(made, name, json.loads(json.dumps(getattr(made, name))))
    return made
