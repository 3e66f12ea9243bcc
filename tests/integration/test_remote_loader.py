"""The streaming loader over mutual TLS from real data nodes, some of which die."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from hypha_tui.local_cluster import LocalCluster
from node.errors import DatasetError, PeerUnreachable, PeerUntrusted, Refused
from node.streaming import StreamingConfig, StreamingLoader
from node.streaming.remote import RemoteSource
from node.tensorfile import write_tensors
from tests.integration.support import until
from tests.unit.streaming_data import epoch_of, ids

SLICES, ROWS = 24, 100

READER = """
import sys
import threading
from pathlib import Path
from node.streaming import StreamingConfig, StreamingLoader
from node.streaming.remote import RemoteSource
from node.streaming.state import from_json

def keep(state):
    print(state.to_json().decode(), flush=True)

address, base, cache, state = sys.argv[1:]
pem = {kind: Path(f"{base}-{kind}.pem") for kind in ("cert", "key", "trust")}
source = RemoteSource("tiny", [address], cache=Path(cache), **pem)
loader = StreamingLoader(source, StreamingConfig(shuffle_seed=4, checkpoint_every=1), on_checkpoint=keep)
if state:
    loader.restore(from_json(state))
for row in loader:
    print(int(row["id"]), flush=True)
"""


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for index in range(SLICES):
        numbers = np.arange(index * ROWS, (index + 1) * ROWS)
        tensors = {"id": ("I64", [ROWS], numbers.tobytes()), "x": ("U8", [ROWS, 512], bytes(ROWS * 512))}
        write_tensors(folder / f"slice-{index:04}.safetensors", tensors, durable=False)
    return folder


def test_rows_come_once_and_in_order_though_data_nodes_and_readers_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    names = ("data-1", "data-2", "reader")
    cluster.make_authority(names)
    for name in names[:2]:
        cluster.start(name, "data", config=f'dataset_path = ["{made(tmp_path / name / "tiny")}"]')
    cluster.wait_ready(*cluster.nodes.values())
    base = cluster.certificates / "reader"
    pem = {kind: Path(f"{base}-{kind}.pem") for kind in ("cert", "key", "trust")}
    addresses = [node.address.partition("/p2p/")[0] for node in cluster.nodes.values()]

    def is_served(address: str) -> bool:
        try:
            RemoteSource("tiny", [address], cache=tmp_path / "none", **pem).close()
        except Refused:
            return False
        return True

    for address in addresses:  # a node is ready before it has read its datasets
        until(lambda: is_served(address), within_s=20, what="the dataset is served")  # noqa: B023 - used at once
    config = StreamingConfig(shuffle_seed=4)
    undisturbed = RemoteSource("tiny", addresses, cache=tmp_path / "undisturbed", **pem)
    with StreamingLoader(undisturbed, config) as loader:
        whole = epoch_of(loader)
        assert sorted(whole) == list(range(SLICES * ROWS))
        assert loader.stats().remote_samples == len(whole)

    # a cache with room for three slices, and the node that serves is killed on the way
    small = RemoteSource("tiny", addresses, cache=tmp_path / "small", cache_bytes=3 * 60_000, **pem)
    with StreamingLoader(small, StreamingConfig(shuffle_seed=4, prefetch_slices=1)) as loader:
        log = [one for _ in range(250) for one in ids(loader.next() or {})]
        cluster.kill("data-1")
        assert log + epoch_of(loader) == whole
        assert sum(path.stat().st_size for path in (tmp_path / "small").iterdir()) <= 3 * 60_000

    # one data node is away when the source is opened, and the only one later on; the other one dies in the meantime
    late = RemoteSource("tiny", addresses, cache=tmp_path / "late", **pem)
    with StreamingLoader(late, StreamingConfig(shuffle_seed=4, prefetch_slices=0)) as loader:
        log = [one for _ in range(150) for one in ids(loader.next() or {})]
        cluster.kill("data-2")
        rest = threading.Thread(target=lambda: log.extend(epoch_of(loader)))
        rest.start()
        cluster.restart("data-1")
        rest.join(60)
        assert log == whole
    cluster.kill("data-1")
    cluster.restart("data-2")
    until(lambda: is_served(addresses[1]), within_s=20, what="the dataset is served")

    # a reader is killed twice, and goes on from the state that it printed last
    log, state = [], ""
    for stop in (700, 5, 10_000):
        command = [sys.executable, "-c", READER, addresses[1], str(base), str(tmp_path / "killed"), state]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            for _, line in zip(range(2 * stop), reader.stdout, strict=False):
                if line.startswith("{"):
                    state = line
                else:
                    log.append(int(line))
            reader.kill()
    assert log == whole

    with pytest.raises(PeerUnreachable, match="Connection refused"):
        RemoteSource("tiny", addresses[:1], cache=tmp_path / "none", **pem)
    with pytest.raises(Refused, match="no dataset 'other' here"):
        RemoteSource("other", addresses[1:], cache=tmp_path / "none", **pem)
    with pytest.raises(DatasetError, match="nobody has the version 000000000000 of tiny"):
        RemoteSource("tiny", addresses[1:], cache=tmp_path / "none", digest="0" * 64, **pem)
    operator = {kind: Path(f"{cluster.certificates / 'operator'}-{kind}.pem") for kind in pem}
    with pytest.raises((Refused, PeerUntrusted), match="operator"):
        RemoteSource("tiny", addresses[1:], cache=tmp_path / "none", **operator)
