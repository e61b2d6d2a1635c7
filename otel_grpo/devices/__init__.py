"""The devices of a process and their memory: identity, allocator, driver, process, host."""

from otel_grpo.devices.inventory import inventory, readings
from otel_grpo.devices.reading import OnError, Reading

__all__ = ["OnError", "Reading", "inventory", "readings"]
