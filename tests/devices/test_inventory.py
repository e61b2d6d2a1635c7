"""Identity and readings of devices, with a torch that is not one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import otel_grpo
from otel_grpo import devices
from otel_grpo.records.model import Device
from otel_grpo.records.reader import read_records

GIB = 2**30


def statistics(
    allocated: int, reserved: int, peak_allocated: int, peak_reserved: int, ever: int
) -> dict[str, int]:
    """The statistics of one device under torch's names."""
    return {
        "allocated_bytes.all.current": allocated,
        "reserved_bytes.all.current": reserved,
        "allocated_bytes.all.peak": peak_allocated,
        "reserved_bytes.all.peak": peak_reserved,
        "reserved_bytes.all.allocated": ever,
        "num_ooms": 0,
    }


UNUSED = statistics(0, 0, 0, 0, 0)


@dataclass
class FakeDeviceModule:
    """What `torch.cuda` is to the code under test; anything else that is asked for is an error."""

    devices: list[dict[str, int]] = field(default_factory=list)
    uuids: list[str] | None = None
    initialised: bool = True
    current: int = 0
    name: str = "Fake H1"
    allocator_error: Exception | None = None
    driver_error: Exception | None = None
    probe_error: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def is_initialized(self) -> bool:
        return self.initialised

    def device_count(self) -> int:
        self._ask("device_count")
        if self.probe_error:
            raise self.probe_error
        return len(self.devices)

    def current_device(self) -> int:
        self._ask("current_device")
        return self.current

    def memory_stats(self, index: int) -> dict[str, int]:
        self._ask(f"memory_stats {index}")
        if self.allocator_error:
            raise self.allocator_error
        return self.devices[index]

    def mem_get_info(self, index: int) -> tuple[int, int]:
        self._ask(f"mem_get_info {index}")
        if self.driver_error:
            raise self.driver_error
        return 60 * GIB, 96 * GIB

    def get_device_properties(self, index: int) -> Any:
        self._ask(f"get_device_properties {index}")
        known = {"name": self.name, "total_memory": 96 * GIB}
        if self.uuids:
            known["uuid"] = self.uuids[index]
        return SimpleNamespace(**known)

    def _ask(self, what: str) -> None:
        assert self.initialised, f"{what} would initialise the device"
        self.asked.append(what)


def fake_torch(module: FakeDeviceModule, kind: str = "cuda") -> Any:
    """A torch built for `kind`."""
    return SimpleNamespace(
        accelerator=SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type=kind)),
        **{kind: module},
    )


HOST = socket.gethostname()
CPU = Device(id=f"cpu:{HOST}:{os.getpid()}", kind="cpu", host=HOST)
USED = statistics(1 * GIB, 2 * GIB, 3 * GIB, 4 * GIB, 9 * GIB)
ASLEEP = statistics(0, 0, 0, 0, 9 * GIB)


class Errors(list[tuple[str, str]]):
    """An `on_error` that remembers."""

    def __call__(self, place: str, error: Exception) -> None:
        self.append((place, f"{type(error).__name__}: {error}"))


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a module in torch's place."""
    for variable in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    return lambda module: monkeypatch.setitem(sys.modules, "torch", module)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.usefixtures("no_torch")
def test_without_torch_the_process_is_one_cpu_device() -> None:
    """`cpu:<host>:<pid>`, with host and process memory and nothing of an allocator."""
    assert devices.inventory() == [CPU]
    [reading] = devices.Reader(3)()
    assert (reading.rank, reading.host, reading.pid, reading.device) == (3, HOST, os.getpid(), 0)
    assert reading.process_rss
    assert reading.host_used
    assert reading.host_total
    assert reading.allocator_allocated is None
    assert reading.allocator_peak_reserved is None
    assert reading.device_used is None
    assert reading.device_total is None


