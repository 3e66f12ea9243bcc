"""The dialling side: calls and streams to peers, over two pools, so that bulk never makes a renewal wait."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

from node.addresses import Address
from node.errors import HyphaError, PeerError, PeerProtocol, PeerUnreachable, PeerUntrusted
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.identity.peer_id import dial_host
from node.network.addressbook import AddressBook
from node.network.dialling import Attempt, PeerResolver, attempt, make_socket, request_class
from node.network.rpc import CONTENT_TYPE, decode_refusal
from node.telemetry import metrics, span, trace_headers
from node.wire import MAX_MESSAGE_BYTES

KEEPALIVE_S = 60.0
CONNECT_S = 5.0
NEXT_ADDRESS_S = 0.15
CONTROL_PER_PEER = 8
BULK_PER_PEER = 16
MAX_CONNECTIONS = 2_048
MAX_HEADER_BYTES = 32 << 10
PIECE_BYTES = 256 << 10
REFUSED_HINT = "it may refuse our certificate: is it revoked, or of another authority?"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, who gave it, and how long it took."""

    body: bytes
    caller: Caller
    seconds: float


class Client:
    """Connections to peers. Use it as an async context."""

    def __init__(self, identity: Identity, book: AddressBook) -> None:
        self._identity = identity
        self._book = book
        self._control: aiohttp.ClientSession | None = None
        self._bulk: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        self._control = self._session(CONTROL_PER_PEER)
        self._bulk = self._session(BULK_PER_PEER)
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in (self._control, self._bulk):
            if session is not None:
                await session.close()
        self._control = self._bulk = None
        # transports close in callbacks of the loop
        await asyncio.sleep(0)

    def _session(self, per_peer: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=PeerResolver(self._book),
            use_dns_cache=False,
            ssl=self._identity.client_context(),
            limit=MAX_CONNECTIONS,
            limit_per_host=per_peer,
            keepalive_timeout=KEEPALIVE_S,
            happy_eyeballs_delay=NEXT_ADDRESS_S,
            socket_factory=make_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            request_class=request_class(self._identity, self._book),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_field_size=MAX_HEADER_BYTES,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )

    # ---- calls --------------------------------------------------------------------------------------

    async def call(self, where: str | Address, method: str, body: bytes, timeout_s: float) -> Answer:
        """`POST /rpc/<method>` to a peer, or to whichever node listens at an address.

        Raises PeerUnreachable, PeerUntrusted, PeerProtocol, Refused. A request that a closing kept-alive connection
        has swallowed is sent once more, on a new one: every method bears that.
        """
        started = time.monotonic()
        url = _url(where, f"/rpc/{method}")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    with attempt() as noted:
                        try:
                            return await self._post(url, body, noted, where, started)
                        except PeerError:
                            if not self._again(noted, where):
                                raise
        except TimeoutError as error:
            raise PeerUnreachable(f"no answer from {_told(where)} within {timeout_s:g} s") from error

    async def _post(self, url: URL, body: bytes, noted: Attempt, where: str | Address, started: float) -> Answer:
        assert self._control is not None, "the client is not open"
        with span(f"call {url.path}"), _translated(where, noted):
            headers = {"Content-Type": CONTENT_TYPE, **trace_headers()}
            async with self._control.post(
                url, data=_in_pieces(body), headers=headers, allow_redirects=False
            ) as response:
                noted.has_answer = True
                answer = await _whole(response)
                if not 200 <= response.status < 300:
                    raise decode_refusal(response.status, response.content_type, answer)
        assert noted.caller is not None, "every request has a connection"
        metrics().bytes_sent(len(body))
        metrics().bytes_received(len(answer))
        return Answer(answer, noted.caller, time.monotonic() - started)

    def _again(self, noted: Attempt, where: str | Address) -> bool:
        if noted.is_someone_else:
            # nothing was sent; the resolver leaves this address out from now on
            return isinstance(where, str) and len(self._book.of(where)) > 1
        return noted.is_reused and noted.has_sent and not noted.has_answer

    # ---- streams ------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def open(
        self,
        where: str | Address,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None,
        stall_s: float,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request without a body on the bulk pool; the block reads the answer's, and no piece may take longer than
        `stall_s`."""
        assert self._bulk is not None, "the client is not open"
        url = _url(where, path)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=stall_s)
        async with contextlib.AsyncExitStack() as stack:
            with attempt() as noted, _translated(where, noted):
                # waiting for a connection counts too, hence more than one stall for the answer to begin
                async with asyncio.timeout(stall_s + CONNECT_S):
                    response = await stack.enter_async_context(
                        self._bulk.request(method, url, headers=headers, timeout=timeout, allow_redirects=False)
                    )
                    noted.has_answer = True
                    if not 200 <= response.status < 300:
                        raise decode_refusal(response.status, response.content_type, await _whole(response))
            with _translated(where, noted):
                yield response


def _in_pieces(data: bytes) -> bytes | io.BytesIO:
    """Large bytes as a stream, which aiohttp writes piece by piece; others as they are."""
    return io.BytesIO(data) if len(data) > PIECE_BYTES else data


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    pieces = []
    size = 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_MESSAGE_BYTES:
            response.close()
            raise PeerProtocol(f"an answer of more than {MAX_MESSAGE_BYTES} bytes")
    return b"".join(pieces)


def is_definite(error: PeerUnreachable) -> bool:
    """Whether nobody listens there, rather than that an answer has not come in time."""
    return isinstance(error.__cause__, aiohttp.ClientConnectorError)


def _url(where: str | Address, path: str) -> URL:
    if isinstance(where, Address):
        return URL(f"https://{where.netloc}{path}")
    try:
        return URL(f"https://{dial_host(where)}{path}")
    except ValueError as error:
        raise PeerProtocol(str(error)) from error


def _told(where: str | Address) -> str:
    return f"{where.host} port {where.port}" if isinstance(where, Address) else f"peer {where}"


@contextlib.contextmanager
def _translated(where: str | Address, noted: Attempt) -> Iterator[None]:
    """Errors of the libraries, as errors of ours. What is ours already passes."""
    try:
        yield
    except (HyphaError, asyncio.CancelledError):
        raise
    except aiohttp.ClientConnectorCertificateError as error:
        raise PeerUntrusted(_certificate(where, error.certificate_error)) from error
    except aiohttp.ClientConnectorSSLError as error:
        raise tls_error(where, error.os_error) from error
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno
        # asyncio writes "Connect call failed" over the reason; names that do not resolve have numbers of their own
        reason = (
            os.strerror(number)
            if number and number in errno.errorcode
            else str(error.os_error.strerror or error.os_error)
        )
        raise PeerUnreachable(f"cannot connect to {_told(where)}: {reason}") from error
    except (aiohttp.ClientOSError, ConnectionError, ssl.SSLError) as error:
        cause = error if isinstance(error, ssl.SSLError) else error.__cause__ or error.__context__
        if isinstance(cause, ssl.SSLError):
            raise tls_error(where, cause) from error
        raise PeerUnreachable(f"the connection to {_told(where)} broke: {error}", hint=_hint(noted)) from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError) as error:
        raise PeerUnreachable(f"{_told(where)} closed the connection", hint=_hint(noted)) from error
    except TimeoutError as error:
        raise PeerUnreachable(f"no answer from {_told(where)} in time") from error
    except aiohttp.ClientError as error:
        raise PeerProtocol(f"{_told(where)} does not speak our protocol: {error}") from error


def _hint(noted: Attempt) -> str:
    # TLS 1.3 tells of a refused certificate after the handshake, and a reset may overtake what it tells
    return REFUSED_HINT if noted.has_sent and not noted.has_answer and not noted.is_reused else ""


def _certificate(where: str | Address, error: Exception) -> str:
    reason = getattr(error, "verify_message", "") or str(error)
    return f"the certificate of {_told(where)} is not accepted: {reason}"


def tls_error(where: str | Address, error: OSError) -> PeerError:
    """A failure of TLS, as an error of ours."""
    text = getattr(error, "reason", None) or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return PeerUntrusted(_certificate(where, error))
    if "ALERT" in text or "alert" in text:
        return PeerUntrusted(
            f"{_told(where)} refuses our certificate ({text.lower().replace('_', ' ')})", hint=REFUSED_HINT
        )
    return PeerProtocol(f"{_told(where)} does not speak TLS 1.3 ({text.lower().replace('_', ' ')})")
