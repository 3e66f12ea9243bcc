"""`POST /rpc/<method>`: who may call what, bounds before decoding, a deadline for every handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from node.errors import HyphaError, PeerProtocol, PeerUnreachable, Refused
from node.identity.caller import Caller
from node.wire import MAX_MESSAGE_BYTES, Message, Refusal, Request

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)
Handler = Callable[[Caller, Any], Awaitable[Message]]

HANDLER_DEADLINE_S = 30.0
CONTENT_TYPE = "application/msgpack"
STATUS = {
    "denied": 403,
    "unknown": 404,
    "stale": 409,
    "conflict": 409,
    "invalid": 400,
    "busy": 429,
    "full": 413,
}
CODE = {403: "denied", 404: "unknown", 409: "conflict", 412: "stale", 413: "full", 416: "invalid", 429: "busy"} | {
    400: "invalid",
    422: "invalid",
    503: "busy",
    507: "full",
}


@dataclass(frozen=True, slots=True)
class _Method:
    request: type[Request[Any]]
    decoder: msgspec.msgpack.Decoder[Request[Any]]
    handler: Handler
    operator: bool


class RpcTable:
    """The methods of this node."""

    def __init__(self, *, deadline_s: float = HANDLER_DEADLINE_S) -> None:
        self._methods: dict[str, _Method] = {}
        self._deadline_s = deadline_s

    def on(self, request: type[Request[A]], handler: Callable[[Caller, Any], Awaitable[A]], *, operator: bool) -> None:
        """Let `handler` answer `request`; operators may call it only where `operator` is set."""
        if request.method in self._methods:
            raise ValueError(f"{request.method} has a handler already")
        decoder = msgspec.msgpack.Decoder(request)
        self._methods[request.method] = _Method(request, decoder, handler, operator)

    async def answer(self, caller: Caller, name: str, body: bytes) -> bytes:
        """The encoded answer to an encoded request. Raises Refused."""
        method = self._method(caller, name)
        if len(body) > MAX_MESSAGE_BYTES:
            raise Refused("invalid", f"{name}: {len(body)} bytes, {MAX_MESSAGE_BYTES} are allowed")
        try:
            request = method.decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise Refused("invalid", f"{name}: {error}") from error
        return msgspec.msgpack.encode(await self._run(caller, method, request))

    async def answer_self(self, caller: Caller, request: Request[A]) -> A:
        """The answer to a request of this node's own, without the wire between. Raises Refused."""
        # the table pairs a request's type with its handler
        return await self._run(caller, self._method(caller, request.method), request)  # type: ignore[return-value]

    def _method(self, caller: Caller, name: str) -> _Method:
        method = self._methods.get(name)
        if method is None:
            raise Refused("unknown", f"no method {name!r} here", hint="this node lacks the role for it, or is older")
        if caller.role == "operator" and not method.operator:
            raise Refused("denied", f"{name} is for nodes, {caller.name} is an operator")
        return method

    async def _run(self, caller: Caller, method: _Method, request: Request[Any]) -> Message:
        name = method.request.method
        try:
            async with asyncio.timeout(self._deadline_s):
                return await method.handler(caller, request)
        except Refused:
            raise
        except (TimeoutError, PeerUnreachable) as error:
            raise Refused("busy", f"{name}: {error or 'not done in time'}") from error
        except HyphaError as error:
            raise Refused("invalid", error.message, hint=error.hint) from error
        except Exception as error:
            log.exception("rpc.failed method=%s caller=%s", name, caller.peer_id)
            raise PeerProtocol(f"{name} failed inside the peer ({type(error).__name__})") from error


def encode_refusal(error: Refused) -> tuple[int, bytes]:
    """HTTP status and body of a refusal."""
    refusal = Refusal(code=error.code, detail=error.message, hint=error.hint, parts=error.parts)
    return STATUS.get(error.code, 400), msgspec.msgpack.encode(refusal)


def decode_refusal(status: int, content_type: str, body: bytes) -> Refused | PeerProtocol:
    """The error that a non-2xx answer stands for."""
    if content_type == CONTENT_TYPE:
        try:
            refusal = msgspec.msgpack.decode(body, type=Refusal)
        except (msgspec.MsgspecError, ValueError):
            return PeerProtocol(f"an unreadable refusal with status {status}")
        if status >= 500 and refusal.code not in STATUS:
            return PeerProtocol(refusal.detail)
        return Refused(refusal.code, refusal.detail, hint=refusal.hint, parts=refusal.parts)
    text = body[:200].decode(errors="replace").strip()
    code = CODE.get(status)
    return Refused(code, text or f"status {status}") if code else PeerProtocol(f"status {status}: {text}")
