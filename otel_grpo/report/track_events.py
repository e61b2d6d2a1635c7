"""Perfetto's own format: a stream of protobuf packets, with instants to the nanosecond.

Written here because a run may be larger than memory and the format needs no library: a packet is a few
numbers. Schema: https://perfetto.dev/docs/reference/trace-packet-proto (the numbers below are its
fields); a viewer takes the file as it is or compressed by gzip.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache

Value = str | int | float | bool
Args = Mapping[str, Value]


_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_ORDERED_BY_RANK = 3
_SIZE_BYTES = 3
_REALTIME, _BOOTTIME = 1, 6
_INT64 = 1 << 63


class Trace:
    """Writes one trace, packet by packet.

    Attributes:
        slices, instants, samples: how many were written; a slice counts when it begins.
    """

    def __init__(self, write: Callable[[bytes], object], name: str, start_ns: int) -> None:
        """Args:
        write: takes bytes in order.
        name: of the whole; traces of different names can be laid side by side in one file.
        start_ns: an instant, in Unix nanoseconds; the viewer tells the time of day by it.
        """
        self._write = write
        digest = hashlib.sha256(name.encode("utf-8", "replace")).digest()
        self._uuid = int.from_bytes(digest[:5], "big") << 24
        self._sequence = _varint(10, int.from_bytes(digest[5:9], "big") | 1)
        self.slices = self.instants = self.samples = 0
        clocks = b"".join(
            _message(1, _varint(1, clock) + _varint(2, start_ns))
            for clock in (_BOOTTIME, _REALTIME)
        )
        self._packet(_message(6, clocks))
        self.root = self.track(name, None, 0)

    def track(self, name: str, parent: int | None, rank: int) -> int:
        """A new row, or a group of rows, below `parent`; siblings are ordered by `rank`."""
        return self._track(name, parent, rank, _varint(11, _ORDERED_BY_RANK))

    def counter(self, name: str, parent: int, rank: int, unit: str) -> int:
        """A new row that shows a number."""
        kind = _varint(3, _SIZE_BYTES) if unit == "bytes" else _text(6, unit)
        return self._track(name, parent, rank, _message(8, kind))

    def begin(self, track: int, at_ns: int, name: str, args: Args) -> None:
        """Begin a slice; on one track they are closed in the reverse order."""
        self.slices += 1
        self._event(_SLICE_BEGIN, track, at_ns, _word(23, name) + _arguments(args))

    def end(self, track: int, at_ns: int) -> None:
        """End the slice of the track that began last."""
        self._event(_SLICE_END, track, at_ns, b"")

    def instant(self, track: int, at_ns: int, name: str, args: Args) -> None:
        """A mark."""
        self.instants += 1
        self._event(_INSTANT, track, at_ns, _word(23, name) + _arguments(args))

    def sample(self, track: int, at_ns: int, value: float) -> None:
        """The value of a counter from an instant on."""
        self.samples += 1
        exact = isinstance(value, int) and -_INT64 <= value < _INT64
        self._event(
            _COUNTER, track, at_ns, _varint(30, int(value)) if exact else _double(44, value)
        )

    def _track(self, name: str, parent: int | None, rank: int, kind: bytes) -> int:
        self._uuid += 1
        above = b"" if parent is None else _varint(5, parent)
        about = _varint(1, self._uuid) + _text(2, name) + above + _varint(12, rank) + kind
        self._packet(_message(60, about))
        return self._uuid

    def _event(self, kind: int, track: int, at_ns: int, more: bytes) -> None:
        event = _kind_on(kind, track) + more
        self._packet(_varint(8, at_ns) + _message(11, event))

    def _packet(self, content: bytes) -> None:
        self._write(_message(1, content + self._sequence))


def _arguments(args: Args) -> bytes:
    return b"".join(_message(4, _word(10, name) + _value(value)) for name, value in args.items())


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return _text(6, value)
    if isinstance(value, bool):
        return _varint(2, value)
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return _varint(4, value)
    return _double(5, value)


# --- protobuf's wire format


def _raw(value: int) -> bytes:
    if 0 <= value < len(_SHORT):
        return _SHORT[value]
    value &= 0xFFFF_FFFF_FFFF_FFFF  # a negative number is its two's complement of 64 bits
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(field: int, value: int) -> bytes:
    return _SHORT[field << 3] + _raw(value)


def _double(field: int, value: float) -> bytes:
    return _SHORT[field << 3 | 1] + struct.pack("<d", value)


def _message(field: int, content: bytes) -> bytes:
    return _SHORT[field << 3 | 2] + _raw(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", "replace"))


@lru_cache(maxsize=1024)
def _word(field: int, text: str) -> bytes:
    """Text that comes again and again."""
    return _text(field, text)


@lru_cache(maxsize=4096)
def _kind_on(kind: int, track: int) -> bytes:
    return _varint(9, kind) + _varint(11, track)


# Tags and lengths are small.
_SHORT = [bytes([n]) for n in range(0x80)]
_SHORT += [bytes([n & 0x7F | 0x80, n >> 7]) for n in range(0x80, 0x800)]
