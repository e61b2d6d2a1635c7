"""What a run asks of whoever reads the files of the job's other processes (`otel_grpo.ranks`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from otel_grpo.records.merge import Gathered

if TYPE_CHECKING:
    from pathlib import Path

    from otel_grpo.core.clock import Clock
    from otel_grpo.records.inventory import DeviceRoles
    from otel_grpo.records.model import Attempt
    from otel_grpo.records.worker_dir import WorkerDir

__all__ = ["Gathered", "Job", "Peers"]


class Peers(Protocol):
    """The other processes of a job, as far as their files tell. No call waits for a file.

    `ready` is asked on the training thread, `take` on the writer's; windows are taken in their order,
    each once.
    """

    @property
    def spmd(self) -> bool:
        """Whether they are ranks, which contribute, or workers, which are called."""
        ...

    def start(self, release: Callable[[], None]) -> None:
        """Begin to read, on a thread of its own, which calls `release` while windows are waited for."""
        ...

    def ready(self, iteration: int, start_ns: int, end_ns: int, now_ns: int) -> bool:
        """Whether all that is expected of a closed window is here; from the first call on it is
        waited for. Instants are the driver's.
        """
        ...

    def take(self, iteration: int, start_ns: int, end_ns: int) -> Gathered:
        """What is here now of a window; a line of it that comes later is late."""
        ...

    def hurry(self) -> None:
        """The run ends: look every 50 ms from now on."""
        ...

    def stop(self) -> None:
        """Read nothing more; does not wait for the thread."""
        ...


class Job(Protocol):
    """The ranks of an SPMD trainer, of which this process is one."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def launch(self) -> str | None:
        """What all ranks of one start share, for `run.json`."""
        ...

    def directory(
        self, asked: Path | None, started_ns: int, wait: Callable[[float], bool]
    ) -> WorkerDir:
        """Where a rank above 0 writes, on its writer's thread. Raises OSError.

        `wait` sleeps so many seconds and says whether the process ends.
        """
        ...

    def peers(
        self,
        path: Path,
        run_id: str,
        attempt: Attempt,
        roles: DeviceRoles | None,
        clock: Clock,
        on_fault: Callable[[str, BaseException], object],
    ) -> Peers:
        """For rank 0: who reads the others' files."""
        ...
