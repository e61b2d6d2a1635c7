"""NVML by the real nvidia-ml-py, over a library with the driver's C interface."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
MIG = "MIG-cccccccc-0000-0000-0000-000000000000"
GIB = 2**30

Child = Callable[..., Any]

READ = """
from otel_grpo.devices.nvml import Nvml
errors, nvml = [], Nvml()
def told(place, error):
    errors.append([place, type(error).__name__])
def read(uuid):
    return nvml.read(uuid, told)
"""

# A process that has used the second of two devices that it sees, in the driver's order the first.
TORCH = f"""
import sys
from types import SimpleNamespace
uuids = ["{B[4:]}", "{A[4:]}"]
def statistics(ordinal):
    sign = {{"reserved_bytes.all.allocated": ordinal, "reserved_bytes.all.current": 7 * ordinal}}
    return sign if ordinal else {{}}
def info(ordinal):
    asked.append(ordinal)
    return 1, 3
asked = []
cuda = SimpleNamespace(
    is_initialized=lambda: True, device_count=lambda: 2, current_device=lambda: 1,
    memory_stats=statistics, mem_get_info=info,
    get_device_properties=lambda i: SimpleNamespace(name="H", total_memory=9, uuid=uuids[i]),
)
accelerator = SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type="cuda"))
sys.modules["torch"] = SimpleNamespace(accelerator=accelerator, cuda=cuda)
"""


def test_a_device_is_found_by_its_uuid(child: Child) -> None:
    """Each figure in its unit, of each device; an energy beyond 32 bits is whole."""
    a, b, errors = child(READ + f"result = [read('{A}'), read('{B}'), errors]")
    assert a == {
        "device_used": 36 * GIB, "device_total": 96 * GIB, "utilization": 87,
        "power_mw": 650_000, "energy_mj": 5000, "temperature_c": 61,
    }  # fmt: skip
    assert (b["energy_mj"], b["utilization"]) == (9_000_000_000, 3)
    assert errors == []


def test_a_slice_of_a_device_tells_its_memory(child: Child, tmp_path: Path) -> None:
    """What it never answers is unknown, not an error, and it is not asked again."""
    first, again, errors = child(READ + f"result = [read('{MIG}'), read('{MIG}'), errors]")
    assert first == again == {"device_used": GIB, "device_total": 10 * GIB}
    assert errors == []
    calls = Counter((tmp_path / "calls").read_text().split())
    assert calls["nvmlDeviceGetMemoryInfo"] == 2
    assert calls["nvmlDeviceGetPowerUsage"] == calls["nvmlDeviceGetUtilizationRates"] == 1
    assert calls["nvmlInitWithFlags"] == calls["nvmlDeviceGetHandleByUUID"] == 1


@pytest.mark.parametrize(
    ("driver", "absent"), [("OLD", {"energy_mj"}), ("NEW", set()), ("TODAY", set())]
)
def test_a_function_that_this_driver_lacks(child: Child, driver: str, absent: set[str]) -> None:
    """An older driver has no energy; a newer one tells the temperature under another name."""
    values, errors = child(READ + f"result = [read('{A}'), errors]", driver=driver)
    everything = {
        "device_used", "device_total", "utilization", "power_mw", "energy_mj", "temperature_c"
    }  # fmt: skip
    assert values.keys() == everything - absent
    assert values["temperature_c"] == 61
    assert errors == []


def test_a_device_that_is_lost_is_told_each_time(child: Child) -> None:
    """What was read before the error counts, the rest is unknown, never 0."""
    values, errors = child(
        READ + f"result = [[read('{A}') for _ in range(3)], errors]",
        STUB_ERROR="nvmlDeviceGetPowerUsage=15",
    )
    assert values == [{"device_used": 36 * GIB, "device_total": 96 * GIB, "utilization": 87}] * 3
    assert errors == [["devices.nvml", "NVMLError_GpuIsLost"]] * 3


@pytest.mark.parametrize(
    ("function", "code", "told"),
    [
        ("nvmlInitWithFlags", 9, ["devices.nvml.init", "NVMLError_DriverNotLoaded"]),
        ("nvmlDeviceGetHandleByUUID", 4, ["devices.nvml.identity", "NVMLError_NoPermission"]),
    ],
)
def test_a_driver_that_can_t_be_had_is_told_once(
    child: Child, function: str, code: int, told: list[str]
) -> None:
    """And never tried again."""
    values, errors = child(
        READ + f"result = [[read('{A}') for _ in range(3)], errors]",
        STUB_ERROR=f"{function}={code}",
    )
    assert values == [{}, {}, {}]
    assert errors == [told]


def test_without_the_driver_s_library_nothing_is_known(child: Child) -> None:
    """The package is there, the library is not."""
    values, errors = child(
        READ + f"import pynvml, ctypes\nresult = [read('{A}'), errors]", LD_LIBRARY_PATH="/nowhere"
    )
    if values:
        pytest.skip("this machine has a driver, and a device of that name")
    assert errors == []


def test_without_the_package_nobody_is_told() -> None:
    """Not to have installed it is no error."""
    script = (
        f"import sys\nsys.modules['pynvml'] = None\n{READ}"
        "assert read('GPU-x') == {} and not errors\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_nvml_wins_over_torch(child: Child) -> None:
    """The used device alone is read, by its UUID whatever its number, and torch's driver call is
    spared; without NVML it is made.
    """
    script = f"""{TORCH}
