"""`GET /observe`: this node's own board, for other nodes. A header, then frames: length-prefixed MessagePack."""

from __future__ import annotations

import aiohttp
import msgspec
from aiohttp import web
from msgspec.structs import replace

from node.api.outlet import Outlet, Outlets
from node.board import Board
from node.errors import PeerProtocol, Refused
from node.views import Delta, Frame
from node.wire import Message, ObserveHeader

PATH = "/observe"
HEARTBEAT_S = 10.0
OBSERVERS = 64
MAX_FRAME_BYTES = 16 << 20


class Observation:
    """Serves the stream; one for each node that observes this one."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._outlets = Outlets(OBSERVERS)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Send a snapshot, then at most four deltas a second and an empty one every 10 s, until the peer goes."""
        if self._outlets.is_full:
            raise Refused("busy", f"{OBSERVERS} nodes observe this one already")
        return await self._outlets.serve(request, "application/octet-stream", self._send)

    def close(self) -> None:
        """End all streams."""
        self._outlets.close()

    async def _send(self, outlet: Outlet) -> None:
        observer = self._board.observe()
        observer.wake(outlet.notify)
        try:
            await outlet.send(framed(ObserveHeader(peer_id=self._board.peer_id)))
            frame: Frame = observer.snapshot()
            seq = 0
            while outlet.is_open:
                seq += 1
                await outlet.send(framed(replace(frame, seq=seq)))
                await outlet.wait(HEARTBEAT_S)
                frame = observer.take() or Delta(seq=0)
        finally:
            observer.close()


def framed(message: Message | Frame) -> bytes:
    """A frame as it is sent."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


async def read_frame(content: aiohttp.StreamReader) -> bytes:
    """The next frame's MessagePack; raises `PeerProtocol` where it is too long, `IncompleteReadError` at the end."""
    size = int.from_bytes(await content.readexactly(4), "big")
    if size > MAX_FRAME_BYTES:
        raise PeerProtocol(f"a frame of {size:,} bytes, at most {MAX_FRAME_BYTES:,} are taken")
    return await content.readexactly(size)
