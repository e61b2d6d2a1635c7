"""The worked run with other processes: an SPMD job of three ranks, and a driver with one worker.

Every value is written by hand from the contract. Rank 2 is late for the third window.
"""

import json

import pytest

RUN = "run-1"
WORKED_BUSY = {
    "generation": 40,
    "reward": 10,
    "adv_pipeline": 20,
    "logprob_old": 13,
    "logprob_ref": 13,
    "policy_train": 30,
    "evaluation": 5,
    "log": 5,
}
GPU_B = [{"id": "GPU-b", "kind": "cuda", "host": "h"}, ["generate"]]
RANKS_1_2 = {"role": "trainer", "host": "h", "started_unix_ns": 960, "world": 3}


def window(start, end, status="complete"):
    return {"start_ns": start, "end_ns": end, "status": status, "lane": 1}


def update(status, samples, nominal, **more):
    row = {"step": 0, "start_ns": 1, "end_ns": 2, "samples": samples, "nominal": nominal}
    return row | {"status": status} | more


def contribution(rank, iteration, attributes, update_samples, update_trained, busy):
    own = {"intervals": [], "segments": [], "ranks": {"expected": 3, "received": 1}}
    return {
        "kind": "contribution",
        "rank": rank,
        "iteration": iteration,
        "attributes": own | attributes,
        "busy_ns": busy,
        "update_samples": update_samples,
        "update_trained": update_trained,
    }


def joined(rank, name, pid, clock, **more):
    return {"kind": "joined", "rank": rank, "name": name, "pid": pid, "clock": clock} | more


def clock(boot_id, unix_ns, perf_ns=0):
    return {"boot_id": boot_id, "unix_ns": unix_ns, "perf_ns": perf_ns}


def rank_one():
    """Holds sample 2 of the first window and sample 1 of the second one; fails in the third."""
    first = {
        "window": window(1001, 1101),
        "samples": [["r1", 2, 1]],
        "prompt_lengths": [5],
        "completion_lengths": [30],
        "trained_lengths": [30],
        "environment_lengths": [0],
        "group_ids": [1],
        "visit_counts": [1],
        "policy_lag": [0],
        "truncated": [],
        "generated": [["r1", 2, 2]],
        "discarded": [["stale", 1, 25]],
        "pending": 0,
        "padding": 2,
        "updates": [update("applied", 1, 1)],
        "workers": {"step": {"0": [9]}},
        "memory": {
            "instant": [1081],
            "rank": [1],
            "host": ["h"],
            "pid": [8],
            "device": [0],
            "allocator_allocated": [50],
            "process_rss": [20],
            "host_used": [1100],
        },
    }
    second = {
        "window": window(1101, 1201),
        "samples": [[7, 1, 1]],
        "prompt_lengths": [4],
        "completion_lengths": [12],
        "trained_lengths": [12],
        "group_ids": [5],
        "visit_counts": [1],
        "policy_lag": [0],
        "revisited": [["r1", 2, 1, 1, 30]],
        "updates": [update("skipped", 1, 1), update("applied", 0, 1)],
    }
    third = {"window": window(1211, 1299, "aborted"), "updates": [update("failed", 1, 1)]}
    return [
        joined(1, "trainer-1", 8, clock(None, 0), devices=[GPU_B], **RANKS_1_2),
        contribution(1, 1, first, [[["r1", 2, 1]]], [30], {"generation": 38, "policy_train": 31}),
        contribution(1, 2, second, [[[7, 1, 1]], []], [12, 0], {"generation": 39}),
        contribution(1, 3, third, [[["r1", 2, 1]]], [30], {"policy_train": 7}),
        left(),
    ]


def rank_two():
    """Confirms sample 2 of the first window and holds sample 3; late for the third."""
    first = {
        "window": window(1002, 1102),
        "samples": [["r1", 2, 2]],
        "prompt_lengths": [5, 5],
        "completion_lengths": [30, 40],
        "trained_lengths": [30, 38],
        "environment_lengths": [0, 2],
        "group_ids": [1, 1],
        "visit_counts": [1, 1],
        "policy_lag": [0, 0],
        "truncated": [1],
        "generated": [["r1", 4, 2]],
        "updates": [update("applied", 2, 2)],
    }
    second = {
        "window": window(1102, 1202),
        "updates": [update("skipped", 0, 0), update("applied", 0, 0)],
    }
    third = {
        "window": window(1212, 1300),
        "samples": [["r9", 0, 1]],
        "prompt_lengths": [2],
        "completion_lengths": [3],
        "trained_lengths": [3],
        "group_ids": [0],
        "visit_counts": [0],
        "policy_lag": [1],
        "discarded": [["stale", 1, None]],
        "pending": 2,
        "updates": [update("applied", 1, 1)],
        "memory": {
            "instant": [1290],
            "rank": [2],
            "host": ["h"],
            "pid": [9],
            "device": [0],
            "allocator_allocated": [70],
            "process_rss": [40],
            "device_used": [900],
            "host_used": [1000],
        },
    }
    return [
        joined(2, "trainer-2", 9, clock(None, 0), devices=[GPU_B], **RANKS_1_2),
        contribution(2, 1, first, [[["r1", 2, 2]]], [68], {"generation": 37}),
        contribution(2, 2, second, [[], []], [0, 0], {"generation": 36}),
        contribution(2, 3, third, [[["r1", 3, 1]]], [38], {"generation": 5}),
        left(),
    ]


