"""A cluster of real daemons, ended and checked for leftovers after each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hypha_tui.local_cluster import LocalCluster
from tests.integration.support import processes_naming


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """An empty cluster in the test's folder. Its nodes must end by SIGTERM, and leave no process behind."""
    with LocalCluster(tmp_path / "cluster") as made:
        yield made
        codes = made.stop()
        assert all(code in (0, -9) for code in codes.values()), {
            name: (code, made.nodes[name].last_lines(20)) for name, code in codes.items() if code not in (0, -9)
        }
    assert processes_naming(str(tmp_path)) == []