def test_torch_is_never_imported() -> None:
    """A process that has not imported torch still hasn't after a reading."""
    script = (
        "import sys\n"
        "from otel_grpo import devices\n"
        "devices.Reader(0, devices=devices.inventory())()\n"
        "raise SystemExit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_accelerator_that_is_not_initialised_is_not_touched(install: Any) -> None:
    """Nothing is asked of it but whether it is initialised; the process is a cpu device."""
    module = FakeDeviceModule([USED], initialised=False)
    install(fake_torch(module))
    assert devices.inventory() == [CPU]
    assert devices.Reader(0)()[0].allocator_allocated is None
    assert module.asked == []


def test_a_torch_in_the_middle_of_its_import_is_no_accelerator(install: Any) -> None:
    """The module is in `sys.modules` before it has any attribute."""
    install(type(sys)("torch"))
    assert devices.inventory() == [CPU]


def test_a_torch_built_without_an_accelerator(install: Any) -> None:
    module = fake_torch(FakeDeviceModule())
    module.accelerator.current_accelerator = lambda: None
    install(module)
    assert devices.inventory() == [CPU]


def test_one_rank_of_many_has_the_device_that_it_uses(install: Any) -> None:
    """Eight devices are visible to each of eight ranks: only the used one is this rank's."""
    uuids = [f"0000-{index}" for index in range(8)]
    module = FakeDeviceModule([UNUSED] * 5 + [USED] + [UNUSED] * 2, uuids, current=5)
    install(fake_torch(module))
    inventory = devices.inventory()
    assert inventory == [Device("GPU-0000-5", "cuda", HOST, "Fake H1", 96 * GIB)]
    [reading] = devices.Reader(5, devices=inventory)()
    assert reading.device == 0
    assert reading.allocator_allocated == 1 * GIB
    assert reading.allocator_reserved == 2 * GIB
    assert reading.allocator_peak_allocated == 3 * GIB
    assert reading.allocator_peak_reserved == 4 * GIB
    assert reading.device_used == 36 * GIB
    assert reading.device_total == 96 * GIB
    # The driver is asked about no other device: that would create a context there.
    assert {ask for ask in module.asked if ask.startswith("mem_get_info")} == {"mem_get_info 5"}


def test_a_process_with_several_devices_has_a_reading_for_each(install: Any) -> None:
    """`device` points into the inventory that was given, which may hold other ranks' devices."""
    module = FakeDeviceModule([USED, UNUSED, USED], ["a", "b", "c"])
    install(fake_torch(module))
    assert [device.id for device in devices.inventory()] == ["GPU-a", "GPU-c"]
    assert [reading.device for reading in devices.Reader(0)()] == [0, 1]
    job = [Device("GPU-x", "cuda", "other"), Device("GPU-c", "cuda", HOST)]
    assert [reading.device for reading in devices.Reader(0, devices=job)()] == [None, 1]


def test_a_sleeping_device_is_still_the_process_s(install: Any) -> None:
    """All memory given back, peaks reset by the trainer: 0 bytes are a true reading."""
    module = FakeDeviceModule([UNUSED, ASLEEP], ["a", "b"])
    install(fake_torch(module))
    assert [device.id for device in devices.inventory()] == ["GPU-b"]
    assert devices.Reader(0)()[0].allocator_reserved == 0


def test_nothing_allocated_yet_is_the_current_device(install: Any) -> None:
    """Its identity is known, its allocator has said nothing, its driver is not asked."""
    module = FakeDeviceModule([UNUSED, UNUSED], ["a", "b"], current=1)
    install(fake_torch(module))
    assert [device.id for device in devices.inventory()] == ["GPU-b"]
    [reading] = devices.Reader(0)()
    assert reading.device == 0
    assert reading.allocator_allocated is None
    assert reading.device_used is None
    assert not any(ask.startswith("mem_get_info") for ask in module.asked)


def test_the_current_device_is_that_of_the_thread_that_trains(install: Any) -> None:
    """Another thread's current device is 0 whatever the trainer chose: it is not asked there."""
    module = FakeDeviceModule([UNUSED] * 4, ["a", "b", "c", "d"], current=3)
    install(fake_torch(module))
    reader = devices.Reader(0, devices=devices.inventory())
    module.current, module.asked = 0, []
    with ThreadPoolExecutor(1) as pool:
        [reading] = pool.submit(reader).result()
    assert reading.device == 0  # of the inventory, which has GPU-d alone
    assert "current_device" not in module.asked


def test_a_process_that_starts_its_accelerator_later(install: Any) -> None:
    """No current device is known then: nothing is guessed until it has had memory on one."""
    module = FakeDeviceModule([UNUSED, UNUSED], ["a", "b"], initialised=False)
    install(fake_torch(module))
    reader = devices.Reader(0, devices=[Device("GPU-b", "cuda", HOST)])
    module.initialised = True
    assert [reading.device for reading in reader()] == [None]
    module.devices[1] = USED
    assert [reading.device for reading in reader()] == [0]


@pytest.mark.parametrize("general", [True, False])
def test_a_vendor_s_module_without_statistics(install: Any, *, general: bool) -> None:
    """`torch.accelerator` is asked in its place; where that has none either, nothing is known."""

    class Module(FakeDeviceModule):
        memory_stats = mem_get_info = None

    module = Module([UNUSED, USED], current=1)
    torch = fake_torch(module, kind="vendor")
    if general:
        torch.accelerator.memory_stats = lambda index: module.devices[index]
        torch.accelerator.get_memory_info = lambda index: (10 * index, 96)
    install(torch)
    errors = Errors()
    [reading] = devices.Reader(0, on_error=errors)()
    assert errors == []
    assert reading.device == 0
    assert reading.allocator_reserved == (2 * GIB if general else None)
    assert reading.device_used == (86 if general else None)


@pytest.mark.parametrize(
    ("kind", "variable", "visible", "index"),
    [
        ("npu", "ASCEND_RT_VISIBLE_DEVICES", "6,3", "3"),
        ("npu", "ASCEND_RT_VISIBLE_DEVICES", "6", "1"),
        ("npu", "ASCEND_RT_VISIBLE_DEVICES", "", "1"),
        ("cuda", "CUDA_VISIBLE_DEVICES", "4, 5", "5"),
        ("xpu", "CUDA_VISIBLE_DEVICES", "4,5", "1"),
    ],
)
def test_without_a_uuid_the_index_is_the_host_s(
    install: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    variable: str,
    visible: str,
    index: str,
) -> None:
    """Eight actors that see one device each all call it 0; the variable says which it is."""
    monkeypatch.setenv(variable, visible)
    install(fake_torch(FakeDeviceModule([UNUSED, USED]), kind=kind))
    assert [device.id for device in devices.inventory()] == [f"{HOST}:{index}"]


def test_a_slice_of_a_device_is_a_device(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slices of one device are two; CUDA_VISIBLE_DEVICES names them, else the model's name."""
    module = FakeDeviceModule([USED], ["1234"])
    install(fake_torch(module))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5678,MIG-9999")
    assert [device.id for device in devices.inventory()] == ["MIG-5678"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    module.name = "Fake H1 MIG 1g.10gb"
    assert [device.id for device in devices.inventory()] == ["MIG-1234"]


def test_devices_that_trainers_and_generators_share_count_once(tmp_path: Path) -> None:
    """8 trainers and 4 generators on 8 devices of 2 hosts, and 2 slices: 10, each with its roles."""
    trainers = [Device(f"{host}:{i}", "npu", host) for host in "ab" for i in range(4)]
    generators = [*trainers[:4], Device("MIG-1", "cuda", "a"), Device("MIG-2", "cuda", "a")]
    roles = [["train"]] * 8 + [["generate"]] * 6
    with otel_grpo.start_run(
        tmp_path / "run", trainer="loop", devices=trainers + generators, device_roles=roles,
        readings=list,
    ) as run, run.iteration() as it:  # fmt: skip
        it.consumed("r", prompt_lengths=[1], completion_lengths=[9])
    record = next(iter(read_records(tmp_path / "run"))).value
    assert record.metrics["devices"] == 10
    shared = [(i, ["train", "generate"]) for i in range(4)]
    assert record.attributes.devices == [
        *shared, *((i, ["train"]) for i in range(4, 8)), (8, ["generate"]), (9, ["generate"])
    ]  # fmt: skip


def test_without_a_uuid_the_id_is_host_and_index(install: Any) -> None:
    install(fake_torch(FakeDeviceModule([UNUSED, USED]), kind="xpu"))
    assert devices.inventory() == [Device(f"{HOST}:1", "xpu", HOST, "Fake H1", 96 * GIB)]


def test_an_older_torch_is_asked_by_its_cuda_module(install: Any) -> None:
    """No `torch.accelerator` before 2.6."""
    module = fake_torch(FakeDeviceModule([USED], ["a"]))
    del module.accelerator
    install(module)
    assert [device.id for device in devices.inventory()] == ["GPU-a"]


def test_a_failed_driver_reading_is_absent_and_told(install: Any) -> None:
    """The allocator's figures are not lost with it."""
    install(fake_torch(FakeDeviceModule([USED], ["a"], driver_error=RuntimeError("gone"))))
    errors = Errors()
    [reading] = devices.Reader(0, on_error=errors)()
    assert errors == [("devices.torch.driver", "RuntimeError: gone")]
    assert reading.device_used is None
    assert reading.allocator_reserved == 2 * GIB


def test_a_failed_allocator_reading_is_absent_and_told(install: Any) -> None:
    """The device is then the current one; no figure of it becomes 0."""
    install(fake_torch(FakeDeviceModule([USED], ["a"], allocator_error=RuntimeError("pluggable"))))
    errors = Errors()
    [reading] = devices.Reader(0, on_error=errors)()
    assert errors == [("devices.torch.allocator", "RuntimeError: pluggable")]
    assert reading.device == 0
    assert reading.allocator_allocated is None


def test_a_device_that_can_t_be_told_is_not_called_a_cpu(install: Any) -> None:
    """No inventory and no device in the reading: unknown, not guessed."""
    install(fake_torch(FakeDeviceModule([USED], ["a"], probe_error=RuntimeError("driver"))))
    errors = Errors()
    assert devices.inventory(on_error=errors) == []
    [reading] = devices.Reader(0, devices=[CPU], on_error=errors)()
    assert reading.device is None
    assert reading.process_rss
    assert errors == [("devices.torch.probe", "RuntimeError: driver")] * 2


def test_failed_host_and_process_readings_are_absent_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> int:
        raise PermissionError("hidden")

    monkeypatch.setattr("otel_grpo.devices.host.host_memory", fail)
    monkeypatch.setattr("otel_grpo.devices.host.process_rss", fail)
    errors = Errors()
    [reading] = devices.Reader(0, on_error=errors)()
    assert reading.host_used is reading.host_total is reading.process_rss is None
    assert {place for place, _ in errors} == {"devices.host", "devices.process"}


def test_ctrl_c_in_a_reading_is_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only errors are swallowed: an interrupt passes."""

    def interrupt() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("otel_grpo.devices.host.process_rss", interrupt)
    with pytest.raises(KeyboardInterrupt):
        devices.Reader(0)()


def test_real_torch_on_a_cpu() -> None:
    """Where torch is installed: it is looked at and its accelerator stays uninitialised."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("has an accelerator")
    assert devices.inventory() == [CPU]
    assert devices.Reader(0)()[0].allocator_allocated is None
    assert not torch.cuda.is_initialized()