def left():
    return {"kind": "left", "status": "completed", "ended_unix_ns": 1310, "observed": {}}


def process(rank, line):
    names = ("role", "host", "pid", "clock", "name")
    return {"rank": rank} | {name: line[name] for name in names}


class Job:
    """A run and the files of its other processes, to be changed and written."""

    def __init__(self, files, others):
        self.files = files
        # Name of a file -> its lines; a copy by text, so that tests share nothing that they change.
        self.others = json.loads(json.dumps(others))

    @property
    def records(self):
        return self.files.records

    def record(self, iteration):
        """Evidence of a window."""
        return next(
            entry["attributes"]
            for entry in self.records
            if entry["kind"] == "rollout" and entry["iteration"] == iteration
        )

    def totals(self, **changes):
        """Changes the totals, of the run record as well."""
        for block in (self.files.summary, self.records[-1]["attributes"]):
            block.update(json.loads(json.dumps(changes)))
        numbers = self.records[-1]["metrics"]
        for name, value in changes.items():
            numbers |= {
                f"{name}.{key}": n for key, n in value.items() if isinstance(n, int | float)
            }

    def write(self, folder):
        self.files.write(folder)
        for name, lines in self.others.items():
            text = "".join(
                json.dumps({"run_id": RUN, "attempt": 1} | line) + "\n" for line in lines
            )
            (folder / "workers" / name).write_text(text)
        return folder


@pytest.fixture
def spmd(files):
    """Three ranks; the record of the third window lacks rank 2, whose contribution is there."""
    job = Job(files, {"trainer-1-8.jsonl": rank_one(), "trainer-2-9.jsonl": rank_two()})
    world = files.run["attempts"][0]["world"] | {"size": 3}
    files.run["attempts"][0]["world"] = world
    files.run["attempts"][0]["processes"] = [
        process(1, job.others["trainer-1-8.jsonl"][0]),
        process(2, job.others["trainer-2-9.jsonl"][0]),
    ]
    job.totals(world=world, ranks={"expected": 3, "complete_windows": 2, "incomplete_windows": 1})
    for iteration in (1, 2, 3):
        job.record(iteration)["ranks"] = {"expected": 3, "received": 3, "missing": []}
    job.record(3)["ranks"] = {"expected": 3, "received": 2, "missing": [2]}
    one, two = (
        [dict(line["busy_ns"]) for line in lines if line["kind"] == "contribution"]
        for lines in job.others.values()
    )
    second = {"generation": 40, "policy_train": 50}
    job.record(1)["per_rank"] = {"0": dict(WORKED_BUSY), "1": one[0], "2": two[0]}
    job.record(2)["per_rank"] = {"0": second, "1": one[1], "2": two[1]}
    job.record(3)["per_rank"] = {"0": {"policy_train": 20}, "1": one[2]}
    job.record(3)["updates"][0]["nominal"] = 3
    for place, samples in ((0, ["r1", 0, 4]), (2, [7, 0, 2]), (3, [7, 0, 1]), (6, ["r1", 0, 3])):
        files.records[place]["attributes"]["samples"] = [samples]
    return job


@pytest.fixture
def driver(files):
    """A driver and a worker whose clock is 500 ns ahead and whose machine is the driver's."""
    lines = [
        joined(None, "policy-0", 8, clock("boot", 500), devices=[GPU_B], **RANKS_1_2),
        {"kind": "call", "method": "step", "start_ns": 1581, "end_ns": 1590},
        {
            "kind": "memory",
            "memory": {
                "instant": [1581],
                "rank": [0],
                "host": ["h"],
                "pid": [8],
                "device": [0],
                "allocator_allocated": [50],
                "process_rss": [20],
                "host_used": [1100],
            },
        },
        # Between the second window and the third one: of none.
        {"kind": "call", "method": "step", "start_ns": 1702, "end_ns": 1705},
        left(),
    ]
    job = Job(files, {"policy-0-8.jsonl": lines})
    attempt = files.run["attempts"][0]
    attempt["clock"] = clock("boot", 0)
    attempt["processes"] = [process(1, lines[0])]
    return job
