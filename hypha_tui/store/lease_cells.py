"""What a lease's row says of its worker and its task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypha_tui.store import text
from node.views import LeaseView, PeerView

if TYPE_CHECKING:
    from hypha_tui.store.columns import Cell, Look


def rtt_ms(lease: LeaseView, look: Look) -> float:
    """The round trip to its worker; 0 where it is not known."""
    peer = look.store.get(PeerView, lease.worker)
    return 0.0 if peer is None or peer.rtt_ms is None else peer.rtt_ms


def rtt(lease: LeaseView, look: Look) -> Cell:
    """The same as text."""
    return text.number(rtt_ms(lease, look) or None, 0), "text"


def samples_per_s(lease: LeaseView, look: Look) -> float:
    """How fast its task goes through its samples while it computes; 0 before its first batch."""
    task = look.store.task_of(lease)
    return task.samples / task.batches / task.batch_s if task is not None and task.batches and task.batch_s else 0.0


def speed(lease: LeaseView, look: Look) -> Cell:
    """The same as text."""
    return text.number(samples_per_s(lease, look) or None, 1), "text"


def last_error(lease: LeaseView, look: Look) -> Cell:
    """Why it ended, or what is wrong with its task."""
    task = look.store.task_of(lease)
    words = lease.reason or (task.detail if task is not None else "")
    return (look.store.with_names(words), "late") if words else ("-", "dim")
