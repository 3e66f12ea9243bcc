"""What an exchange costs at the least: plain TCP on loopback, arrays in memory, no TLS, no files, no digests."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Sequence

MEMBERS = 4


def member(port: int, elements: int) -> dict[str, float]:
    """One exchange with the server: seconds from its word until the sum is here."""
    data = memoryview(bytearray(elements * 4))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv(1)
        began = time.perf_counter()
        connection.sendall(data)
        left = data
        while left:
            left = left[connection.recv_into(left) :]
        return {"all": time.perf_counter() - began}


def server(elements: int) -> None:
    """Plain TCP: take four arrays, sum, send the sum to all; the seconds of one round for each line on stdin."""
    import numpy as np

    arrays = [np.zeros(elements, dtype=np.float32) for _ in range(MEMBERS)]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while sys.stdin.readline():
            connections = [listening.accept()[0] for _ in range(MEMBERS)]

            def take(number: int, connections: list[socket.socket] = connections) -> None:
                left = memoryview(arrays[number]).cast("B")
                while left:
                    left = left[connections[number].recv_into(left) :]

            for connection in connections:
                connection.sendall(b"g")
            began = time.perf_counter()
            _all([threading.Thread(target=take, args=(number,)) for number in range(MEMBERS)])
            total = arrays[0]
            for other in arrays[1:]:
                np.add(total, other, out=total)
            view = memoryview(total).cast("B")
            _all([threading.Thread(target=one.sendall, args=(view,)) for one in connections])
            print(time.perf_counter() - began, flush=True)
            for connection in connections:
                connection.close()


def _all(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
