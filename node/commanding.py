"""Signed commands: made so that each is good for one time, and opened by whoever carries them out.

Nothing is obeyed unless an operator signed it, this node itself (for who is on its own machine), or a node that its
owner lists in `operators`.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from node.errors import PeerUntrusted, Refused
from node.wire import Once, Signed

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.network.overlay import Overlay
    from node.store import Store

C = TypeVar("C")

GOOD_FOR_S = 86_400.0
"""Certificates want clocks that are right to about a day, so this asks nothing more of a cluster."""
KEPT_S = 2 * GOOD_FOR_S
"""No command of an older nonce is in time any more, however wrong its signer's clock was."""
KEPT_MOST = 100_000
REPEAT_S = 30.0
"""A call that a closing connection swallowed is sent again within its deadline: that is answered as the first was."""


@dataclass(frozen=True, slots=True)
class Opened(Generic[C]):
    """A command, who signed it, and what makes it good for one time."""

    by: str
    command: C
    once: Once


def payload_of(command: msgspec.Struct) -> bytes:
    """What is signed: the command, with a new nonce and the time."""
    fields: dict[str, Any] = msgspec.to_builtins(command)
    once = msgspec.to_builtins(Once(nonce=secrets.token_hex(16), signed_unix=time.time()))
    return msgspec.msgpack.encode(fields | once)


class Orders(Generic[C]):
    """Opens commands of one kind (a union of messages), and sees to it that each is carried out once."""

    def __init__(
        self, kind: Any, config: NodeConfig, overlay: Overlay, store: Store, wall: Callable[[], float] = time.time
    ) -> None:
        self._decoder: msgspec.msgpack.Decoder[C] = msgspec.msgpack.Decoder(kind)
        self._config = config
        self._overlay = overlay
        self._store = store
        self._wall = wall

    def open(self, signed: Signed) -> Opened[C]:
        """The command; raises `Refused` unless its signer may give one."""
        by, payload = signer_of(signed, self._config, self._overlay)
        try:
            return Opened(by, self._decoder.decode(payload), msgspec.msgpack.decode(payload, type=Once))
        except (ValueError, msgspec.MsgspecError) as error:
            raise Refused("invalid", f"the command cannot be read: {error}") from error

    async def take(self, opened: Opened[C]) -> bool:
        """Whether to carry the command out now. False: it was a moment ago. Raises `Refused` for one that is spent."""
        once, now = opened.once, self._wall()
        if not 16 <= len(once.nonce) <= 64:
            raise Refused("invalid", "the command has no nonce", hint="sign it with a newer hypha-tui")
        late_s = now - once.signed_unix
        if abs(late_s) > GOOD_FOR_S:
            when = f"{abs(late_s) / 3600:.0f} h {'ago' if late_s > 0 else 'from now'}"
            hint = "give it anew; check the clocks of both machines"
            raise Refused("stale", f"the command was signed {when}, by this node's clock", hint=hint)
        taken = await self._store.write(lambda db: _take(db, once.nonce, now))
        if taken is None:
            return True
        if not 0 <= now - taken <= REPEAT_S:
            raise Refused("stale", "this command was carried out before: each is good for one time")
        return False


def signer_of(signed: Signed, config: NodeConfig, overlay: Overlay) -> tuple[str, bytes]:
    """The name of a signer who may command, and what was signed. Raises `Refused`."""
    try:
        signer, payload = overlay.identity.trust.open(signed)
    except PeerUntrusted as error:
        raise Refused("denied", f"the command is not validly signed: {error.message}") from error
    if signer.role != "operator" and signer.peer_id not in (overlay.peer_id, *config.operators):
        hint = (
            "submit with an operator's certificate (--cert), at the machine of the node that is to obey, "
            f"or list {signer.peer_id} in its `operators`"
        )
        raise Refused("denied", f"{signer.name} is not an operator", hint=hint)
    return signer.name, payload


def _take(db: sqlite3.Connection, nonce: str, now: float) -> float | None:
    """Keep a nonce; when it was taken, if it was."""
    found = db.execute("SELECT taken_unix FROM commands WHERE nonce = ?", (nonce,)).fetchone()
    if found is not None:
        return float(found[0])
    db.execute("DELETE FROM commands WHERE taken_unix < ?", (now - KEPT_S,))
    (count,) = db.execute("SELECT count(*) FROM commands").fetchone()
    if count >= KEPT_MOST:
        raise Refused("busy", f"{KEPT_MOST:,} commands in two days are all that this node keeps apart")
    db.execute("INSERT INTO commands (nonce, taken_unix) VALUES (?, ?)", (nonce, now))
    return None
