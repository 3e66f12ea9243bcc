"""Hostile headers and requests; `python -m benchmarks.fuzz_data` does the same for longer, and measures memory."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from node.addresses import parse
from node.errors import TensorFileError
from node.tensorfile import parse_header
from tests.support import MakeIdentity
from tests.unit.hostile_bytes import Client, header_mutants, request_mutants
from tests.unit.test_data_service import data_node, write_dataset

PATH = "/bulk/datasets/texts/slices/0"


def test_hostile_headers_are_refused_with_a_cause_or_make_sense() -> None:
    sound = 0
    for prefix, size in itertools.islice(header_mutants(random.Random(5)), 4_000):
        try:
            header = parse_header(prefix, size)
        except TensorFileError as error:
            assert len(error.message) < 2_000
            continue
        sound += 1
        assert header.size_bytes == size
        assert all(0 <= info.start <= info.end <= size for info in header.tensors.values())
    assert sound > 50


@pytest.mark.asyncio
async def test_hostile_requests_get_an_answer_or_an_end_while_another_client_fetches(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    folder = write_dataset(tmp_path / "texts", slices=1)
    content = (folder / "s0.safetensors").read_bytes()
    async with data_node(make_identity("data"), tmp_path / "data", folder) as data, asyncio.TaskGroup() as tasks:
        where = parse(data.addresses[0])
        good, bad = (
            Client(where.host, where.port, make_identity(name).load().client_context(), content)
            for name in ("good", "bad")
        )

        async def fetch() -> None:
            while True:
                assert await good.ask(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), keep=True) == 200

        fetching = tasks.create_task(fetch())
        for request, keep in itertools.islice(request_mutants(random.Random(5), PATH, len(content)), 500):
            await bad.ask(request, keep=keep)
        assert bad.statuses[206] > 20
        assert bad.statuses[416] > 20
        assert good.statuses[200] > 50
        fetching.cancel()
        await asyncio.wait([fetching])
        await bad.close()
        await good.close()
