"""Makers of small records, and of child processes that write them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap

import pytest

from otel_grpo.records.model import (
    Attempt,
    ClockPair,
    Observed,
    TrainAttributes,
    Trainer,
    TrainRecord,
    World,
)


@pytest.fixture
def record():
    """A maker of train records; ``scalars`` make a line as long as one likes."""

    def make(run_id="run", attempt=1, scalars=None):
        return TrainRecord(
            scope="update",
            run_id=run_id,
            attempt=attempt,
            seq=-1,
            prev=None,
            time_unix_ns=1,
            stage="policy_train",
            iteration=1,
            optimizer_step=1,
            metrics={},
            attributes=TrainAttributes((0, 1), [], 1, "applied", scalars=scalars or {}),
            observed=Observed(),
        )

    return make


@pytest.fixture
def attempt():
    """A maker of the entry of an attempt in run.json."""

    def make(number=1):
        clock = ClockPair(None, 1, 1)
        return Attempt(number, 1, "host", os.getpid(), clock, Trainer("loop"), World(1))

    return make


@pytest.fixture
def check_chain():
    """Assert that the whole lines of a file chain, and return them as dicts."""

    def check(path, torn=()):
        prev, rows = None, []
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if number in torn:
                continue
            row = json.loads(line)
            assert row["prev"] == prev, f"line {number}"
            prev = hashlib.sha256(line).hexdigest()
            rows.append(row)
        return rows

    return check


PREAMBLE = """
import json, os, resource, signal, sys, threading, time
from pathlib import Path
import msgspec
from otel_grpo.records.model import *
from otel_grpo.records.model import SCHEMA
from otel_grpo.records.rundir import open_run_dir
from otel_grpo.records.writer import Sink, Writer

warnings = []

def open_writer(path, run_id=None):
    run = open_run_dir(path, run_id)
    run.write_run_file(Attempt(run.attempt, 1, "host", os.getpid(), ClockPair(None, 1, 1),
                               Trainer("loop"), World(1)))
    writer = Writer(run.sinks(msgspec.json.encode), seq=run.seq, prev=run.prev,
                    on_warning=lambda sink, reason, text: warnings.append([sink, reason]))
    writer.start()
    return run, writer

def record(run, size=0):
    return TrainRecord(
        scope="update", run_id=run.run_id, attempt=run.attempt, seq=-1, prev=None, time_unix_ns=1,
        stage="policy_train", iteration=1, optimizer_step=1, metrics={},
        attributes=TrainAttributes((0, 1), [], 1, "applied", scalars={"x" * size: 1}),
        observed=Observed())

def counts(writer):
    return {name: msgspec.to_builtins(one) for name, one in writer.counts().items()}

"""


@pytest.fixture
def start_child():
    """Start a Python child that has open_writer, record, counts and warnings at hand."""
    children = []

    def start(code, *arguments, **options):
        child = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.fixture
def run_child(start_child):
    """Run such a child to its end; returns what it printed as JSON."""

    def run(code, *arguments, **options):
        child = start_child(code, *arguments, **options)
        output, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        return json.loads(output)

    return run
