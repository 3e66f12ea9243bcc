"""Failures of the operator API: one JSON shape and the right status, whatever went wrong."""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec
from aiohttp import web

from node.errors import HyphaError, PeerError, PeerProtocol, PeerUnreachable, PeerUntrusted, Refused
from node.views import Problem

log = logging.getLogger(__name__)

STATUS_OF_CODE = {
    "denied": 403,
    "unknown": 404,
    "stale": 409,
    "conflict": 409,
    "invalid": 422,
    "busy": 503,
    "full": 507,
}
CODE_OF_STATUS = {403: "denied", 404: "unknown", 405: "invalid", 413: "full", 415: "invalid", 503: "busy"}


class Failure(HyphaError):
    """A request of an operator that is answered with a `Problem`."""

    def __init__(self, status: int, code: str, detail: str, *, hint: str = "", allowed: str = "") -> None:
        super().__init__(detail, hint=hint)
        self.status = status
        self.code = code
        self.allowed = allowed


def problem_of(error: Exception) -> Problem:
    """How a failure is told to an operator; an error nobody foresaw is logged, and told without its inside."""
    match error:
        case Failure():
            return _problem(error.status, error.code, error)
        case Refused():
            return _problem(STATUS_OF_CODE.get(error.code, 422), error.code, error)
        case PeerUnreachable():
            return _problem(502, "unreachable", error)
        case PeerUntrusted():
            return _problem(502, "untrusted", error)
        case PeerProtocol():
            return _problem(502, "protocol", error)
        case PeerError():
            return _problem(502, "peer", error)
        case HyphaError():
            return _problem(422, "invalid", error)
        case web.HTTPException():
            code = CODE_OF_STATUS.get(error.status, "invalid")
            return Problem(status=error.status, code=code, title=_title(error.status), detail=error.reason)
        case TimeoutError():
            return Problem(status=504, code="unreachable", title=_title(504), detail="no answer in time")
        case _:
            log.error("api.failed", exc_info=error)
            detail = f"this node failed to answer: {type(error).__name__}; its log says more"
            return Problem(status=500, code="failed", title=_title(500), detail=detail)


def answer(error: Exception) -> web.Response:
    """The response to a request that failed so."""
    problem = problem_of(error)
    response = web.Response(
        status=problem.status, body=msgspec.json.encode(problem), content_type="application/problem+json"
    )
    if isinstance(error, Failure) and error.allowed:
        response.headers["Allow"] = error.allowed
    if problem.status in (413, 415, 507):
        response.force_close()  # or aiohttp would read on, for the rest of the body
    return response


def _problem(status: int, code: str, error: HyphaError) -> Problem:
    return Problem(status=status, code=code, title=_title(status), detail=error.message, hint=error.hint)


def _title(status: int) -> str:
    return HTTPStatus(status).phrase
