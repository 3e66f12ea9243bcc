"""The operator API: registers its routes on the node's TLS port, and serves the same on a Unix socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from aiohttp import web

from node.api import local
from node.api.commands import Commands
from node.api.endpoints import Endpoints
from node.api.models import Models
from node.api.observe import PATH, Observation
from node.api.problems import Failure, answer
from node.api.routes import ROUTES, Route
from node.api.steer import Steer
from node.api.watch import Watch
from node.board import Board
from node.config import NodeConfig
from node.identity.caller import Caller
from node.network.overlay import Overlay
from node.network.serving import BrokenOff
from node.store import Store
from node.telemetry import Telemetry, metrics

Handler = Callable[[Caller | None, web.Request], Awaitable[web.StreamResponse]]


class ApiService:
    """Answers operators for the whole cluster, and other nodes that observe this one."""

    def __init__(self, config: NodeConfig, overlay: Overlay, board: Board, store: Store, telemetry: Telemetry) -> None:
        self._config = config
        self._overlay = overlay
        self._watch = Watch(overlay, board)
        self._endpoints = Endpoints(config, overlay, self._watch, telemetry)
        self._commands = Commands(config, overlay, self._watch)
        self._models = Models(overlay, self._commands)
        self._steer = Steer(overlay, self._watch)
        self._observation = Observation(board)
        self._local = web.Application(middlewares=[_as_problem])
        for route in ROUTES:
            self._serve(route.method, route.path, _guarded(route, self._handler(route)))
        for path in dict.fromkeys(route.path for route in ROUTES):
            self._serve("*", path, _wrong_method(path))
        self._serve("*", "/api/{rest:.*}", _no_such_path)
        overlay.bulk_route("GET", PATH, self._observe)

    async def run(self) -> None:
        """Serve until cancelled. The node must be listening by now."""
        state_dir = self._config.state_dir
        path = local.socket_path(state_dir)
        async with local.serve(self._local, path):
            try:
                content = local.OperatorFile(
                    socket=str(path),
                    addresses=self._overlay.addresses,
                    peer_id=self._overlay.peer_id,
                    name=self._config.name,
                    pid=os.getpid(),
                )
                await asyncio.to_thread(local.write_file, state_dir, content)
                await self._watch.run()
            finally:
                self._endpoints.close()
                self._observation.close()
                local.remove_file(state_dir)

    def _handler(self, route: Route) -> Handler:
        parts: tuple[tuple[object, tuple[str, ...]], ...] = (
            (self._commands, ("job_scheduler", "submit", "cancel", "resume", "pause")),
            (self._steer, ("release", "cordon", "uncordon", "drain")),
            (self._models, ("model", "model_file")),
        )
        for part, names in parts:
            if route.name in names:
                command: Handler = getattr(part, route.name)
                return command
        endpoint: Callable[[web.Request], Awaitable[web.StreamResponse]] = getattr(self._endpoints, route.name)
        return lambda _, request: endpoint(request)

    def _serve(self, method: str, path: str, handler: Handler) -> None:
        async def unix(request: web.Request) -> web.StreamResponse:
            return await handler(None, request)

        self._local.router.add_route(method, path, unix)
        self._overlay.bulk_route(method, path, handler, operator=None)

    async def _observe(self, _: Caller, request: web.Request) -> web.StreamResponse:
        return await self._observation.handle(request)


def _guarded(route: Route, handler: Handler) -> Handler:
    """`handler` for those who may, with every failure as a `Problem`."""

    async def call(caller: Caller | None, request: web.Request) -> web.StreamResponse:
        metrics().request_handled(f"{route.method} {route.path}")
        try:
            if caller is not None and not caller.is_operator and route.callers == "operator":
                raise Failure(
                    403,
                    "denied",
                    f"{request.path} needs an operator's certificate, {caller.name} is a node",
                    hint="`hypha-node cert operator NAME` makes one",
                )
            return await handler(caller, request)
        except ConnectionError:
            raise  # the client has left
        except Exception as error:
            return answer(error)

    return call


def _wrong_method(path: str) -> Handler:
    allowed = ", ".join(route.method for route in ROUTES if route.path == path)

    async def call(_: Caller | None, request: web.Request) -> web.StreamResponse:
        return answer(Failure(405, "invalid", f"{request.method} {path} is not offered, {allowed} is", allowed=allowed))

    return call


async def _no_such_path(_: Caller | None, request: web.Request) -> web.StreamResponse:
    return answer(Failure(404, "unknown", f"no {request.path} here", hint="/openapi.json lists what there is"))


@web.middleware
async def _as_problem(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ConnectionError:
        return BrokenOff()
    except web.HTTPNotFound:
        return await _no_such_path(None, request)
    except web.HTTPException as error:
        return answer(error)
