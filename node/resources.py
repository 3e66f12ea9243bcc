"""What this machine, or the container around us, has: cores, memory, disk, video memory."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from node.config import ResourcesConfig
from node.wire import Resources

GB = 1e9
_UNLIMITED_V1 = 1 << 60


def total(config: ResourcesConfig, storage_dir: Path, found: Resources | None = None) -> Resources:
    """What the node has to offer: what is configured, and for the rest what is found. May take seconds."""
    found = found or discover(storage_dir)
    configured = {key: value for key, value in msgspec.structs.asdict(config).items() if value is not None}
    return msgspec.structs.replace(found, **configured)


def overstated(config: ResourcesConfig, found: Resources) -> list[str]:
    """A line for each configured value that is more than the machine has."""
    lines = []
    for key, value in msgspec.structs.asdict(config).items():
        has = getattr(found, key)
        if value is not None and value > has * 1.001:
            lines.append(f"[resources] {key} = {value:g} is more than this machine has ({has:.6g})")
    return lines


def discover(storage_dir: Path) -> Resources:
    """What there is. Storage is what is free on the file system of `storage_dir`. Asks drivers: may take seconds."""
    return Resources(
        cpu=cores(),
        memory=round(memory_bytes() / GB, 3),
        storage=round(storage_bytes(storage_dir) / GB, 3),
        gpu=round(gpu_bytes() / GB, 3),
    )


def cores(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that we may use: no more than the affinity mask, nor the quota of any control group around us."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(_quotas(proc, cgroups), default=math.inf)
    if quota >= affinity:
        return float(affinity)
    return float(math.floor(quota)) if quota >= 1 else round(quota, 2)


def memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that we may use: the machine's, or the smallest limit of the control groups around us."""
    import psutil

    limits = [int(psutil.virtual_memory().total)]
    for folder in _folders(proc, cgroups, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text.isdigit() and 0 < int(text) < _UNLIMITED_V1:
                limits.append(int(text))
    return min(limits)


def storage_bytes(folder: Path) -> int:
    """Bytes free on the file system that holds `folder`, or would once it exists."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def gpu_bytes() -> int:
    """Memory of the NVIDIA GPUs that CUDA programs of ours would see; 0 without a driver or without nvidia-ml-py."""
    return sum(size for _, size in _gpus())


def gpu_name() -> str:
    """What these GPUs are called: `2x NVIDIA H100`, or empty. Asks drivers: may take seconds."""
    counts = Counter(name for name, _ in _gpus())
    return ", ".join(name if count == 1 else f"{count}x {name}" for name, count in counts.items())


def _gpus() -> list[tuple[str, int]]:
    """Name and memory of each device that CUDA programs of ours would see."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found: dict[str, tuple[str, int]] = {}
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            # MIG and unified-memory devices may not tell
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
                uuid = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
                name = pynvml.nvmlDeviceGetName(handle)
                name = name.decode() if isinstance(name, bytes) else str(name)
                found[uuid] = (name, int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
    except pynvml.NVMLError:
        return []
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return [found[uuid] for uuid in visible(list(found), os.environ.get("CUDA_VISIBLE_DEVICES"))]


def visible(uuids: list[str], setting: str | None) -> list[str]:
    """The devices that CUDA_VISIBLE_DEVICES leaves: indices or beginnings of UUIDs, up to the first that is neither."""
    if setting is None:
        return uuids
    chosen: list[str] = []
    for part in (text.strip() for text in setting.split(",")):
        if part.isdigit() and int(part) < len(uuids):
            match = uuids[int(part)]
        else:
            found = [uuid for uuid in uuids if part and uuid.startswith(part)]
            if len(found) != 1:
                break
            match = found[0]
        if match not in chosen:
            chosen.append(match)
    return chosen


def _quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    for folder in _folders(proc, cgroups, "cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            yield int(quota) / int(period)


def _folders(proc: Path, cgroups: Path, controller: str) -> Iterator[Path]:
    """Our control group's folder and those around it, in version 2 and in version 1 layout."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount = cgroups
        elif controller in controllers.split(","):
            mount = next((cgroups / name for name in (controllers, controller) if (cgroups / name).is_dir()), cgroups)
        else:
            continue
        folder = mount / path.lstrip("/")
        # in a container the path may be the host's: then the mount itself is our group
        while folder != mount and mount in folder.parents:
            yield folder
            folder = folder.parent
        yield mount


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
