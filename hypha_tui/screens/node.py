"""Node: the node we look through, the link to it, and this terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Container

from hypha_tui.screens.view import Target, View
from hypha_tui.store import text
from hypha_tui.store.cluster import KINDS, Changes
from hypha_tui.store.columns import Look
from hypha_tui.store.summary import LABEL_WIDTH, summary
from hypha_tui.widgets.bars import link_word
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.pick_lines import PickLines
from node.version import __version__
from node.views import PeerView

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp


class NodeView(View):
    """Plain lines."""

    scopes = ("lines",)

    def __init__(self, drawing: Drawing, look: Callable[[], Look]) -> None:
        super().__init__("node", drawing, look)
        self._lines = PickLines(drawing, id="node-lines")

    def compose(self) -> ComposeResult:
        """One panel."""
        with Container(id="node-panel", classes="panel") as panel:
            panel.border_title = "Node"
            yield self._lines

    def sync(self, changes: Changes | None) -> None:
        """All lines; those that differ are painted."""
        look = self.look()
        self._lines.show([*self._link(look), [], *self._terminal(look), [], *self._cluster(look)])

    @property
    def selected(self) -> Target | None:
        """The node we look through."""
        cluster = self.look().store.cluster
        return None if cluster is None else ("peer", cluster.peer_id)

    def _link(self, look: Look) -> list[Line]:
        app, store = cast("HyphaApp", self.app), look.store
        age, link = store.data_age_s(look.now), store.link
        tries = f"   try {link.attempt}, again in {link.retry_s:.1f}s" if link.state == "stale" else ""
        lines = [
            _row("connected to", (text.clean(app.label), "text")),
            _row("link", link_word(look), (tries, "late")),
            _row("data", (f"{text.age(age)} old" if age is not None else "none yet", "text")),
        ]
        lines += [_row("", (part, "late")) for part in text.wrap(link.detail, 100) if link.detail]
        return lines + [_row("", (part, "dim")) for part in text.wrap(link.hint, 100) if link.hint]

    def _terminal(self, look: Look) -> list[Line]:
        app, store = cast("HyphaApp", self.app), look.store
        context = app.context
        marks = [word for word, is_so in (("production", context.production), ("read-only", context.readonly)) if is_so]
        known = ", ".join(f"{len(store.items(kind)):,} {kind}s" for kind in KINDS)
        return [
            _row("context", (text.clean(context.name or "none"), "text"), (f"   {', '.join(marks)}", "late")),
            _row("terminal", (f"hypha-tui {__version__}, theme {app.theme}, glyphs {look.glyphs.name}", "text")),
            _row("drawn", (f"{app.hz:g} times a second at most", "text")),
            _row("known here", (known, "text"), (f"   {len(store.events):,} events", "dim")),
        ]

    def _cluster(self, look: Look) -> list[Line]:
        cluster = look.store.cluster
        if cluster is None:
            return [[("what the node says of the cluster has not come yet", "dim")]]
        roles = "  ".join(f"{role} {number}" for role, number in sorted(cluster.roles.items()))
        lines = [
            _row("cluster", (cluster.authority or "-", "title"), ("   authority", "dim")),
            _row("peers", (f"{cluster.up} of {cluster.peers} up   {roles}", "text")),
        ]
        peer = look.store.get(PeerView, cluster.peer_id)
        if peer is not None:
            lines += [[], _row("this node", (text.clean(peer.name), "title")), *summary(peer, look)]
        return lines


def _row(label: str, *cells: tuple[str, str]) -> Line:
    return [(label.ljust(LABEL_WIDTH), "dim"), *cells]
