"""Ids that no seed can repeat and that disturb no random stream."""

from __future__ import annotations

import os
import struct

from opentelemetry.sdk.trace.id_generator import IdGenerator

_IDS_OF_A_BLOCK = 512


class UrandomIdGenerator(IdGenerator):
    """Draws from the operating system, a block at a time; a fork child draws a new block.

    The SDK's generator uses `random`: `random.seed(42)` on every rank gives equal ids on every
    rank, and each span moves the trainer's random stream.
    """

    def __init__(self) -> None:
        #: Ids that are drawn and not given. To `pop` one is a single step under the interpreter's
        #: lock: two threads never get the same one.
        self.stock: list[int] = []
        os.register_at_fork(after_in_child=self.stock.clear)

    def generate_span_id(self) -> int:
        while True:
            try:
                return self.stock.pop()
            except IndexError:
                block = struct.unpack(f"{_IDS_OF_A_BLOCK}Q", os.urandom(8 * _IDS_OF_A_BLOCK))
                self.stock.extend(filter(None, block))  # zero is no id

    def generate_trace_id(self) -> int:
        return self.generate_span_id() << 64 | self.generate_span_id()


#: Of this process; what registers for forks can't be taken back, so there is one for all runs.
GENERATOR = UrandomIdGenerator()
