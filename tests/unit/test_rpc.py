"""The table of methods: who may call, what a handler may do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from node.errors import DatasetError, PeerProtocol, PeerUnreachable, Refused
from node.identity.caller import Caller
from node.network.rpc import RpcTable, decode_refusal, encode_refusal
from node.wire import MAX_MESSAGE_BYTES, Ack, CancelTask

NODE = Caller(peer_id="p", role="node", name="n", expires_at=0.0)
OPERATOR = Caller(peer_id="o", role="operator", name="ada", expires_at=0.0)
BODY = msgspec.msgpack.encode(CancelTask(task_id="t"))


async def accept(caller: Caller, request: CancelTask) -> Ack:
    return Ack()


def table(handler: Callable[[Caller, CancelTask], Awaitable[Ack]] = accept, *, operator: bool = False) -> RpcTable:
    rpc = RpcTable(deadline_s=0.05)
    rpc.on(CancelTask, handler, operator=operator)
    return rpc


async def refusal_of(rpc: RpcTable, caller: Caller = NODE, name: str = "task/cancel", body: bytes = BODY) -> Refused:
    with pytest.raises(Refused) as caught:
        await rpc.answer(caller, name, body)
    return caught.value


@pytest.mark.asyncio
async def test_a_call_is_answered() -> None:
    assert msgspec.msgpack.decode(await table().answer(NODE, "task/cancel", BODY), type=Ack) == Ack()


@pytest.mark.asyncio
async def test_operators_may_call_only_what_is_open_to_them() -> None:
    """H37: closed by default."""
    assert (await refusal_of(table(), OPERATOR)).code == "denied"
    assert await table(operator=True).answer(OPERATOR, "task/cancel", BODY)
    assert await table(operator=True).answer(NODE, "task/cancel", BODY)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x93" * 10_000, msgspec.msgpack.encode({"task_id": 7}), b"\0" * (MAX_MESSAGE_BYTES + 1)]
)
async def test_malformed_bodies_are_refused(body: bytes) -> None:
    """H38, H39."""
    assert (await refusal_of(table(), body=body)).code == "invalid"


@pytest.mark.asyncio
async def test_fields_we_do_not_know_are_ignored() -> None:
    assert await table().answer(NODE, "task/cancel", msgspec.msgpack.encode({"task_id": "t", "newer": 1}))


@pytest.mark.asyncio
async def test_a_method_that_is_not_here_is_unknown() -> None:
    assert (await refusal_of(table(), name="no/such")).code == "unknown"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused("stale", "over"), "stale"),
        (PeerUnreachable("gone"), "busy"),
        (DatasetError("bad"), "invalid"),
        (TimeoutError(), "busy"),
    ],
)
async def test_errors_of_a_handler_become_refusals(error: Exception, code: str) -> None:
    async def fail(caller: Caller, request: CancelTask) -> Ack:
        raise error

    assert (await refusal_of(table(fail))).code == code


@pytest.mark.asyncio
async def test_a_handler_that_does_not_come_to_an_end_is_cut_off() -> None:
    async def hang(caller: Caller, request: CancelTask) -> Ack:
        await asyncio.sleep(10)
        return Ack()

    assert (await refusal_of(table(hang))).code == "busy"


@pytest.mark.asyncio
async def test_a_fault_in_a_handler_tells_the_caller_no_details() -> None:
    """H19."""

    async def fail(caller: Caller, request: CancelTask) -> Ack:
        raise KeyError("secret")

    with pytest.raises(PeerProtocol) as caught:
        await table(fail).answer(NODE, "task/cancel", BODY)
    assert "secret" not in str(caught.value)


def test_a_method_has_one_handler() -> None:
    with pytest.raises(ValueError, match="already"):
        table().on(CancelTask, accept, operator=False)


@pytest.mark.parametrize("code", ["denied", "unknown", "stale", "conflict", "invalid", "busy", "full"])
def test_a_refusal_survives_the_wire(code: str) -> None:
    status, body = encode_refusal(Refused(code, "why", hint="do that"))
    assert 400 <= status < 500
    error = decode_refusal(status, "application/msgpack", body)
    assert isinstance(error, Refused)
    assert (error.code, error.message, error.hint) == (code, "why", "do that")


def test_answers_without_a_refusal_are_told_by_their_status() -> None:
    missing = decode_refusal(404, "text/plain", b"404: Not Found")
    assert isinstance(missing, Refused)
    assert missing.code == "unknown"
    assert isinstance(decode_refusal(500, "text/html", b"\xff"), PeerProtocol)
    assert isinstance(decode_refusal(403, "application/msgpack", b"\xc1"), PeerProtocol)
