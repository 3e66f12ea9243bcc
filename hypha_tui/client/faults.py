"""What goes wrong between a terminal and its node, as errors of ours: once, at this edge."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from hypha_tui.client.endpoint import Endpoint
from node.errors import HyphaError, PeerProtocol, PeerUnreachable, PeerUntrusted, Refused
from node.views import Problem
from node.wire import UNDECODABLE


@contextmanager
def translated(endpoint: Endpoint) -> Iterator[None]:
    """What asyncio, TLS and the reading of HTTP raise, as an error that names the node and what to do."""
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        raise _ours(error, endpoint) from error


def problem_of(status: int, reason: str, body: bytes) -> HyphaError:
    """What an answer of 400 and above says."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except UNDECODABLE:
        problem = Problem(status=status, code="", title=reason, detail="")
    if status in (401, 403):
        return PeerUntrusted(
            problem.detail or problem.title or "the node does not take our certificate",
            hint=problem.hint or "use an operator's certificate (`hypha-node cert operator`)",
        )
    message = problem.detail or problem.title or f"HTTP {status}"
    if status in (502, 503, 504) and problem.code in ("", "unreachable", "busy", "peer"):
        return PeerUnreachable(message, hint=problem.hint)
    return Refused(problem.code or str(status), message, hint=problem.hint)


def _ours(error: OSError | EOFError | ValueError, endpoint: Endpoint) -> HyphaError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return PeerUntrusted(
            f"the certificate of {endpoint} is refused: {error.verify_message}",
            hint="--trust must name the cluster's authority",
        )
    if isinstance(error, ssl.SSLError) and "eof" not in str(error).lower():
        # An end in mid-handshake is a node that goes down, not a refusal.
        return PeerUntrusted(
            f"{endpoint} refuses our certificate: {error.reason or error}",
            hint="use an operator's certificate of this cluster that is neither expired nor revoked",
        )
    if isinstance(error, TimeoutError):
        return PeerUnreachable(f"{endpoint} does not answer", hint="is the node up, and the link to it?")
    if isinstance(error, ConnectionResetError | BrokenPipeError | EOFError):
        return PeerUnreachable(f"the link to {endpoint} broke: {_reason(error)}", hint="try again")
    if isinstance(error, OSError):
        return PeerUnreachable(f"cannot reach {endpoint}: {_reason(error)}", hint="is the node running?")
    return PeerProtocol(f"{endpoint} answers something that is not the operator API: {error}")


def _reason(error: OSError | EOFError) -> str:
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    return "it ended in mid-answer" if isinstance(error, EOFError) else str(error) or type(error).__name__
