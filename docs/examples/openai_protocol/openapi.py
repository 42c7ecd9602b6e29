"""The server's OpenAPI document, made of its schema."""

from __future__ import annotations

from typing import Any

from openai_protocol.schema import ChatAsked, CompletionAsked

ERROR = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
MEANINGS = {
    400: "The request is refused; the sentence says why.",
    404: "There is no such model.",
    408: "The request came too slowly.",
    413: "The request is too large.",
    415: "The request is compressed.",
    429: "Too many texts are written already.",
    503: "The machine cannot write this now.",
}


def document(*, longest: int, most: int) -> dict[str, Any]:
    """Returns the OpenAPI document; `longest` and `most` are the server's."""
    paths: dict[str, Any] = {
        path: {"get": {"responses": {"200": _content("An object.", {"type": "object"})}}}
        for path in ("/health", "/v1/models")
    }
    schemas: dict[str, Any] = {}
    for path, kind in (("/v1/completions", CompletionAsked), ("/v1/chat/completions", ChatAsked)):
        schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {kind.__name__: schema}
        limits = {"max_tokens": longest, "max_completion_tokens": longest, "n": most, "best_of": most}
        for field, limit in limits.items():
            schema["properties"][field]["anyOf"][0]["maximum"] = limit
        reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
        answers = {"200": _content("The texts.", {"type": "object"})}
        answers["200"]["content"]["text/event-stream"] = {}
        answers |= {str(status): _content(meaning, ERROR) for status, meaning in MEANINGS.items()}
        body = {"required": True, "content": {"application/json": {"schema": reference}}}
        paths[path] = {"post": {"requestBody": body, "responses": answers}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "draftwood's example server", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _content(meaning: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": meaning, "content": {"application/json": {"schema": schema}}}
