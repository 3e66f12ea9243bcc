"""The OpenAPI 3.1 document of the operator API, from the route table and the types."""

from __future__ import annotations

from typing import Any

import msgspec

from node.api.routes import ROUTES, Parameter, Route
from node.version import __version__
from node.views import Problem

REF = "#/components/schemas/{name}"


def document() -> dict[str, Any]:
    """The document, as JSON types."""
    answers = [route.answer for route in ROUTES]
    schemas, components = msgspec.json.schema_components([Problem, *answers], ref_template=REF)
    problem, *shapes = schemas
    paths: dict[str, dict[str, Any]] = {}
    for route, shape in zip(ROUTES, shapes, strict=True):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, shape, problem)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hypha operator API",
            "version": __version__,
            "description": "Any node answers for the whole cluster. Over TLS it needs an operator's certificate; on "
            "the node's own machine a Unix socket serves it without one.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"certificate": {"type": "mutualTLS"}},
        },
        "security": [{"certificate": []}],
    }


def _operation(route: Route, shape: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    if route.answer is bytes:
        shape = {"type": "string", "contentMediaType": route.content_type}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "x-callers": route.callers,
        "responses": {
            str(route.status): {"description": route.about, "content": {route.content_type: {"schema": shape}}},
            "default": {
                "description": "Why it failed",
                "content": {"application/problem+json": {"schema": problem}},
            },
        },
    }
    if route.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in route.parameters]
    if route.body:
        binary = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
        operation["requestBody"] = {"required": True, "content": dict.fromkeys(route.body, binary)}
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.about,
        "required": parameter.where == "path",
        "schema": msgspec.json.schema(parameter.type),
    }
