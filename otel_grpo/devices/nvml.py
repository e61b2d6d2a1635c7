"""What NVIDIA's driver says of a device, by NVML: all of it, whoever uses it.

Needs the package nvidia-ml-py (the extra ``nvml``); without it, or without the driver's library,
nothing is known and nobody is told off. A call may hang: for the sampler's thread, and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from otel_grpo.devices.reading import OnError, attempt

INIT = "devices.nvml.init"
IDENTITY = "devices.nvml.identity"
READING = "devices.nvml"


def _memory(nvml: Any, handle: Any) -> dict[str, int]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"device_used": int(memory.used), "device_total": int(memory.total)}


def _utilization(nvml: Any, handle: Any) -> dict[str, int]:
    return {"utilization": int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)}


def _power(nvml: Any, handle: Any) -> dict[str, int]:
    return {"power_mw": int(nvml.nvmlDeviceGetPowerUsage(handle))}


def _energy(nvml: Any, handle: Any) -> dict[str, int]:
    return {"energy_mj": int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))}


def _temperature(nvml: Any, handle: Any) -> dict[str, int]:
    sensor = nvml.NVML_TEMPERATURE_GPU
    try:
        value = nvml.nvmlDeviceGetTemperature(handle, sensor)
    except nvml.NVMLError_FunctionNotFound:  # gone from CUDA 14 on, where this one is
        value = nvml.nvmlDeviceGetTemperatureV(handle, sensor)
    return {"temperature_c": int(value)}


# Each is asked apart: a slice of a device (MIG) tells its memory and nothing else.
_QUESTIONS: tuple[Callable[[Any, Any], dict[str, int]], ...] = (
    _memory,
    _utilization,
    _power,
    _energy,
    _temperature,
)


class _Known(NamedTuple):
    """A device, and what it answers."""

    handle: Any
    questions: list[Callable[[Any, Any], dict[str, int]]]


class Nvml:
    """NVML as this process has it open."""

    def __init__(self) -> None:
        self._library: Any = None
        self._opened = False
        self._known: dict[str, _Known | None] = {}

    def read(self, uuid: str, on_error: OnError) -> dict[str, int]:
        """What is known of a device now, under the names of a reading.

        Args:
            uuid: of the device as the driver's tools spell it: ``GPU-...`` or ``MIG-...``.
            on_error: told once that NVML, or the device in it, can't be had; told of each reading
                that fails, but not of what this device or this driver never answers.
        """
        if not self._opened:
            self._opened = True
            self._library = attempt(INIT, _open, on_error)
        nvml = self._library
        if nvml is None:
            return {}
        if uuid not in self._known:
            # By UUID: indices of NVML know nothing of CUDA_VISIBLE_DEVICES.
            handle = attempt(IDENTITY, lambda: nvml.nvmlDeviceGetHandleByUUID(uuid), on_error)
            self._known[uuid] = None if handle is None else _Known(handle, list(_QUESTIONS))
        known = self._known[uuid]
        return {} if known is None else _answers(nvml, known, on_error)


def _open() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return None
    return pynvml


def _answers(nvml: Any, known: _Known, on_error: OnError) -> dict[str, int]:
    never = (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_NoPermission,
        nvml.NVMLError_FunctionNotFound,
    )
    answers: dict[str, int] = {}
    for question in known.questions.copy():
        try:
            answers.update(question(nvml, known.handle))
        except never:
            known.questions.remove(question)
        except Exception as error:  # the device is lost, say: one error says it
            on_error(READING, error)
            break
    return answers
