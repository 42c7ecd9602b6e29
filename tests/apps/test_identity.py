"""Identity of a run: the content of files, the commit of a hub name, the code of a strategy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood import InvalidInput, zoo
from draftwood.apps.models import identity
from draftwood.apps.models.method import Words


@given(st.binary(min_size=1, max_size=300), st.data())
def test_every_byte_of_a_small_file_counts(tmp_path_factory, content, data):
    file = tmp_path_factory.mktemp("i") / "f"
    file.write_bytes(content)
    before = identity.of_file(file)
    place = data.draw(st.integers(0, len(content) - 1))
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert identity.of_file(file) != before
    file.write_bytes(content)
    assert identity.of_file(file) == before


def test_of_a_large_file_size_header_and_places_all_over_it_count(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "_WHOLE", 1000)
    monkeypatch.setattr(identity, "_BLOCK", 16)
    header = json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).encode()
    content = bytearray(len(header).to_bytes(8, "little") + header + bytes(20_000))
    file = tmp_path / "model.safetensors"

    def digest(place: int | None = None) -> str:
        changed = bytearray(content)
        if place is not None:
            changed[place] ^= 1
        file.write_bytes(changed)
        return identity.of_file(file)

    sound = digest()
    assert all(digest(place) != sound for place in range(8 + len(header)))
    assert digest(len(content) - 1) != sound
    seen = sum(digest(place) != sound for place in range(100, 20_000, 7))
    assert 0.15 < seen / len(range(100, 20_000, 7)) < 0.3  # 256 places of 16 bytes
    content += b"\0"
    assert digest() != sound


def test_a_folder_is_known_by_what_a_model_is_read_from(tmp_path):
    folder = Path(shutil.copytree(zoo.path("llama-draft"), tmp_path / "m"))
    before = identity.of_folder(folder)
    (folder / "README.md").write_text("notes")
    (folder / ".hidden.json").write_text("{}")
    (folder / "answers.jsonl").write_text("{}")
    assert identity.of_folder(folder) == before
    (folder / "tokenizer.json").write_text("{}")
    assert identity.of_folder(folder) != before
    with pytest.raises(InvalidInput, match="cannot be read"):
        identity.of_file(tmp_path / "none")


def test_a_hub_name_is_known_by_the_commit_that_is_loaded(tmp_path, monkeypatch):
    for place in ("huggingface_hub.constants.HF_HUB_CACHE", "transformers.utils.hub.constants.HF_HUB_CACHE"):
        monkeypatch.setattr(place, str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--somebody--model"
    (repository / "refs").mkdir(parents=True)
    for commit in ("a" * 40, "b" * 40):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").write_text("{}")
        (repository / "refs" / "main").write_text(commit)
        assert identity.of_model("somebody/model") == commit
    assert identity.of_model("somebody/other") is None


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ({}, {"target_files", "drafter_files"}),
        ({"drafter": "prompt-lookup"}, {"target_files"}),
        ({"drafter": "llama-7m-eagle3"}, {"target_files", "drafter_head_files"}),
        ({"tokenizer": "tokenizer"}, {"target_files", "tokenizer_files", "drafter_files"}),
        (
            {"drafter": "several", "option": ("members=llama-draft,prompt-lookup:longest=3",)},
            {"target_files", "drafter_members_files"},
        ),
        (
            {"drafter": "lookup-first", "option": ("drafter=llama-draft",)},
            {"target_files", "drafter_drafter_files"},
        ),
        ({"drafter": "mine:Words", "policy": "mine:Line"}, {"target_files", "code"}),
    ],
)
def test_all_that_a_method_reads(own_module, words, parts):
    own_module(
        "from draftwood.strategies.drafters.prompt_lookup import PromptLookup as Words\n"
        "import attrs\nfrom draftwood.strategies.policies.chain import Chain\n"
        "class Line(Chain): pass\nWords = type('Words', (Words,), {'__module__': 'mine'})\n"
    )
    given: Any = words
    found = identity.of_method(Words(**given).method())
    assert set(found) == parts
    assert all(found.values())


def test_a_gguf_file_counts_with_its_other_parts(tmp_path: Path) -> None:
    parts = [tmp_path / f"big-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF")
    (tmp_path / "other-00002-of-00002.gguf").write_bytes(b"GGUF")
    before = identity.of_model(str(parts[0]))
    assert before is not None
    (tmp_path / "other-00002-of-00002.gguf").write_bytes(b"GGUF!")
    assert identity.of_model(str(parts[0])) == before
    parts[1].write_bytes(b"GGUF!")
    assert identity.of_model(str(parts[0])) != before
    single = tmp_path / "small.gguf"
    assert identity.of_model(str(single)) is None
    single.write_bytes(b"GGUF")
    assert identity.of_model(str(single)) == identity.of_file(single)
