"""A long way in between: passes bytes on between two Unix sockets, each way so much later.

python -m benchmarks.terminal_proxy TO LISTEN SECONDS
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Every piece, so much later than it came."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1_000)

    async def read() -> None:
        while True:
            piece = await reader.read(1 << 16)
            await pieces.put((loop.time() + delay_s, piece))
            if not piece:
                return

    async def write() -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(due - loop.time(), 0))
            if not piece:
                writer.close()
                return
            writer.write(piece)
            await writer.drain()

    with suppress(ConnectionError):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            tasks.create_task(write())


async def serve(to: str, listen: str, delay_s: float) -> None:
    """Serve until it is ended."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(to)
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pass_on(reader, back, delay_s))
                tasks.create_task(pass_on(there, writer, delay_s))

    server = await asyncio.start_unix_server(connected, listen)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], float(sys.argv[3])))
