"""The other processes of a job, for the one that makes its records: ranks, or workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from otel_grpo.core.clock import Clock
from otel_grpo.ranks.collector import Collector
from otel_grpo.ranks.contributions import Contributions
from otel_grpo.ranks.folder import Folder, OnFault
from otel_grpo.ranks.launch import RUNS, directory_of_rank, launch_key
from otel_grpo.ranks.workers import Workers
from otel_grpo.records.inventory import DeviceRoles, Inventory
from otel_grpo.records.model import Attempt
from otel_grpo.records.worker_dir import WorkerDir


class Ranks:
    """What `otel_grpo.tracing.peers.Job` asks for."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self._here = Path()
        # Relative paths are of the start: a training may change its directory before one is found.
        with contextlib.suppress(OSError):
            self._here = Path.cwd()

    @property
    def launch(self) -> str | None:
        return launch_key(os.environ)

    def directory(
        self, asked: Path | None, started_ns: int, wait: Callable[[float], bool]
    ) -> WorkerDir:
        asked = None if asked is None else self._here / asked
        runs = self._here / RUNS
        return directory_of_rank(self.rank, asked, started_ns, wait=wait, runs=runs)

    def peers(
        self,
        path: Path,
        run_id: str,
        attempt: Attempt,
        roles: DeviceRoles | None,
        clock: Clock,
        on_fault: OnFault,
    ) -> Collector:
        folder = Folder(path / "workers", run_id, attempt.attempt, on_fault)
        inventory = Inventory(attempt.world.devices, roles)
        store = Contributions(folder, self.world, inventory)
        return Collector(folder, store, now=clock.now, on_fault=on_fault)


class WorkerPeers(Collector):
    """The workers that a driver calls, as `otel_grpo.tracing.peers.Peers` asks for them."""

    def __init__(
        self,
        path: Path,
        run_id: str,
        attempt: Attempt,
        roles: DeviceRoles | None,
        clock: Clock,
        on_fault: OnFault,
    ) -> None:
        folder = Folder(path / "workers", run_id, attempt.attempt, on_fault)
        self._workers = Workers(folder, attempt.clock, Inventory(attempt.world.devices, roles))
        super().__init__(folder, self._workers, now=clock.now, on_fault=on_fault)

    def watch(self, names: Iterable[str]) -> None:
        """Count workers from now on, before they are heard of: one that never is is missing."""
        since_ns = self._now()
        with self._lock:
            self._workers.watch(names, since_ns)