from dataclasses import asdict
from otel_grpo import devices
result = [[asdict(reading) for reading in devices.Reader(0)()], asked]
"""
    [reading], asked = child(script)
    assert (reading["device"], reading["device_source"]) == (0, "nvml")
    assert (reading["device_used"], reading["device_total"]) == (36 * GIB, 96 * GIB)
    assert (reading["allocator_reserved"], reading["energy_mj"]) == (7, 5000)
    assert asked == []
    [reading], asked = child(script, STUB_ERROR="nvmlInitWithFlags=999")
    assert (reading["device_source"], reading["device_used"], asked) == ("torch", 2, [1])
    assert reading["energy_mj"] is None
    [reading], asked = child(script, STUB_ERROR="nvmlDeviceGetMemoryInfo=3")
    assert (reading["device_source"], reading["device_used"], asked) == ("torch", 2, [1])
    assert reading["energy_mj"] == 5000


RUN = (
    TORCH
    + """
import os, otel_grpo
from pathlib import Path
from otel_grpo.records.reader import read_records, read_summary
path = Path("run")
os.environ["OTEL_GRPO_SAMPLE_INTERVAL"] = "0"
with otel_grpo.start_run(path, trainer="loop") as run:
    for number in range(3):
        with run.iteration() as it:
            it.memory()
            run.sampler.wait(run.window.requests)
lines = [line.value for line in read_records(path / "metrics_raw.jsonl")]
summary = read_summary(path)
"""
)


def test_energy_of_windows_adds_up(child: Child) -> None:
    """A joule from look to look: each window begins with the last look of the one before."""
    result = child(
        RUN + "rows = [l.attributes.hardware for l in lines[:3]]\n"
        "result = [[r.energy_mj for r in rows], [l.metrics['energy_mj'] for l in lines[:3]],"
        " summary.energy_mj, rows[0].device, rows[0].utilization,"
        " [d.id for d in summary.world.devices], summary.observed.errors]"
    )
    rows, energy, total, device, utilization, ids, errors = result
    # Two windows may share one look, so how many there are is not certain.
    assert rows[0][0] == 5000
    assert [row[0] for row in rows[1:]] == [row[-1] for row in rows[:-1]]
    assert energy == [row[-1] - row[0] for row in rows]
    assert total == rows[-1][-1] - 5000 > 0
    assert set(device) == {0}
    assert set(utilization) == {87}
    assert (ids, errors) == ([A], {})


def test_a_driver_that_hangs_costs_its_readings(child: Child) -> None:
    """Training, files and exit go on; all requests are missed, by place."""
    errors, status, memory = child(
        RUN.replace("run.sampler.wait(run.window.requests)", "pass")
        + "result = [summary.observed.errors, summary.status,"
        " [bool(l.attributes.memory) for l in lines[:3]]]",
        STUB_HANG="nvmlDeviceGetMemoryInfo",
    )
    assert errors == {"memory.late": 6}
    assert status == "completed"
    assert memory == [False] * 3


def test_the_driver_of_this_machine() -> None:
    """Where there is a device: what NVML says of it makes sense."""
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        pytest.skip("no driver of NVIDIA's here")
    if not count:
        pytest.skip("no device of NVIDIA's here")
    from otel_grpo.devices.nvml import Nvml

    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    errors: list[str] = []
    values = Nvml().read(uuid, lambda place, error: errors.append(place))
    assert errors == []
    assert 0 <= values["device_used"] <= values["device_total"]
    assert 0 <= values.get("utilization", 0) <= 100
