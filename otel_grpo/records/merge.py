"""One record for the whole job: what each process says of a window, united by sample id."""

from __future__ import annotations

from typing import NamedTuple

from otel_grpo.records.model import (
    Contribution,
    Device,
    Memory,
    Process,
    Ranks,
    RolloutAttributes,
    SampleRun,
)


class Gathered(NamedTuple):
    """What the other processes of a job said of one window.

    Attributes:
        ranks: whose word is in.
        contributions: of the other ranks of an SPMD trainer; devices are numbered as in `inventory`.
        workers: durations in ns of the timed calls that ended in the window, by method and number.
        memory: readings of workers in the window, by the driver's clock, ranks and devices numbered.
        processes: all others that were heard of so far, for `run.json`; it only grows.
        inventory: all devices of the job that are known so far, for `run.json`; it only grows.
        devices: their places in `inventory` with their roles; None: not known.
    """

    ranks: Ranks
    contributions: dict[int, Contribution] = {}
    workers: dict[str, dict[int, list[int]]] = {}
    memory: list[Memory] = []
    processes: list[Process] = []
    inventory: list[Device] = []
    devices: list[tuple[int, list[str]]] | None = None


class Merged(NamedTuple):
    """One window of the whole job.

    Attributes:
        attributes: of its record. Updates are rank 0's, merged; where another rank attempted more,
            those follow.
        update_samples, update_trained: of each update, as in a `Contribution`.
        steps: number of an update as rank 0 counts them, to its number in the merged account.
        disagreements: samples whose lengths differ between two ranks that hold them.
    """

    attributes: RolloutAttributes
    update_samples: list[list[SampleRun]]
    update_trained: list[int | None]
    steps: dict[int, int]
    disagreements: int


def merge(own: Contribution, gathered: Gathered, applied: int) -> Merged:
    """The window of `own`, rank 0's (or a merged one), with what the others said of it.

    `own.attributes` are those of the record that rank 0 alone would make; `applied` is the number of
    updates applied before the window, in the merged account.
    """
    raise NotImplementedError
