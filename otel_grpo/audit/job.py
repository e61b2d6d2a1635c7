"""The other processes of one attempt: who they are, and what of theirs each record must hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import UnsetType

from otel_grpo.audit import ranks
from otel_grpo.audit.clocks import Clock
from otel_grpo.audit.contributed import Place, Spoken, check_amounts, check_samples
from otel_grpo.audit.decode import Record
from otel_grpo.audit.late import with_late
from otel_grpo.audit.peers import Contributions, Devices, Timeline
from otel_grpo.audit.placed import check_placed
from otel_grpo.audit.report import ABSENT, Findings
from otel_grpo.audit.workers import Attempts, Peer, Workers
from otel_grpo.records.model import Attempt, Process, RolloutAttributes, TrainAttributes

_RUN = "run.json"
_DISAGREE = "ranks.disagree"
# So many names stand in one finding.
_FEW = 8


class Job:
    """Takes the windows of an attempt in order; keeps of the other processes only what is next."""

    def __init__(
        self, facts: Attempt, workers: Workers, attempts: Attempts, findings: Findings
    ) -> None:
        self.late = 0  # contributions that are in no record
        self._late_lines = 0  # calls and readings of workers
        self._number = facts.attempt
        self._findings = findings
        # Of the attempt, and of ranks that its driver never heard of: their files were copied in.
        self.devices = list(facts.world.devices)
        self._inventory = {device.id: k for k, device in enumerate(facts.world.devices)}
        self._peers = workers.peers.get(self._number, [])
        self._unlisted: list[Peer] = []
        self._contributions: dict[int, tuple[Contributions, Devices]] = {}
        # A worker that is started again keeps its number.
        self._timelines: dict[int, list[Timeline]] = defaultdict(list)
        self._unseen: set[int] = set()  # ranks whose file is not here, once it was said
        self._spmd = any(peer.joined.rank is not None for peer in self._peers)
        self._listed = facts.processes
        self._numbers = {process.rank for process in facts.processes}
        # A worker that is started again has its name from before.
        self._by_key: dict[object, Process] = {}
        for p in facts.processes:
            keys = ((p.name, p.host, p.pid), p.name, (p.host, p.pid))
            self._by_key |= dict.fromkeys(filter(None, keys), p)
        self._unique()
        found: set[int] = set()
        for peer in self._peers:
            process = self._process(peer)
            if process is not None:
                found.add(process.rank)
            elif peer.joined.rank is not None:
                self._extend(peer)
            self._open(peer, process, facts, workers, attempts)
        for process in self._listed:
            if process.rank and process.rank not in found:
                self._unseen_once(process.rank, process.name or process.role)

    # --- who they are

    def _extend(self, peer: Peer) -> None:
        for device, _ in peer.joined.devices:
            if device.id not in self._inventory:
                self._inventory[device.id] = len(self.devices)
                self.devices.append(device)

    def _unique(self) -> None:
        names: dict[int, str | None] = {}
        for process in self._listed:
            if names.setdefault(process.rank, process.name) != process.name:
                field = f"attempts[{self._number}].processes"
                message = "two processes of one number"
                self._findings.add("error", _RUN, None, field, message, process.rank)

    def _process(self, peer: Peer) -> Process | None:
        """The entry of run.json that a `joined` line belongs to; each of its facts is compared."""
        joined = peer.joined
        keys = ((joined.name, joined.host, joined.pid), joined.name, (joined.host, joined.pid))
        process = next((self._by_key[key] for key in keys if key in self._by_key), None)
        if process is None:
            self._unlisted.append(peer)
            return None
        name = f"attempts[{self._number}].processes[{process.rank}]."
        said = f"{peer.file}:{peer.line}"
        if joined.rank is not None:
            self._findings.equal(_RUN, None, name + "rank", process.rank, joined.rank, said)
        for field in ("role", "host", "pid"):
            value = getattr(joined, field)
            self._findings.equal(_RUN, None, name + field, getattr(process, field), value, said)
        if process.name is not None:
            self._findings.equal(_RUN, None, f"{name}name", process.name, joined.name, said)
        for field in ("boot_id", "unix_ns", "perf_ns"):
            stored, value = getattr(process.clock, field), getattr(joined.clock, field)
            self._findings.equal(_RUN, None, f"{name}clock.{field}", stored, value, said)
        return process

    def _open(
        self,
        peer: Peer,
        process: Process | None,
        facts: Attempt,
        workers: Workers,
        attempts: Attempts,
    ) -> None:
        joined, devices = peer.joined, Devices(peer, self._inventory)
        if joined.rank is not None:
            if joined.rank in self._contributions:
                message = f"rank {joined.rank} has a file already"
                self._findings.add("error", peer.file, peer.line, "rank", message, joined.rank)
                return
            reader = Contributions(peer, attempts, self._number)
            self._contributions[joined.rank] = reader, devices
        elif process is not None:
            measured = workers.clocks.get((self._number, joined.name), [])
            clock = Clock(joined.clock, facts.clock, measured)
            timeline = Timeline(peer, attempts, self._number, clock, devices, process.rank)
            self._timelines[process.rank].append(timeline)

    def _unseen_once(self, rank: int, name: str) -> None:
        if rank not in self._unseen:
            self._unseen.add(rank)
            message = f"the file of rank {rank} ({name}) is not here: what it said is not checked"
            self._findings.add("warning", "workers", None, "", message)

    # --- windows

    def window(
        self,
        line: int,
        record: Record,
        a: RolloutAttributes,
        busy: Mapping[str, int],
        trains: Sequence[tuple[int, TrainAttributes]],
    ) -> RolloutAttributes | None:
        """Holds one record against the other processes' files.

        Args:
            line: Of the record.
            record: Whose evidence is sound in itself.
            a: That evidence.
            busy: Nanoseconds that each phase of the record is busy.
            trains: Records of its updates, with their lines.

        Returns:
            The evidence with the late ranks' in it; None where none was late.
        """
        iteration = record.head.iteration
        if iteration is None or not (self._peers or self._listed):
            return None
        disagreed = record.observed.errors.get(_DISAGREE, 0) > 0
        at = Place(self._findings, line, iteration, disagreed)
        self._missing(at, a)
        spoken, late = self._spoken(at, a)
        if self._spmd:
            check_samples(at, a, spoken)
            check_amounts(at, a, spoken)
            ranks.check_updates(at, a, spoken)
            ranks.check_trains(at, a, spoken, trains)
            ranks.check_memory(at, a, spoken)
            ranks.check_busy(at, a, spoken, busy)
            ranks.check_devices(at, a, spoken)
            ranks.check_calls(at, a, spoken)
        if self._timelines:
            self._known(at, a)
            self._late_lines += check_placed(at, a, self._timelines)
        self.late += len(late)
        return with_late(a, late, [train for _, train in trains]) if late else None

    def _missing(self, at: Place, a: RolloutAttributes) -> None:
        missing = a.ranks.missing
        at.checked(1)
        # A worker that was named and never joined has a number, too, and no entry in run.json.
        most = a.ranks.expected - 1 if self._spmd else max(missing, default=0)
        if len(set(missing)) != len(missing) or any(not 0 < rank <= most for rank in missing):
            at.wrong("attributes.ranks.missing", "not distinct ranks of others", None, str(missing))
        if self._spmd:
            size = max(peer.joined.world or a.ranks.expected for peer in self._peers)
            self._findings.equal(
                "metrics_raw.jsonl", at.line, "attributes.ranks.expected", a.ranks.expected, size
            )

    def _spoken(self, at: Place, a: RolloutAttributes) -> tuple[list[Spoken], list[Spoken]]:
        """The contributions to the window: those that its record must hold, and the late ones."""
        spoken, late = [], []
        for rank in sorted(self._contributions):
            reader, devices = self._contributions[rank]
            found = reader.of(at.iteration)
            if found is None:
                if rank not in a.ranks.missing:
                    message = f"rank {rank} is received, but did not contribute: {reader.peer.file}"
                    at.wrong("attributes.ranks.received", message, None, a.ranks.received, ABSENT)
                continue
            each = Spoken(reader.peer, *found, devices)
            said = each.contribution.rank
            self._findings.equal(each.peer.file, each.line, "rank", said, rank)
            why = each.fits()
            if why:
                at.wrong("attributes.samples", why, each)
            elif rank in a.ranks.missing:
                late.append(each)
            else:
                spoken.append(each)
        if self._spmd:
            for rank in set(range(1, a.ranks.expected)) - self._contributions.keys():
                if rank not in a.ranks.missing:
                    self._unseen_once(rank, f"rank {rank}")
        return spoken, late

    def _known(self, at: Place, a: RolloutAttributes) -> None:
        """Every number of a worker is one of run.json, and who spoke is not missing."""
        speakers = {int(rank) for each in a.workers.values() for rank in each if rank.isdecimal()}
        if not isinstance(a.memory, UnsetType):
            speakers |= set(a.memory.rank)
        at.checked(len(speakers))
        for rank in sorted(speakers - {0}):
            if rank not in self._numbers:
                at.wrong("attributes.workers", "no process of run.json", None, rank, ABSENT)
            elif rank in a.ranks.missing:
                message = "called missing, though it spoke"
                at.wrong("attributes.ranks.missing", message, None, rank, ABSENT)

    # --- the end

    def finish(self) -> None:
        """After the last record: what is in the files and in no record is counted."""
        stray = 0
        for reader, _ in self._contributions.values():
            reader.finish()
            stray += reader.stray
            for line, iteration in reader.disorder:
                message = "a second contribution to a window, or not in the order of windows"
                self._findings.add("error", reader.peer.file, line, "iteration", message, iteration)
        timelines = [each for files in self._timelines.values() for each in files]
        unknown = [each.peer.joined.name for each in timelines if not each.clock.known]
        unlisted = [peer.joined.name for peer in self._unlisted]
        for said in (
            f"{stray} contribution(s) to windows without a record" if stray else "",
            _listed("calls and readings not placed, the clock is not known", unknown),
            _listed("not in run.json, for the driver never read them", unlisted),
        ):
            if said:
                message = f"attempt {self._number}: {said}"
                self._findings.add("note", "workers", None, "", message)

    def say_late(self, *, merged: bool) -> None:
        """After the summary, which may have what came late."""
        where = "they are in the totals" if merged else "`otel-grpo finish` adds them"
        if self.late:
            message = f"attempt {self._number}: {self.late} contribution(s) in no record; {where}"
            self._findings.add("note", "workers", None, "", message)
        if self._late_lines:
            message = (
                f"attempt {self._number}: {self._late_lines} call(s) or reading(s) of workers "
            )
            message += "came after the records of their windows"
            self._findings.add("note", "workers", None, "", message)


def _listed(what: str, names: Sequence[str]) -> str:
    """Empty where there is none; of very many a few."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{what}: {', '.join(names[:_FEW])}{more}" if names else ""
