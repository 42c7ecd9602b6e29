"""`--offload`: a target whose layers stay on the disk writes what it writes from memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import InvalidInput, UnsupportedModel, load, zoo
from draftwood.apps.bench import measure
from draftwood.backends.weights.streamed import streamed_modules
from tests.apps.cells import cells
from tests.backends.test_checkpoints import checkpoint

ZOO = Path(zoo.__file__).parent


@pytest.mark.parametrize("target", ["llama-7m", "bamba-6m"])
def test_the_text_is_that_of_a_target_in_memory(draftwood: Any, tmp_path: Path, target: str) -> None:
    words = ["generate", "--target", target, "--prompt", "The sea", "--max-new-tokens", 12, "--json"]
    texts = [
        json.loads(draftwood(*words, *more).stdout) for more in ([], ["--offload", tmp_path / "converted"])
    ]
    assert texts[0]["tokens"] == texts[1]["tokens"]


@pytest.mark.thorough
def test_the_budget_is_tuned_to_streamed_weights(draftwood: Any, tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    words = ["--offload", tmp_path / "more", "--strategy", "dyspec", "--prompts", 1, "--new-tokens", 4]
    result = draftwood("tune", "--to", file, *words)
    assert result.exit_code == 0, result.stderr
    content = json.loads(file.read_text())
    assert content["settings"]["offload"] is True
    assert {one["label"].partition("budget=")[2] for one in content["estimates"]} >= {"8", "64", "256"}


def test_bench_contests_from_the_disk(
    draftwood: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load_pair = list[Any](), measure.load

    def load_and_keep(*arguments: Any) -> Any:
        loaded.append(load_pair(*arguments))
        return loaded[-1]

    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))
    words = ["--prompts", 1, "--prompt-length", 12, "--new-tokens", 5, "--strategy", "dyspec:budget=4"]
    texts: list[dict[str, list[int]]] = []
    with monkeypatch.context() as patch:
        patch.setattr("draftwood.apps.bench.measure.load", load_and_keep)
        for more in ([], ["--offload", tmp_path / "scratch"]):
            folder = tmp_path / f"results-{len(texts)}"
            result = draftwood("bench", "--to", folder, *words, *more)
            assert result.exit_code == 0, result.stderr
            measured = cells(folder)
            texts.append({one["contender"]: one["tokens"] for one in measured if one["kind"] == "text"})
    assert set(texts[0]) == {"generate", "dyspec:budget=4"}
    assert texts[0] == texts[1]
    assert [bool(streamed_modules(one.target.model)) for one in loaded] == [False, True]
    assert "streamed" not in draftwood("bench", "--to", tmp_path / "results-0", "--report").stdout
    report = draftwood("bench", "--to", tmp_path / "results-1", "--report")
    assert "targets streamed from the disk" in " ".join(report.stdout.split())
    settings = [
        json.loads((tmp_path / f"results-{n}" / "results.json").read_text())["configuration"] for n in (0, 1)
    ]
    assert [one.get("offload") for one in settings] == [None, str(tmp_path / "scratch")]
    result = draftwood("bench", "--to", tmp_path / "results-1", *words)
    assert "offload was" in result.stderr
    assert result.exit_code == 1


def test_what_bench_cannot_stream_is_one_sentence(refused: Any, tmp_path: Path) -> None:
    words = ["bench", "--to", tmp_path / "results"]
    assert "--offload scratch is one process's folder" in refused(
        *words, "--offload", "scratch", "--ray", "local"
    )
    file = tmp_path / "run.toml"
    file.write_text('offload = "scratch"\n')
    folder = str(tmp_path / "scratch")
    assert f"--offload {folder} is one process's folder" in refused(*words, "--file", file, "--ray", "local")
    assert f"offload {folder!r} streams one" in refused(*words, "--file", file, "--widen", "1e6")
    assert "leave --offload out" in refused(*words, "--report", "--offload", "scratch")
    file.write_text("offload = 3\n")
    assert "offload is 3; give text." in refused(*words, "--file", file)


@pytest.mark.thorough
def test_the_demo_contests_from_the_disk(draftwood: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.apps.demo.offloaded.STREAMED", (2, 4))
    monkeypatch.setattr("draftwood.apps.demo.offloaded._TOKENS", 4)
    result = draftwood("demo", "--offload", "--prompts", 1, "--tokens", 4, "--parameters", "1e6")
    assert result.exit_code == 0, result.stderr
    assert "streamed in every pass" in result.stdout
    assert "times as fast as ordinary decoding" in " ".join(result.stdout.split())
    assert "differs" not in result.stdout


def test_only_the_layers_stay_on_the_disk(tmp_path: Path) -> None:
    backend = load(ZOO / "llama-7m", device="cpu", offload=tmp_path / "new" / "folder")
    model = backend.model
    assert {weight.device.type for weight in model.model.layers.parameters()} == {"meta"}
    assert model.lm_head.weight.device.type == "cpu"
    assert streamed_modules(model)
    assert list((tmp_path / "new" / "folder").iterdir()) == []  # it comes from the checkpoint's own files


def test_what_cannot_be_offloaded_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"offload are for folders and hub names"):
        load(zoo.load("llama-7m"), offload=tmp_path)
    with pytest.raises(InvalidInput, match=r"device 'auto' chooses their place; give one of the two"):
        load(ZOO / "llama-7m", device="auto", offload=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"folder .*file/below cannot be made .*; name another"):
        load(ZOO / "llama-7m", device="cpu", offload=tmp_path / "file" / "below")
    with pytest.raises(UnsupportedModel, match=r"another layout than transformers' and is read whole"):
        load(checkpoint("mamba2", tmp_path / "own"), device="cpu", offload=tmp_path)
    with pytest.raises(
        UnsupportedModel, match="has weights that are streamed, so its passes are not captured"
    ):
        load(ZOO / "llama-7m", device="cpu", offload=tmp_path / "more", capture="compile")


def test_a_disk_without_room_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", full)
    with pytest.raises(InvalidInput, match=r"no room for what .*No space left.*; name another folder"):
        load(ZOO / "llama-7m", device="cpu", offload=tmp_path)


def test_seeded_texts_are_the_same(tmp_path: Path) -> None:
    from draftwood import SamplingParams, SpeculativeDecoder, create

    written = []
    for offload in (None, tmp_path):
        decoder = SpeculativeDecoder(
            load(ZOO / "llama-7m", device="cpu", dtype=torch.float32, offload=offload),
            create("drafters", "model", {"backend": load(zoo.load("llama-draft"))}),
            create("policies", "layered-dyspec", {"budget": 12}),
            create("verifiers", "recursive-rejection"),
        )
        generation: Any = decoder.generate(
            [[5, 6, 7], [9]],
            max_new_tokens=10,
            sampling=SamplingParams(temperature=0.8),
            seed=3,
            return_dict_in_generate=True,
        )
        written.append(generation.tokens)
    assert written[0] == written[1]
