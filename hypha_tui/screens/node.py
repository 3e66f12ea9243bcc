"""Node: the node we look through, the link to it, and this terminal."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult

from hypha_tui.screens.view import View
from hypha_tui.store import text
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import Look
from hypha_tui.store.summary import LABEL_WIDTH, summary
from hypha_tui.widgets.bars import link_word
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.lines import Lines
from node.version import __version__
from node.views import PeerView


class NodeView(View, can_focus=True):
    """Plain lines."""

    def __init__(self, drawing: Drawing, look: Callable[[], Look], label: str, theme: Callable[[], str]) -> None:
        super().__init__("node", drawing, look)
        self._label = label
        self._theme = theme
        self._lines = Lines(drawing, id="node-lines", classes="panel")

    def compose(self) -> ComposeResult:
        """One panel."""
        self._lines.border_title = "Node"
        yield self._lines

    def focus_first(self) -> None:
        """Keys go to the screen as a whole."""
        self.focus()

    def sync(self, changes: Changes | None) -> None:
        """All lines; those that differ are painted."""
        look = self.look()
        store = look.store
        age = store.data_age_s(look.now)
        lines: list[Line] = [
            _row("connected to", (text.clean(self._label), "text")),
            _row("link", link_word(look), (f"   {text.clean(store.link.detail)}", "late")),
            _row("data", (f"{text.age(age)} old" if age is not None else "none yet", "text")),
            _row("terminal", (f"hypha-tui {__version__}, theme {self._theme()}, glyphs {look.glyphs.name}", "text")),
        ]
        cluster = store.cluster
        if cluster is not None:
            roles = "  ".join(f"{role} {number}" for role, number in sorted(cluster.roles.items()))
            lines += [
                [],
                _row("cluster", (cluster.authority or "-", "title"), ("   authority", "dim")),
                _row("peers", (f"{cluster.up} of {cluster.peers} up   {roles}", "text")),
            ]
            peer = store.get(PeerView, cluster.peer_id)
            if peer is not None:
                lines += [[], _row("this node", (text.clean(peer.name), "title")), *summary(peer, look)]
        self._lines.show(lines)


def _row(label: str, *cells: tuple[str, str]) -> Line:
    return [(label.ljust(LABEL_WIDTH), "dim"), *cells]
