"""The devices of a process and their memory: identity, allocator, driver, process, host."""

from otel_grpo.devices.inventory import inventory
from otel_grpo.devices.reader import Reader
from otel_grpo.devices.reading import OnError, Reading

__all__ = ["OnError", "Reader", "Reading", "inventory"]
