"""What to fetch for a whole version: with fragments, commits say what it is known by; files are made for who asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from node.errors import PeerProtocol
from node.wire import VersionFile, WholeVersion

if TYPE_CHECKING:
    from node.network.overlay import Overlay

WHOLE_S = 60.0


class Wholes:
    """Asks the parameter servers of one job."""

    def __init__(self, overlay: Overlay, job_id: str, fragments: int) -> None:
        self._overlay = overlay
        self._job_id = job_id
        self._fragments = fragments

    async def of(self, peer_id: str, files: Sequence[VersionFile]) -> tuple[VersionFile, ...]:
        """The whole files of the version that these stand for. Raises `PeerError`, `TimeoutError`."""
        if self._fragments == 1:
            return tuple(files)
        number = files[0].number
        request = WholeVersion(job_id=self._job_id, number=number)
        found = (await self._overlay.call(peer_id, request, timeout_s=WHOLE_S)).files
        kinds = sorted((file.kind, file.number) for file in found)
        if kinds != sorted((file.kind, number) for file in files):
            raise PeerProtocol(f"{peer_id} has other files of version {number} than it has committed")
        return tuple(found)
