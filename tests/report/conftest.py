"""Reads a trace as Perfetto does, by its published schema and apart from the code that writes it."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


class Slice(NamedTuple):
    track: str  # names from the outermost group on
    name: str
    start_ns: int
    end_ns: int
    depth: int
    args: dict


class Picture(NamedTuple):
    slices: list[Slice]
    instants: list[tuple]  # track, name, instant, args
    samples: dict[str, list]  # track -> (instant, value)
    units: dict[str, object]

    def on(self, ending):
        return [each for each in self.slices if each.track.endswith(ending)]

    def named(self, name):
        return [each for each in self.slices if each.name == name]


def argument(annotation):
    return getattr(annotation, annotation.WhichOneof("value"))


def read(data):
    """Events in the order of their instants, equal ones as they stand in the file; one stack a track."""
    trace = Trace.FromString(data)
    clocks = [
        (clock.clock_id, clock.timestamp)
        for packet in trace.packet
        for clock in packet.clock_snapshot.clocks
    ]
    (boot,) = {at for clock_id, at in clocks if clock_id == 6}
    assert [at for clock_id, at in clocks if clock_id == 1] == [boot]  # instants are Unix time
    described = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet
                 if p.HasField("track_descriptor")}  # fmt: skip
    known = set()

    def path(uuid):
        track = described[uuid]
        above = [path(track.parent_uuid)] if track.parent_uuid else []
        return " > ".join([*above, track.name])

    stacks, slices, instants, samples = defaultdict(list), [], [], defaultdict(list)
    events = []
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in known
            known.add(packet.track_descriptor.uuid)
        if packet.HasField("track_event"):
            assert packet.track_event.track_uuid in known  # described before its first event
            events.append((packet.timestamp, packet.track_event))
    for at, event in sorted(events, key=lambda each: each[0]):
        track, stack = path(event.track_uuid), stacks[event.track_uuid]
        args = {each.name: argument(each) for each in event.debug_annotations}
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            stack.append((event.name, at, args))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, start, args = stack.pop()
            slices.append(Slice(track, name, start, at, len(stack), args))
        elif event.type == TrackEvent.TYPE_INSTANT:
            instants.append((track, event.name, at, args))
        else:
            value = getattr(event, event.WhichOneof("counter_value_field"))
            samples[track].append((at, value))
    assert not any(stacks.values()), "slices that never end"
    units = {
        path(uuid): track.counter.unit_name or track.counter.unit
        for uuid, track in described.items()
        if track.HasField("counter")
    }
    names = [path(uuid) for uuid in described]
    assert len(set(names)) == len(names)  # the viewer lays tracks of one name over each other
    return Picture(sorted(slices, key=lambda each: each.start_ns), instants, samples, units)


@pytest.fixture
def picture():
    """Draws a run; what it draws, read back."""
    from otel_grpo.report.perfetto import draw

    def of(run_dir, iterations=None):
        packets = []
        drawn = draw(run_dir, packets.append, iterations)
        found = read(b"".join(packets))
        assert (drawn.slices, drawn.instants) == (len(found.slices), len(found.instants))
        assert drawn.samples == sum(map(len, found.samples.values()))
        return found

    return of


@pytest.fixture(scope="session")
def read_trace():
    return read
