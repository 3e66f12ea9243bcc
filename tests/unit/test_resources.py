"""What the machine has."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import psutil
import pytest

from node import resources
from node.config import ResourcesConfig
from node.wire import Resources

GPUS = ["GPU-aaaa", "GPU-aabb", "GPU-bbbb"]
HAS = Resources(cpu=8, memory=32, storage=100, gpu=0)


class Machine:
    """Folders that look like /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path, cgroup: str) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write(self.proc / "self" / "cgroup", cgroup)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def set(self, name: str, text: str) -> None:
        self.write(self.cgroups / name, text)

    def cores(self) -> float:
        return resources.cores(self.proc, self.cgroups)

    def memory(self) -> int:
        return resources.memory_bytes(self.proc, self.cgroups)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 0.5), ("9900000 100000", 8)]
)
def test_the_quota_of_a_container_limits_the_cores(tmp_path: Path, quota: str, expected: float) -> None:
    machine = Machine(tmp_path, "0::/a/b")
    machine.set("a/b/cpu.max", quota)
    assert machine.cores() == expected


@pytest.mark.usefixtures("eight_cores")
def test_a_group_around_ours_limits_us_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a/b")
    machine.set("a/b/cpu.max", "max 100000")
    machine.set("a/cpu.max", "200000 100000")
    machine.set("a/b/memory.max", "3000000")
    machine.set("a/memory.max", "2000000")
    assert (machine.cores(), machine.memory()) == (2, 2_000_000)


@pytest.mark.usefixtures("eight_cores")
def test_in_a_container_the_mount_itself_is_our_group(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/../../not/here")
    machine.set("cpu.max", "200000 100000")
    machine.set("memory.max", "2000000")
    assert (machine.cores(), machine.memory()) == (2, 2_000_000)


@pytest.mark.usefixtures("eight_cores")
def test_version_1_groups_are_understood(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/x")
    machine.set("cpu,cpuacct/job/cpu.cfs_quota_us", "400000")
    machine.set("cpu,cpuacct/job/cpu.cfs_period_us", "100000")
    machine.set("memory/job/memory.limit_in_bytes", "1000000")
    machine.set("memory/memory.limit_in_bytes", "9223372036854771712")
    assert (machine.cores(), machine.memory()) == (4, 1_000_000)
    machine.set("cpu,cpuacct/job/cpu.cfs_quota_us", "-1")
    assert machine.cores() == 8


@pytest.mark.usefixtures("eight_cores")
def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert resources.cores(tmp_path, tmp_path) == 8
    assert resources.memory_bytes(tmp_path, tmp_path) == psutil.virtual_memory().total


def test_storage_is_what_is_free_where_the_folder_will_be(tmp_path: Path) -> None:
    assert resources.storage_bytes(tmp_path / "not" / "yet") > 0


def test_the_configuration_overrides_what_is_found() -> None:
    config = ResourcesConfig(cpu=2, gpu=24)
    assert resources.total(config, Path(), found=HAS) == Resources(cpu=2, memory=32, storage=100, gpu=24)
    assert resources.total(ResourcesConfig(), Path(), found=HAS) == HAS


def test_a_claim_above_what_is_there_is_told() -> None:
    config = ResourcesConfig(cpu=2, gpu=24)
    assert resources.overstated(config, HAS) == ["[resources] gpu = 24 is more than this machine has (0)"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, GPUS),
        ("", []),
        ("-1", []),
        ("2,0", ["GPU-bbbb", "GPU-aaaa"]),
        ("0,0", ["GPU-aaaa"]),
        ("1,7,2", ["GPU-aabb"]),
        ("GPU-bb", ["GPU-bbbb"]),
        ("GPU-aa", []),
    ],
)
def test_only_devices_that_cuda_programs_see_count(setting: str | None, expected: list[str]) -> None:
    assert resources.visible(GPUS, setting) == expected


class NVMLError(Exception):
    """As in nvidia-ml-py."""


def driver(*sizes: int | None) -> types.ModuleType:
    def memory(index: int) -> types.SimpleNamespace:
        size = sizes[index]
        if size is None:
            raise NVMLError("not supported")
        return types.SimpleNamespace(total=size)

    module = types.ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(sizes),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}".encode(),
        nvmlDeviceGetName=lambda index: f"NVIDIA H{100 + index // 2 * 100}",
        nvmlDeviceGetMemoryInfo=memory,
    )
    return module


def test_video_memory_is_the_sum_of_the_devices_that_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(10, None, 30))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert resources.gpu_bytes() == 40
    assert resources.gpu_name() == "NVIDIA H100, NVIDIA H200"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2")
    assert resources.gpu_bytes() == 30


def test_a_machine_without_a_driver_has_no_video_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError("library not found")

    module = driver(10)
    module.__dict__["nvmlInit"] = fail
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert resources.gpu_bytes() == 0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert resources.gpu_bytes() == 0
