"""How full and how busy the driver says that GPUs are."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from rltrain.cluster import gpu_memory
from rltrain.core import nvml

RESERVED = 600
"""What the driver keeps, which NVML's first answer counts as used."""


class Device:
    """A GPU of which NVML tells what the test says; no machine of the tests has one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *used: int) -> None:
        self.used = list(used)
        self.busy = [0] * len(used)
        """Percent; -1: the driver does not say it."""
        monkeypatch.setattr(nvml.pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetUtilizationRates", self._rates)
        monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
        monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: int(uuid[-1]))
        monkeypatch.setattr(
            nvml.pynvml,
            "nvmlDeviceGetMemoryInfo",
            lambda handle, version=None: SimpleNamespace(used=self.used[handle] + (0 if version else RESERVED)),
        )

    def _rates(self, handle: int) -> SimpleNamespace:
        if self.busy[handle] < 0:
            raise nvml.NvmlError(nvml.pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=self.busy[handle], memory=1)


def test_how_busy_each_gpu_was_is_a_mean_since_last_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "BUSY_EVERY", 1)
    device = Device(monkeypatch, 10, 20, 30)
    device.busy = [40, 40, -1]
    memory = gpu_memory.GpuMemory(["0", "GPU-1", "2"], sample_s=0.005)
    deadline = time.monotonic() + 10
    while not (found := memory.take_busy()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert found == {"0": 0.4, "GPU-1": 0.4}
    device.busy = [-1, 100, -1]
    time.sleep(0.05)
    memory.take_busy()
    while not (found := memory.take_busy()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert found == {"GPU-1": 1.0}
    memory.stop()


def test_a_peak_between_two_looks_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "SAMPLE_S", 0.005)
    device = Device(monkeypatch, 10, 20)
    memory = gpu_memory.GpuMemory(["0", "GPU-1"])
    device.used = [90, 20]
    _wait_until_sampled(memory, 90)
    device.used = [30, 20]
    assert memory.take() == 90
    assert memory.take() == 30
    memory.stop()


def _wait_until_sampled(memory: gpu_memory.GpuMemory, wanted: int) -> None:
    deadline = time.monotonic() + 10
    while memory._peak_bytes != wanted:  # pyright: ignore[reportPrivateUsage]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.gpu
def test_a_gpu_that_works_is_busy() -> None:
    """The real driver, with a real load."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    watched = gpu_memory.GpuMemory(["0"])
    one = torch.randn(8192, 8192, device="cuda")
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for _ in range(10):
            one @ one
        torch.cuda.synchronize()
        if time.monotonic() < end - 2:
            watched.take_busy()
    assert watched.take_busy()["0"] > 0.8
    watched.stop()
