"""`draftwood generate --json-schema` and `--regex`."""

import json
import re

import pytest

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["good", "bad"]},
        "score": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["label", "score"],
    "additionalProperties": False,
}
DRAFT = ["--drafter", "prompt-lookup"]


@pytest.fixture
def schema(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    return file


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_the_text_is_json_of_the_schema(draftwood, schema, temperature):
    result = draftwood(
        *[
            "generate",
            "--prompt",
            "A fine film.",
            "--json-schema",
            schema,
            "--temperature",
            temperature,
            *DRAFT,
        ]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found.keys() == {"label", "score"}
    assert found["label"] in ("good", "bad")
    assert 0 <= found["score"] <= 9


def test_the_text_matches_an_expression(draftwood):
    result = draftwood("generate", "--prompt", "My number: ", "--regex", "[0-9]{3}-[a-d]{2,4}", *DRAFT)
    assert re.fullmatch("[0-9]{3}-[a-d]{2,4}", result.stdout.strip()), result.output


def test_what_cannot_be_served_is_one_sentence(refused, schema, tmp_path, monkeypatch):
    own = ["generate", "--prompt", "Hi", *DRAFT]
    assert "Both --json-schema and --regex" in refused(*own, "--json-schema", schema, "--regex", "a")
    assert "does not support this constraint" in refused(*own, "--regex", "a(")
    assert "cannot be read" in refused(*own, "--json-schema", tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refused(*own, "--json-schema", tmp_path / "bytes.json")
    schema.write_text(json.dumps({"type": "array", "uniqueItems": True}))
    assert "uniqueItems" in refused(*own, "--json-schema", schema)
    monkeypatch.setattr("draftwood.apps.models.structured.find_spec", lambda name: None)
    assert "pip install 'draftwood[grammar]'" in refused(*own, "--regex", "a")
