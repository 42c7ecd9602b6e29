"""The example server under a fuzzer that knows its schema."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.served import part, served
from tests.soak.fuzzed_requests import RIGHT, Asked, fields, fuzzed_requests, has_effect, plain

SUPPORTED = {*RIGHT, "messages"} - {*part("schema").LABELS}


@pytest.mark.parametrize("count", [48, pytest.param(500, marks=pytest.mark.thorough)])
def test_requests_by_the_schema_and_against_it(count):
    result = fuzzed_requests(count)
    assert result.done >= count
    assert not result.failures, str(result)
    assert {kind.split(":")[0] for kind in result.attempts} == {"right", "wrong", "one field"}


def test_every_field_is_supported_or_says_when_it_changes_nothing():
    labels = set(part("schema").LABELS)
    for name, field in fields().items():
        only = any(hasattr(one, "values") for one in field.metadata)
        assert [name in SUPPORTED, name in labels, only].count(True) == 1, name
    assert SUPPORTED | labels <= set(fields())


def test_the_law_sees_a_field_that_is_ignored():
    def asked(**content):
        row = {"sampling": part("sampling").sampling(part("schema").Asked(), temperature=0.5, start=1)}
        rows = [{**row, "seed": 1, "max_new_tokens": 3, "logprobs": None}]
        body = {"model": "draftwood", "choices": [{"index": 0, "text": "a cat", "logprobs": None}]}
        return Asked(content, 200, "application/json", body, [], rows)

    ignored = {
        "prompt": ["a", "b"],
        "n": 2,
        "best_of": 2,
        "model": "another",
        "seed": 2,
        "max_tokens": 2,
        "max_completion_tokens": 2,
        "temperature": 0.4,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.1,
        "frequency_penalty": -0.1,
        "stop": "cat",
        "stream": True,
        "logprobs": 1,
        "top_logprobs": 1,
        "echo": True,
        "frobnicate": 0,
    }
    for name, value in ignored.items():
        assert not has_effect(asked(**{name: value}), name, value), name
    for name, value in {"prompt": "a", "n": 1, "seed": 1, "top_k": -1, "stop": "dog", "echo": False}.items():
        assert has_effect(asked(**{name: value}), name, value), name
    assert plain("echo") == (False,)


@pytest.mark.thorough
def test_schemathesis_itself_finds_nothing():
    with served(most=20, longest=4) as one:
        # A request by the schema may be refused all the same: its fields do not go together, or a token is
        # not in the vocabulary.
        words = ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
        words += ["--phases", "coverage,fuzzing", "--max-examples", "50", "--seed", "0"]
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{one.base_url}/openapi.json", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (generated,) = re.findall(r"(\d+) generated", done.stdout)
    assert int(generated) > 500
