"""Random kills of the actors and the driver of random jobs; SOAK_KILLS of them (40)."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import ray
from click.testing import CliRunner
from ray_support import INIT, until
from soak_job import Files, Job, monotonic

from otel_grpo.audit import audit
from otel_grpo.cli.finish import finish
from otel_grpo.records import reader

KILLS = int(os.environ.get("SOAK_KILLS", "40"))
AT_ONCE = 10  # in one test
# What a process wrote so long before it was killed is in its file: the queue is that of a moment.
MOMENT_NS = 10**9
# What the audit may say of a job that somebody killed.
LATE = "came after the records of their windows"
NOTES = ("torn line", "never read them", LATE)


def plan() -> dict[str, Any]:
    """What a driver does."""
    roles = random.choice([["policy", "roller"], ["policy", "policy", "roller"]])
    windows = [
        {
            "calls": random.choice([0, 1, 1, 2, 5]),
            "seconds": random.choice([0.0, 0.01, 0.1]),
            "between": random.choice([0.0, 0.0, 0.2]),
            "victim": random.randrange(len(roles)),
            "how": random.choice([None, "kill", "exit", "sigkill"]),
            "in_call": random.random() < 0.6,
            "after": random.uniform(0, 0.3),
            "inside": random.random() < 0.5,
        }
        for _ in range(random.randint(3, 8))
    ]
    for window in windows:
        if window["how"] == "exit":
            window["in_call"] = True
        elif window["how"] and not window["in_call"] and not window["calls"]:
            window["calls"] = 1  # a call finds out
    return {
        "roles": roles,
        "windows": windows,
        "watch": random.random() < 0.5,
        "lets_go": random.random() < 0.5,
        "look": random.choice([0.02, 0.2, 1.0]),
        "deadline": random.choice([0.1, 2, 30, 30]),
        "last_words": random.choice([0.05, 3.0, 3.0]),
    }


# --- the driver goes on as it would without us


def check_driver(job: Job) -> None:
    """Each call did what the plan says of it."""
    closed = {number for _, number in job.told("closed")}
    outcomes: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for _, number, actor, method, value, said in job.told("call"):
        outcomes[number][actor].append((method, value, said))
    raised = {number for _, number, same in job.told("raised") if same}
    assert len(raised) == len(job.told("raised"))
    ended = {number: actor for _, number, actor, _ in job.told("killed")}
    assert job.killed_ns is not None or len(closed) == len(job.plan["windows"])
    for number, todo in list(enumerate(job.plan["windows"], 1))[: len(closed)]:
        assert len(outcomes[number]) == len(job.plan["roles"]) or not todo["calls"]
        works = [("work", value, value + 1) for value in range(todo["calls"])]
        for actor, calls in outcomes[number].items():
            if actor != ended.get(number):
                assert calls == works
                continue
            failed = [(method, value) for method, value, said in calls if said == "RayActorError"]
            assert set(calls) - {(*each, "RayActorError") for each in failed} <= set(works)
            if todo["in_call"]:
                assert calls[-1] == ("hold", 0, "RayActorError")
            else:
                assert len(failed) == todo["calls"]
        assert (number in ended) == (todo["how"] is not None)
        assert (number in raised) == (todo["how"] is not None and not todo["inside"])


# --- what it did is in the files


def check_lines(job: Job, files: Files) -> None:
    """Every call that returned has its line, but for those of the last moment; no line is made up."""
    made = {actor: index for _, index, actor in job.told("made")}
    deaths = {actor: instant for instant, _, actor, _ in job.told("killed")}
    opens = {number: instant for instant, number in job.told("open")}
    assert job.killed_ns is not None or set(files.lines) <= set(made)
    for actor, index in made.items():
        method = {"policy": "work", "roller": "generate"}[job.plan["roles"][index]]
        said = list(files.said(actor))
        calls = [(end, what) for end, (what, _) in said if isinstance(what, str)]
        # Nobody comes back from the other methods.
        assert {what for _, what in calls} <= {method}
        placed = Counter(max(n for n, at in opens.items() if at <= end) for end, _ in calls)
        death = min(deaths.get(actor, job.ended_ns), job.ended_ns)
        returned: Counter[int] = Counter()
        surely: Counter[int] = Counter()
        for instant, number, whose, name, _, value in job.told("call"):
            if whose == actor and name == "work" and value != "RayActorError":
                returned[number] += 1
                surely[number] += instant < death - MOMENT_NS
        asked = {n: job.plan["windows"][n - 1]["calls"] for n in opens}
        # One that ended may have done what the driver never got.
        assert surely <= placed <= Counter(asked)
        if actor not in deaths and job.killed_ns is None:
            assert placed <= returned
        assert surely.total() <= len(said) - len(calls) <= len(calls)
    for left in filter(None, map(files.left, files.lines)):
        assert left.observed.errors == {}


def check_records(job: Job, files: Files) -> int:
    """Each holds the lines of its window and names who has none; how many lines are in no record."""
    numbers = [record.iteration for record in files.rollouts]
    assert numbers == list(range(1, len(numbers) + 1))
    told = {
        name: {number: at for at, number, *_ in job.told(name)}
        for name in ("open", "opened", "close", "closed", "raised")
    }
    if job.killed_ns is None:
        assert numbers == list(told["closed"])
    rank_of, since = known_workers(job, files)
    # Of one that left nothing is missing, once that was read.
    left = {rank for actor, rank in rank_of.items() if files.left(actor)}
    in_time = job.plan["deadline"] == 30 and job.plan["last_words"] == 3.0
    late = 0
    for record in files.rollouts:
        number, ranks = record.iteration, record.attributes.ranks
        start, end = files.span(record)
        assert told["open"][number] <= start <= told["opened"].get(number, job.ended_ns)
        assert told["close"].get(number, 0) <= end <= told["closed"].get(number, job.ended_ns)
        assert (record.attributes.window.status == "aborted") == (number in told["raised"])
        heard = set()
        for actor, rank in rank_of.items():
            said = Counter(what for instant, what in files.said(actor) if start <= instant < end)
            recorded = files.recorded(record, rank)
            assert recorded <= said
            late += (said - recorded).total()
            if recorded:
                heard.add(rank)
        silent = {rank_of[actor] for actor, instant in since.items() if instant < end} - heard
        assert ranks.received == 1 + len(heard)
        assert ranks.expected == ranks.received + len(ranks.missing)
        assert set(ranks.missing) <= silent
        assert not in_time or set(ranks.missing) >= silent - left
    assert not (in_time and late)
    return late


def known_workers(job: Job, files: Files) -> tuple[dict[str, int], dict[str, int]]:
    """Of each actor that was watched, or joined in time: its number, and since when it counts."""
    since = {actor: instant for instant, actor in job.told("watched")}
    rank_of = {actor: number for number, actor in enumerate(since, 1)}  # in the order of the calls
    ranks = {process.name: process.rank for process in files.attempt.processes}
    for actor in files.lines:
        joined = files.joined(actor)
        assert joined is not None
        if joined.name in ranks:
            assert rank_of.setdefault(actor, ranks[joined.name]) == ranks[joined.name]
            since.setdefault(actor, monotonic(joined.started_unix_ns, joined.clock))
    assert len(set(rank_of.values())) == len(rank_of)
    return rank_of, since


def check_end(job: Job, files: Files, late: int) -> None:
    """The summary that the driver wrote is the one that the files give; a killed one is finished."""
    before = reader.read_summary(files.path) if (files.path / "summary.json").exists() else None
    done = CliRunner().invoke(finish, [str(files.path)])
    assert done.exit_code == 0, done.output
    after = reader.read_summary(files.path)
    if job.killed_ns is None:
        assert before is not None
        told, again = msgspec.to_builtins(before), msgspec.to_builtins(after)
        assert {**told, "observed": 0} == {**again, "observed": 0}
        assert after.status == "completed"
    windows, raised = after.windows, len(job.told("raised"))
    whole, total = windows.complete + windows.partial, len(files.opened)
    assert whole + windows.aborted == total
    if job.killed_ns is None:
        assert (total, windows.aborted) == (len(job.told("closed")), raised)
    else:
        surely = sum(instant < job.killed_ns - MOMENT_NS for instant, _ in job.told("opened"))
        assert surely <= total <= len(job.told("open"))
    whole = sum(not record.attributes.ranks.missing for record in files.rollouts)
    assert after.ranks.complete_windows == whole
    assert after.ranks.incomplete_windows == len(files.rollouts) - whole
    counts: Counter[str] = Counter()
    for record in files.rollouts:
        for method, ranks in record.attributes.workers.items():
            counts[method] += sum(map(len, ranks.values()))
    assert {method: each["count"] for method, each in after.workers.items()} == counts
    errors = after.observed.errors
    assert set(errors) <= ({"ranks.late"} if late else set()), errors
    assert sum(sink.dropped for sink in after.observed.sinks.values()) == 0
    report = audit(files.path)
    said = [str(one) for one in report.findings]
    assert report.exit_status == 0, said
    assert [one for one in said if not any(note in one for note in NOTES)] == [], said
    told_late = [f": {late} call(s) or reading(s)" in one for one in said if LATE in one]
    assert told_late == ([True] if late else []), said


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """One Ray, to which the drivers come and go."""
    context = ray.init(**INIT, log_to_driver=False)
    yield context.address_info["gcs_address"]
    ray.shutdown()


def no_actors() -> bool:
    """Ray has ended those of the drivers that are gone."""
    (raylet,) = ray._private.worker._global_node.all_processes["raylet"]
    for child in psutil.Process(raylet.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if " ".join(child.cmdline()).startswith("ray::Soak"):
                return False
    return True


def one_job(folder: Path, address: str, most: int) -> int:
    """How many were killed in a job: at the most so many."""
    chosen = plan()
    kills = 0
    for window in chosen["windows"]:
        if window["how"] is not None:
            kills += 1
            if kills > most:
                window["how"] = None
    job = Job(folder, address, chosen)
    if random.random() < 0.6 and kills < most:
        job.kill(random.choice(["begun", "closed", "closed"]), random.uniform(0, 2 * kills))
    job.wait()
    until(no_actors, 60)
    logs = Path(ray._private.worker._global_node.get_session_dir_path(), "logs")
    assert [log.name for log in logs.glob("worker-*") if "otel" in log.read_text("utf-8")] == []
    files = Files(job.path)
    check_driver(job)
    check_lines(job, files)
    late = check_records(job, files)
    check_end(job, files, late)
    hows = Counter(how for _, _, _, how in job.told("killed"))
    if job.killed_ns is not None:
        hows["driver"] += 1
    calls = sum(said != "RayActorError" for *_, said in job.told("call"))
    print(
        f"{dict(hows)}, {len(job.told('closed'))} windows, {len(files.rollouts)} records, "
        f"{calls} calls, {late} late, {files.torn} torn"
    )
    return hows.total()


@pytest.mark.soak
@pytest.mark.parametrize("batch", range(-(-KILLS // AT_ONCE)))
def test_random_kills(cluster: str, tmp_path: Path, batch: int) -> None:
    """The driver goes on as without us, nothing is lost that was written, and the audit passes."""
    seed = random.randrange(2**32)
    random.seed(seed)
    left, number = min(AT_ONCE, KILLS - batch * AT_ONCE), 0
    while left > 0:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            left -= one_job(folder, cluster, left)
        except BaseException:
            print(f"seed {seed}, job {number}: {folder}")
            raise
        shutil.rmtree(folder)
