"""`hypha-tui serve`: from what was asked for to what is served."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from hypha_tui.client.endpoint import Connection
from hypha_tui.serve.orders import orders_for
from hypha_tui.settings.config import Given, load
from hypha_tui.settings.contexts import Contexts
from node.errors import ConfigError


async def serve(given: Given, connection: Connection, *, port: int, sessions: int, allow_changes: bool) -> int:
    """Serve until interrupted; 0."""
    if find_spec("textual_serve") is None:
        raise ConfigError("serving needs textual-serve", hint="pip install 'hypha-tui[serve]'")
    if not 0 <= port <= 65_535:
        raise ConfigError(f"{port} is not a port", hint="choose one from 1 to 65535, or 0")
    if sessions < 1:
        raise ConfigError(f"{sessions} terminals at once are none", hint="give --sessions 1 or more")
    settings = load(os.environ, given)
    context, endpoint = Contexts(settings, os.environ).first(connection)
    orders = orders_for(
        endpoint,
        readonly=context.readonly or not allow_changes,
        production=context.production,
        context=context.name,
        theme=settings.config.theme,
    )
    from hypha_tui.serve.server import Plan
    from hypha_tui.serve.server import serve as serve_plan

    await serve_plan(Plan(orders, port, sessions, title=f"hypha {context.name}".strip()), _say)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"hypha-tui serve: {line}\n")
    sys.stdout.flush()
