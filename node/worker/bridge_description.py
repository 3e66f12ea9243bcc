"""What `GET /openapi.json` of the job bridge answers."""

from __future__ import annotations

from typing import Any

from node.version import __version__

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_PEERS = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"type": "string", "description": "peers or Peers"},
        "peers": {"type": "array", "items": _TEXT, "description": "peer ids; none: any peer of this job"},
        "strategy": {
            "oneOf": [
                {"enum": ["All", "One", "Random"]},
                {"type": "object", "properties": {"type": {"enum": ["All", "One", "Random"]}}},
            ]
        },
        "resource": {"type": ["string", "null"]},
    },
}


def _reference(
    kind: str, about: str, required: dict[str, Any], optional: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "type": "object",
        "description": about,
        "required": ["type", *required],
        "properties": {"type": {"const": kind}, **required, **(optional or {})},
    }


_NAMES = {"type": "array", "items": _TEXT}
_REFERENCES = [
    _reference(
        "huggingface",
        "Files of a Hugging Face repository.",
        {"repository": _TEXT, "filenames": {**_NAMES, "minItems": 1}},
        {"revision": _TEXT, "token": _TEXT},
    ),
    _reference("uri", "A file behind an http(s) address of the public net.", {"value": _TEXT}),
    _reference("scheduler", "The next slice; the rest of the one before counts as used, and goes.", {"dataset": _TEXT}),
    _reference("job", "Files of the job's own folder; no names: all.", {}, {"filenames": _NAMES}),
    _reference(
        "weights",
        "The newest version of the group's weights, and its momentum where the job's codec is not `none`: "
        "`metadata.version` is the number, `metadata.kind` weights or momentum, `metadata.sha256` the digest.",
        {},
    ),
    _reference("validation", "All slices of the validation dataset.", {}),
]


def _operation(name: str, about: str, body: dict[str, Any], answer: dict[str, Any], **more: Any) -> dict[str, Any]:
    problem = {"$ref": "#/components/responses/Problem"}
    return {
        "post": {
            "operationId": name,
            "summary": about,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {"200": answer, **dict.fromkeys(("400", "404", "413", "502", "504", "507"), problem)},
            **more,
        }
    }


def _json(about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _either(documented: str, with_path: dict[str, Any]) -> dict[str, Any]:
    wire = {"type": "object", "required": ["resource", "path"], "properties": {"resource": _PEERS, "path": _TEXT}}
    other = {"type": "object", "required": [documented], "properties": {documented: _PEERS, **with_path}}
    return {"oneOf": [wire, other]}


_STATUS = {
    "oneOf": [
        {
            "type": "object",
            "description": "One local batch is done, `round_time` in milliseconds; of several `batches`, the sums.",
            "required": ["status"],
            "properties": {
                "status": {
                    "type": "object",
                    "required": ["batch_size"],
                    "properties": {
                        "batch_size": {"type": "integer", "minimum": 1},
                        "round_time": {"type": "number"},
                        "loss": {"type": "number"},
                        "batches": {**_COUNT, "minimum": 1},
                    },
                }
            },
        },
        {"const": "update", "description": "About to send the pseudo-gradient."},
        {
            "type": "object",
            "description": "Metrics of a round.",
            "required": ["metrics"],
            "properties": {
                "metrics": {
                    "type": "object",
                    "required": ["round", "metrics"],
                    "properties": {
                        "round": _COUNT,
                        "metrics": {"type": "object", "additionalProperties": {"type": "number"}},
                    },
                }
            },
        },
        {"const": "update-received", "description": "New global weights are applied."},
    ]
}
_ANSWER = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["Continue", "ScheduleUpdate", "Ok", "Done", "Error"]},
        "counter": {**_COUNT, "description": "with ScheduleUpdate: after so many more batches, send the update"},
        "evaluate": {"type": "boolean", "description": "report the validation loss of these weights"},
        "codec": {
            **_TEXT,
            "description": "with Ok, where the job's codec is `auto`: the one to write this update with",
        },
        "last": {"type": "boolean", "description": "with Ok: the last round, so train no further while this is sent"},
        "detail": _TEXT,
    },
}
_FILE = {
    "type": "object",
    "required": ["path", "size", "checksum", "metadata"],
    "properties": {
        "path": {**_TEXT, "description": "relative to the work directory"},
        "size": _COUNT,
        "checksum": {**_TEXT, "pattern": "^sha256:[0-9a-f]{64}$"},
        "metadata": {
            "type": "object",
            "properties": {
                "source": _TEXT,
                "timestamp": _TEXT,
                **{key: {**_TEXT, "description": "of weights"} for key in ("version", "kind", "sha256")},
                **{key: {**_COUNT, "description": "of a slice"} for key in ("index", "pass", "first_row", "rows")},
            },
        },
    },
}
_EVENTS = {
    "description": (
        "One event for each version that has arrived whole and is committed: path, size, from_peer, sequence; and of "
        "ours version; content: step (to be added to the previous weights), gradient (the encoded mean "
        "pseudo-gradient, from which momentum and step are made) or weights (to replace them, with momentum, a path, "
        "where the job's codec is not none); sha256: the digest of the version's weights; counted: whether the last "
        "update is in it, or was taken for a later round. Open while it is read."
    ),
    "content": {"text/event-stream": {"schema": _TEXT}},
}

DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Hypha job bridge",
        "version": __version__,
        "description": "How an executor reaches the cluster: HTTP over a Unix socket, one for each job.",
    },
    "paths": {
        "/resources/fetch": _operation(
            "fetch",
            "Bring files into the work directory; without out_dir, under artifacts/.",
            {
                "oneOf": [
                    *_REFERENCES,
                    {
                        "type": "object",
                        "description": "The documented spelling; its types are HuggingFace, Uri, ..",
                        "required": ["fetch"],
                        "properties": {"fetch": {"type": "object"}, "out_dir": _TEXT},
                    },
                ]
            },
            _json("One entry for each file", {"type": "array", "items": _FILE}),
        ),
        "/resources/send": _operation(
            "send",
            "Deliver a file of the work directory to peers of the job.",
            _either("send", {"path": _TEXT}),
            _json("Accepted for delivery", {"type": "object"}),
        ),
        "/resources/receive": _operation(
            "receive", "Files that arrive from peers of the job.", _either("receive", {"out_dir": _TEXT}), _EVENTS
        ),
        "/status/send": _operation(
            "status", "Report progress; the answer says how to go on.", _STATUS, _json("What to do", _ANSWER)
        ),
        "/openapi.json": {
            "get": {
                "operationId": "openapi",
                "summary": "This document.",
                "responses": {"200": _json("This document", {"type": "object"})},
            }
        },
    },
    "components": {
        "responses": {
            "Problem": _json(
                "What is wrong, and where",
                {
                    "type": "object",
                    "required": ["error", "detail"],
                    "properties": {"error": _TEXT, "detail": _TEXT},
                },
            )
        }
    },
}
