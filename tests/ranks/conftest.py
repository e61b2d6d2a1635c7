"""Files of other processes, a collector of them, and a clock that tests turn."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest

from otel_grpo.ranks.collector import Collector
from otel_grpo.ranks.contributions import Contributions
from otel_grpo.ranks.folder import Folder
from otel_grpo.ranks.job import WorkerPeers
from otel_grpo.records.inventory import Inventory
from otel_grpo.records.model import Attempt, Device, Trainer, World
from tests.ranks.lines import ATTEMPT, OURS, RUN


class Job:
    """A directory with the files of other processes, and the collector that reads them."""

    def __init__(self, path):
        self.path = path / "workers"
        self.path.mkdir()
        self.now = 10
        self.faults = Counter()
        self.released = 0
        self.inventory = Inventory([Device("cpu:h:1", "cpu", "h")], [(0, ["train"])])

    def fault(self, place, error):
        assert isinstance(error, Exception)
        self.faults[place] += 1

    def release(self):
        self.released += 1

    def folder(self):
        return Folder(self.path, RUN, ATTEMPT, self.fault)

    def of_ranks(self, world):
        folder = self.folder()
        store = Contributions(folder, world, self.inventory)
        collector = Collector(folder, store, now=lambda: self.now, on_fault=self.fault)
        collector._release = self.release
        return collector

    def of_workers(self, *watched):
        world = World(1, self.inventory.devices)
        attempt = Attempt(ATTEMPT, 5, "h", 1, OURS, Trainer("t"), world)
        clock = SimpleNamespace(now=lambda: self.now)
        collector = WorkerPeers(
            self.path.parent, RUN, attempt, self.inventory.roles, clock, self.fault
        )
        collector._release = self.release
        collector.watch(watched)
        return collector

    def write(self, name, *lines, end=b"\n"):
        with (self.path / f"{name}.jsonl").open("ab") as file:
            file.writelines(
                (line if isinstance(line, bytes) else msgspec.json.encode(line)) + end
                for line in lines
            )


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)
