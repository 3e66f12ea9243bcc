"""Every route of the operator API, once: handlers are registered from it, and `/openapi.json` is written from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from node.views import (
    ActResult,
    ClusterView,
    DatasetView,
    Event,
    Frame,
    JobView,
    LeaseHistory,
    LeaseView,
    LogChunk,
    ModelView,
    PeerView,
    Point,
    SchedulerChoice,
    SliceMap,
    SubmitResult,
    TransferView,
)

MAX_BODY_BYTES = 96 << 20
LOG_LINES = 200
LOG_LINES_MOST = 5_000

TOML = "application/toml"
TAR = "application/x-tar"
JSON = "application/json"
BYTES = "application/octet-stream"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is `ok`; `loop_lag_ms` is how late the node's event loop is."""

    status: str
    loop_lag_ms: float


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a route, in its path, its query or a header."""

    name: str
    about: str
    where: Literal["path", "query", "header"] = "query"
    type: Any = str


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `name` is the handler's and the OpenAPI operation's.

    `callers`: `operator` (a certificate of one, or the Unix socket) or `member` (nodes as well).
    """

    method: str
    path: str
    name: str
    about: str
    answer: Any
    parameters: tuple[Parameter, ...] = ()
    status: int = 200
    callers: Literal["operator", "member"] = "operator"
    content_type: str = JSON
    body: tuple[str, ...] = ()


_ID = Parameter("id", "Its id", "path")
_COMMAND = Parameter(
    "Hypha-Command",
    "The signed command: base64 of the MessagePack form of RunCommand. Over the Unix socket it may be left out: then "
    "the node signs",
    "header",
)

_VERSION = Parameter(
    "version", "`latest`: the final model, or else the newest whole version; or the number of a version"
)

ROUTES: tuple[Route, ...] = (
    Route("GET", "/api/v1/cluster", "cluster", "The cluster in numbers", ClusterView),
    Route("GET", "/api/v1/peers", "peers", "All nodes", list[PeerView]),
    Route("GET", "/api/v1/peers/{id}", "peer", "One node, by id, name or the beginning of its id", PeerView, (_ID,)),
    Route("GET", "/api/v1/datasets", "datasets", "All datasets, at each of their providers", list[DatasetView]),
    Route("GET", "/api/v1/leases", "leases", "All leases", list[LeaseView]),
    Route(
        "GET",
        "/api/v1/leases/{id}/history",
        "lease_history",
        "The life of a lease, as its worker and its scheduler know it",
        LeaseHistory,
        (_ID,),
    ),
    Route("GET", "/api/v1/transfers", "transfers", "Bytes on their way", list[TransferView]),
    Route("GET", "/api/v1/jobs", "jobs", "All jobs", list[JobView]),
    Route("GET", "/api/v1/jobs/{id}", "job", "One job", JobView, (_ID,)),
    Route(
        "GET",
        "/api/v1/jobs/{id}/spec",
        "job_spec",
        "The job's file as JSON, in one spelling: what is as by default is left out, and so are secrets",
        dict[str, Any],
        (_ID,),
    ),
    Route(
        "GET",
        "/api/v1/jobs/{id}/scheduler",
        "job_scheduler",
        "Where a job is, or where one of this id would go: what a submission is signed for",
        SchedulerChoice,
        (_ID,),
    ),
    Route("GET", "/api/v1/jobs/{id}/slices", "job_slices", "Every slice of a job's present pass", SliceMap, (_ID,)),
    Route("GET", "/api/v1/jobs/{id}/metrics", "job_metrics", "The history of a job's metrics", list[Point], (_ID,)),
    Route(
        "GET",
        "/api/v1/jobs/{id}/logs",
        "job_logs",
        "The last lines that a job's tasks wrote",
        list[LogChunk],
        (
            _ID,
            Parameter("task", "Only this task"),
            Parameter("lines", f"How many lines of each, at most {LOG_LINES_MOST}; default {LOG_LINES}", type=int),
        ),
    ),
    Route("GET", "/api/v1/events", "events", "The last events of all nodes, oldest first", list[Event]),
    Route(
        "POST",
        "/api/v1/jobs",
        "submit",
        f"Submit a job: a TOML file, or a tar with job.toml at its root, of at most {MAX_BODY_BYTES >> 20} MiB",
        SubmitResult,
        (
            _COMMAND,
            Parameter("job_id", "Unix socket: the job's id; the same id twice is one job"),
            Parameter("name", "Unix socket: the job's name"),
        ),
        status=201,
        body=(TOML, TAR),
    ),
    Route("POST", "/api/v1/jobs/{id}/cancel", "cancel", "End a job", SubmitResult, (_ID, _COMMAND), status=202),
    Route(
        "POST",
        "/api/v1/jobs/{id}/resume",
        "resume",
        "Go on with a job that is paused, failed or was cancelled, from its last committed round",
        SubmitResult,
        (_ID, _COMMAND),
        status=202,
    ),
    Route(
        "POST",
        "/api/v1/jobs/{id}/pause",
        "pause",
        "Let a job go on to its next commit, then let its leases go until it is resumed",
        SubmitResult,
        (_ID, _COMMAND),
        status=202,
    ),
    Route(
        "POST",
        "/api/v1/leases/{id}/release",
        "release",
        "Let a lease go; its job looks for another worker",
        ActResult,
        (_ID, _COMMAND),
        status=202,
    ),
    *(
        Route("POST", f"/api/v1/peers/{{id}}/{name}", name, about, ActResult, (_ID, _COMMAND), status=202)
        for name, about in (
            ("cordon", "Have a worker offer nothing any more; what it runs goes on"),
            ("uncordon", "Have a worker offer again"),
            ("drain", "Have a worker offer nothing, and hand over what it runs at the next commits"),
        )
    ),
    Route(
        "GET",
        "/api/v1/jobs/{id}/model",
        "model",
        "What can be exported of a job; digests are computed on the way, which takes a second for each GB",
        ModelView,
        (_ID, _COMMAND, _VERSION),
    ),
    Route(
        "GET",
        "/api/v1/jobs/{id}/model/{name}",
        "model_file",
        "A file of it. `ETag` holds its SHA-256; `Range` and `If-Match` go on where a transfer broke off",
        bytes,
        (
            _ID,
            Parameter("name", "Its name, with `/` as %2F", "path"),
            _COMMAND,
            _VERSION,
            Parameter("Range", "One range of bytes", "header"),
            Parameter("If-Match", "The tag that the file must have", "header"),
        ),
        content_type=BYTES,
    ),
    Route(
        "GET",
        "/events",
        "stream",
        "Server-sent events: `snapshot`, then `delta`, each with its sequence number as id and a frame as data",
        Frame,
        content_type="text/event-stream",
    ),
    Route("GET", "/healthz", "healthz", "Whether this node is alive", Health, callers="member"),
    Route("GET", "/metrics", "metrics", "Prometheus' text form", str, callers="member", content_type="text/plain"),
    Route("GET", "/openapi.json", "openapi", "This document", dict[str, Any]),
)
