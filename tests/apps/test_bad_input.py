"""Mistakes of users: each gives one sentence that names it, a non-zero exit and no traceback."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--prompt", ""], ["prompt is empty"]),
        (["--prompt", "x", "--prompt-file", "y"], ["--prompt", "--prompt-file", "one of them"]),
        (["--prompt-file", "/no/such.txt"], ["'/no/such.txt'", "No such file"]),
        (["--temperature", "-0.5"], ["temperature is -0.5"]),
        (["--top-p", "0"], ["top_p is 0", "(0, 1]"]),
        (["--top-p", "1.5"], ["top_p is 1.5"]),
        (["--min-p", "2"], ["min_p is 2"]),
        (["--top-k", "-1"], ["top_k is -1"]),
        (["--temperature", "5e-324"], ["temperature=5e-324 is too small", "Use 0 for greedy decoding."]),
        (["--draft-temperature", "-1"], ["temperature is -1"]),
        (["--max-new-tokens", "0"], ["max_new_tokens is 0"]),
        (["--seed", "-1", "--temperature", "1"], ["seed is -1"]),
        (["--stop", ""], ["stop string is empty"]),
        (["--policy", "dispec"], ["'dispec'", "did you mean 'dyspec'?"]),
        (["--verifier", "gredy"], ["'gredy'", "did you mean 'greedy'?"]),
        (["--drafter", "prompt-lokup"], ["prompt-lokup"]),
        (["-o", "bugdet=3"], ["'bugdet'", "did you mean 'budget'?"]),
        (["-o", "budget"], ["'budget'", "name=value"]),
        (["-o", "budget=many"], ["budget is 'many'", "integer"]),
        (["-o", "budget=0"], ["budget is 0"]),
        (["-o", "law=topk"], ["'topk'", "did you mean 'top-k'?"]),
        (["--policy", "chain", "-o", "law=per-drafter"], ["PerChild", "1 drafter"]),
        (["--verifier", "greedy", "--temperature", "1"], ["Greedy", "only supports temperature 0"]),
        (["--target", "/no/model"], ["no model folder /no/model"]),
        (["--target", "no-such-model"], ["no-such-model is neither a folder"]),
        (["--drafter", "some/unknown-model"], ["some/unknown-model"]),
        (["--tokenizer", "/no/tokenizer"], ["/no/tokenizer", "--tokenizer"]),
        (["--device", "tpu"], ["'tpu'", "'cpu'"]),
        (["--recipe", "rsdc"], ["'rsdc'", "'rsd-c'"]),
        (["--recipe", "rsd-s", "--policy", "chain"], ["--recipe rsd-s", "--policy chain"]),
        (["--recipe", "rsd-s", "--verifier", "block"], ["--recipe rsd-s", "--verifier block"]),
        (["--recipe", "rsd-s", "-o", "widt=3"], ["'widt'", "'width'"]),
        (["--trace", "/no/such/folder/trace.json"], ["/no/such/folder", "does not exist"]),
        (["--trace", "/"], ["'/'", "is a folder"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0].startswith("-") else "",
)
def test_options(refused, arguments, parts):
    prompt = [] if any(a.startswith("--prompt") for a in arguments) else ["--prompt", "Hello"]
    sentence = refused("generate", *prompt, *arguments)
    for part in parts:
        assert part in sentence


def test_standard_input_that_is_no_text(refused):
    assert "UTF-8" in refused("generate", stdin=b"\xff\xfe\x00")
    assert "empty" in refused("generate", stdin="\n")


def test_prompt_longer_than_the_context(refused, tiny):
    rotation = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    sentence = refused("generate", "--prompt", "word " * 100, "--target", tiny(rope_parameters=rotation))
    assert "holds 64" in sentence


def test_differing_vocabulary_sizes(refused, tiny):
    sentence = refused("generate", "--prompt", "x", "--drafter", tiny(vocab_size=5000))
    assert "5000" in sentence
    assert "4096" in sentence


def test_model_without_a_tokenizer(refused, tiny):
    folder = tiny()
    for file in folder.glob("*token*"):
        file.unlink()
    assert "--tokenizer" in refused("generate", "--prompt", "x", "--target", folder)


def test_corrupt_tokenizer(refused, tiny):
    folder = tiny()
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    assert str(folder) in refused("generate", "--prompt", "x", "--target", folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_corrupt_model(refused, tiny, file):
    folder = tiny()
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[: len(data) // 2])
    assert str(folder) in refused("generate", "--prompt", "x", "--target", folder)


def test_folder_without_weights(refused, tiny):
    folder = tiny()
    (folder / "model.safetensors").unlink()
    assert str(folder) in refused("generate", "--prompt", "x", "--target", folder)


def test_pickled_weights_are_never_loaded(refused, tiny):
    folder = tiny()
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert "safetensors" in refused("generate", "--prompt", "x", "--target", folder)


def test_logits_that_are_no_numbers(refused, tiny):
    folder = tiny()
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][7] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    result = refused("generate", "--prompt", "x", "--target", folder, "--json")
    assert "nan" in result.lower()


def test_remote_code_is_refused_unless_wanted(refused, draftwood, tiny, tmp_path):
    folder, witness = tiny(), tmp_path / "ran"
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        f"open({str(witness)!r}, 'w').close()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    arguments = ["generate", "--prompt", "x", "--target", folder, "--max-new-tokens", 2]
    sentence = refused(*arguments)
    assert "code" in sentence
    assert not witness.exists()
    assert draftwood(*arguments, "--trust-remote-code").exit_code == 0
    assert witness.exists()


def test_out_of_memory_says_how_to_shrink(refused, monkeypatch):
    from transformers import LlamaForCausalLM

    from draftwood.apps.models import by_name as models

    load = models.load

    def loaded(*arguments: Any, **options: Any) -> Any:
        found = load(*arguments, **options)

        def forward(*_: object, **__: object) -> None:
            raise torch.OutOfMemoryError("out of memory")

        monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
        return found

    monkeypatch.setattr(models, "load", loaded)
    sentence = refused("generate", "--prompt", "x", "--json")
    assert "out of memory" in sentence
    assert "budget" in sentence
