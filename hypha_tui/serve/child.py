"""The process of one browser's session: `python -m hypha_tui.serve.child FD`, started by the server.

The file descriptor is a pipe: one line of orders, and its end when the server is gone.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace

from hypha_tui.client.api import ApiClient
from hypha_tui.process.ending import let_go
from hypha_tui.screens.app import HyphaApp
from hypha_tui.serve.orders import Orders, decode
from hypha_tui.settings.config import Context, Given, load


class ServedApp(HyphaApp):
    """The terminal on the one node that is served, for as long as the server lives."""

    def __init__(self, orders: Orders, lifeline: int) -> None:
        settings = load(os.environ, Given(theme=orders.theme or None, readonly=orders.readonly or None))
        endpoint = replace(orders.endpoint(), readonly=orders.readonly)
        super().__init__(
            ApiClient(endpoint, readonly=orders.readonly),
            theme=orders.theme,
            settings=replace(settings, contexts={}),
            context=Context(orders.context, orders.production, orders.readonly),
        )
        self._lifeline = lifeline

    def on_mount(self) -> None:
        """Watch the lifeline."""
        asyncio.get_running_loop().add_reader(self._lifeline, self._on_lifeline)

    def _on_lifeline(self) -> None:
        asyncio.get_running_loop().remove_reader(self._lifeline)
        let_go()
        self.exit()


def main() -> int:
    """Read the orders and run the terminal."""
    lifeline = int(sys.argv[1])
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(lifeline, 65_536)
        if not chunk:
            return 1
        line += chunk
    app = ServedApp(decode(line), lifeline)
    app.run()
    if app.crash:
        sys.stderr.write(f"{app.crash}\n")
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
