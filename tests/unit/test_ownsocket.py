"""Connections that break during their handshake, under the loop that nodes run on."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
import threading

import pytest

from node.network.ownsocket import OwnSocket, own_socket
from tests.support import MakeIdentity

uvloop = pytest.importorskip("uvloop")


def test_a_connection_that_is_reset_closes_nothing_else(make_identity: MakeIdentity) -> None:
    """Once the loop has closed it, its number belongs to whoever opens something next."""
    context = make_identity("a").load().client_context()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            for _ in range(60):
                taken, _ = server.accept()
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                taken.close()

        thread = threading.Thread(target=reset)
        thread.start()
        address = server.getsockname()

        async def connect() -> int:
            """How often the number was somebody else's by the time the socket was let go."""
            taken = 0
            loop = asyncio.get_running_loop()
            for _ in range(60):
                made = own_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", address))
                made.setblocking(False)
                number = made.fileno()
                with pytest.raises(OSError):
                    await loop.sock_connect(made, address)
                    await loop.create_connection(asyncio.Protocol, ssl=context, sock=made, server_hostname="x.peer")
                await asyncio.sleep(0.01)
                mine, theirs = os.pipe()
                taken += number in (mine, theirs)
                made.close()
                del made
                gc.collect()
                os.write(theirs, b"x")
                assert os.read(mine, 1) == b"x"
                os.close(mine)
                os.close(theirs)
            return taken

        taken = uvloop.run(connect())
        thread.join()
    assert taken, "nothing was put to the test"


def test_a_socket_of_its_own_is_closed_by_hand_and_when_it_is_forgotten() -> None:
    for is_forgotten in (False, True):
        made = OwnSocket(socket.AF_INET, socket.SOCK_STREAM)
        number = made.fileno()
        if is_forgotten:
            with pytest.warns(ResourceWarning):
                del made
                gc.collect()
        else:
            made.close()
        with pytest.raises(OSError):
            os.fstat(number)
