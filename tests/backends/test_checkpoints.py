"""Checkpoints of `mamba_ssm` and of MambaInLlama: law S against the equations, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import draftwood
from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.loading import mamba_ssm
from draftwood.backends.loading.loader import load, load_model
from draftwood.base.errors import DraftwoodError, InvalidInput, UnsupportedModel
from draftwood.protocols import StateBackend
from draftwood.testing.backends import Mirror, StateBackendTests
from tests.backends.checkpoint_models import (
    CONFIGS,
    DISTILLED,
    IN_LLAMA,
    LLAMA,
    MambaInLlama,
    MambaSsm,
    Sequential,
    llama_tensors,
    ssm_tensors,
    write,
)
from tests.backends.recurrent_models import Doubled
from tests.thorough import marks_unless, some_of

NAMES = [*CONFIGS, *DISTILLED]
KINDS = ["mamba_options", "mamba2_groups", "half"]
"""Both layers of `mamba_ssm`, and a Llama with some; one without attention has its wide trees."""


def checkpoint(name: str, folder: Path, form: str = "bin") -> Path:
    if name in CONFIGS:
        return write(folder, ssm_tensors(CONFIGS[name]), form=form, config=CONFIGS[name])
    llama, mamba = DISTILLED[name]
    return write(folder, llama_tensors(llama, mamba), form=form, config=llama, mamba_config=mamba)


@cache
def oracle(name: str, dtype: torch.dtype) -> Sequential:
    """One for all tests of a model, so that what it has decoded is kept."""
    if name in CONFIGS:
        return MambaSsm(CONFIGS[name], ssm_tensors(CONFIGS[name]), dtype)
    llama, mamba = DISTILLED[name]
    return MambaInLlama(llama, mamba, llama_tensors(llama, mamba), dtype)


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], StateBackend]:
    """The backend of a checkpoint by name, in double precision; one for all tests of it."""

    @cache
    def backend(name: str) -> StateBackend:
        model = load_model(checkpoint(name, tmp_path_factory.mktemp(name)), dtype="float64")
        with Doubled():
            if name in DISTILLED:
                # Its angles too are kept in single precision otherwise.
                model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
            return load(model)

    return backend


@pytest.mark.parametrize("name", some_of(NAMES, KINDS))
class TestCheckpoints(StateBackendTests):
    """In double precision, where what is not exact shows."""

    examples, tolerance, longest = 4, 1e-9, 40

    @pytest.fixture(autouse=True)
    def _model(self, name: str, doubled: Callable[[str], StateBackend]) -> Iterator[None]:
        self.backend = doubled(name)
        with Doubled():
            # Tokens that only pad the vocabulary are tokens like others.
            self.vocab_size = self.backend.vocab_size
            self.logits_after = oracle(name, torch.float64)  # type: ignore[method-assign]
            yield

    def make_backend(self) -> StateBackend:
        self.backend.release()
        return self.backend


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=marks_unless(place % 2 == number))
        for place, name in enumerate(NAMES)
        for number, form in enumerate(("bin", "safetensors"))
    ],
)
def test_wide_trees_of_either_form(name: str, form: str, tmp_path: Path) -> None:
    backend = load(checkpoint(name, tmp_path, form))
    pure = name in CONFIGS or not DISTILLED[name][1]["attn_layers"]
    assert type(backend) is (SSMBackend if pure else HybridBackend)
    assert backend.vocab_size == (64 if name in CONFIGS else 61)
    mirror, rng = Mirror(backend, oracle(name, torch.float32)), random.Random(3)
    mirror.prefill([[rng.randrange(61) for _ in range(length)] for length in (70, 0, 9)])
    for size in (30, 1, 8):
        nodes = [[(rng.randrange(61), rng.randint(-1, v - 1)) for v in range(size)] for _ in range(3)]
        mirror.extend(nodes)
        mirror.commit([mirror.path(row, size - 1 - row % size) for row in range(3)])
    mirror.check_state()


@pytest.mark.parametrize("name", ["half", "tied", "before_conv"])
def test_the_llama_decodes_by_itself_too(name: str, tmp_path: Path) -> None:
    backend: Any = load(checkpoint(name, tmp_path))
    text = [3, 4, 5]
    tokens = backend.model.generate(torch.tensor([text]), max_new_tokens=12, do_sample=False, eos_token_id=63)
    for _ in range(12):
        text.append(int(oracle(name, torch.float32)(text).argmax()))
    assert tokens.tolist() == [text]


def package_model(config: dict[str, Any], tensors: dict[str, Tensor]) -> torch.nn.Module:
    """Returns a model with the name, settings and parameters of the package's class."""

    class MambaLMHeadModel(torch.nn.Module):
        pass

    MambaLMHeadModel.__module__ = "mamba_ssm.models.mixer_seq_simple"
    model = MambaLMHeadModel()
    # The package's own configurations hold every setting.
    model.config = SimpleNamespace(**mamba_ssm.MODEL | config)  # type: ignore[assignment]
    for name, tensor in tensors.items():
        module, *parts = model, *name.split(".")
        for part in parts[:-1]:
            if not hasattr(module, part):
                setattr(module, part, torch.nn.Module())
            module = getattr(module, part)
        setattr(module, parts[-1], torch.nn.Parameter(tensor))
    return model.eval()


@pytest.mark.parametrize("name", ["mamba", "mamba2_groups"])
def test_a_model_object_is_shared(name: str) -> None:
    package = package_model(CONFIGS[name], ssm_tensors(CONFIGS[name]))
    backend: Any = draftwood.load(package)
    assert type(backend) is SSMBackend
    theirs = {tensor.data_ptr() for tensor in package.state_dict().values()}
    assert {parameter.data_ptr() for parameter in backend.model.parameters()} == theirs
    mirror = Mirror(backend, oracle(name, torch.float32))
    mirror.prefill([[1, 2, 3]])
    mirror.check_state()
    with pytest.raises(InvalidInput, match=r"model\.to"):
        load(package, dtype="bfloat16")


def test_weights_of_a_folder_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Tensor]] = []
    read = vars(mamba_ssm)["read_weights"]

    def noted(folder: Path) -> dict[str, Tensor]:
        seen.append(read(folder))
        return seen[-1]

    monkeypatch.setattr(mamba_ssm, "read_weights", noted)
    backend: Any = load(checkpoint("mamba2", tmp_path), device="cpu")
    places = {tensor.data_ptr() for tensor in seen[0].values()}
    assert {parameter.data_ptr() for parameter in backend.model.parameters()} == places


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, "float64"])
@pytest.mark.parametrize("name", ["mamba", "mamba2_groups", "half"])
def test_dtypes(name: str, dtype: torch.dtype | str, tmp_path: Path) -> None:
    backend: Any = load(checkpoint(name, tmp_path), dtype=dtype, device="cpu")
    expected = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert backend.model.dtype == expected
    for parameter_name, parameter in backend.model.named_parameters():
        precise = parameter_name.endswith(("A_log", ".D"))
        assert parameter.dtype == (torch.promote_types(expected, torch.float32) if precise else expected)
    with pytest.raises(InvalidInput, match="dtype is 'int8'"):
        load(tmp_path, dtype="int8")


def test_devices(tmp_path: Path) -> None:
    folder = checkpoint("mamba2", tmp_path)
    mirror = Mirror(load(folder, device="auto"), oracle("mamba2", torch.float32))
    mirror.prefill([[1, 2]])
    mirror.check_state()
    with pytest.raises(InvalidInput, match="device 'nowhere'"):
        load(folder, device="nowhere")


def test_parts_and_old_pickles(tmp_path: Path) -> None:
    tensors = ssm_tensors(CONFIGS["mamba2"])
    names = list(tensors)
    folder = write(tmp_path, {}, config=CONFIGS["mamba2"])
    (folder / "pytorch_model.bin").unlink()
    for part, chosen in enumerate((names[:7], names[7:])):
        file = folder / f"pytorch_model-0000{part + 1}-of-00002.bin"
        torch.save({n: tensors[n] for n in chosen}, file, _use_new_zipfile_serialization=part == 0)
    mirror = Mirror(load(folder), oracle("mamba2", torch.float32))
    mirror.prefill([[1, 2]])
    mirror.check_state()
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(InvalidInput, match="missing keys"):
        load(folder)


def test_generation_settings_come_along(tmp_path: Path) -> None:
    folder = checkpoint("half", tmp_path)
    assert load(folder).eos_token_ids == (1,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert load(folder).eos_token_ids == (7, 9)
    assert load(checkpoint("mamba", tmp_path / "ssm")).eos_token_ids == ()


class Trap:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["mamba", "half"])
def test_a_pickle_makes_tensors_alone(name: str, tmp_path: Path) -> None:
    folder = checkpoint(name, tmp_path / "model")
    for content in ({"trap": Trap(tmp_path / "sprung")}, Trap(tmp_path / "sprung")):
        torch.save(content, folder / "pytorch_model.bin")
        with pytest.raises(UnsupportedModel, match="holds more than tensors, which is never loaded"):
            load(folder)
        assert not (tmp_path / "sprung").exists()
    torch.save([1, 2], folder / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match="no table of tensors"):
        load(folder)


@pytest.mark.parametrize("name", ["mamba2", "half"])
def test_weights_that_are_missing_or_damaged(name: str, tmp_path: Path) -> None:
    folder = checkpoint(name, tmp_path / "model", "safetensors")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:1000])
    with pytest.raises(InvalidInput, match="could not be read"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"has no weights, neither model\.safetensors nor"):
        load(folder)
    checkpoint(name, folder)
    content = (folder / "pytorch_model.bin").read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no such thing"):
        (folder / "pytorch_model.bin").write_bytes(damaged)
        with pytest.raises((InvalidInput, UnsupportedModel), match=r"pytorch_model\.bin (is damaged|could)"):
            load(folder)


def without_half(tensors: dict[str, Tensor]) -> None:
    for name in list(tensors)[::2]:
        del tensors[name]


def with_one_more(tensors: dict[str, Tensor]) -> None:
    tensors["backbone.layers.0.mixer.extra"] = torch.zeros(1)


def of_another_shape(tensors: dict[str, Tensor]) -> None:
    tensors["backbone.layers.1.mixer.D"] = torch.zeros(3)


def of_integers(tensors: dict[str, Tensor]) -> None:
    tensors["backbone.layers.1.mixer.D"] = torch.zeros(4, dtype=torch.int64)


def untied(tensors: dict[str, Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_half, r"\(\d+ missing keys, backbone\."),
        (with_one_more, r"\(1 unknown keys, backbone\.layers\.0\.mixer\.extra first\)"),
        (of_another_shape, r"\(1 tensors of another shape .*, backbone\.layers\.1\.mixer\.D first\)"),
        (of_integers, r"\(1 tensors of .* no floating-point dtype, backbone\.layers\.1\.mixer\.D first\)"),
        (untied, r"\(1 tied but unequal tensors, lm_head\.weight first\)"),
    ],
)
def test_weights_that_do_not_fit(spoil: Any, words: str, tmp_path: Path) -> None:
    tensors = ssm_tensors(CONFIGS["mamba2"])
    spoil(tensors)
    write(tmp_path, tensors, config=CONFIGS["mamba2"])
    with pytest.raises(InvalidInput, match=words):
        load(tmp_path)


def with_layer(**options: Any) -> dict[str, Any]:
    return CONFIGS["mamba2"] | {"ssm_cfg": CONFIGS["mamba2"]["ssm_cfg"] | options}


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (with_layer(layer="Mamba3"), UnsupportedModel, "layer = 'Mamba3', which is not supported"),
        (with_layer(D_has_hdim=True), UnsupportedModel, "D_has_hdim = True, which is not supported"),
        (with_layer(d_ssm=16), UnsupportedModel, "d_ssm = 16, which is not supported; use 32"),
        (with_layer(rope=True), UnsupportedModel, "the setting 'rope', which is not known"),
        (with_layer(d_state=0), InvalidInput, "d_state in .* is 0; it must be a whole number above 0"),
        (with_layer(expand=1.5), InvalidInput, "expand in .* is 1.5; it must be a whole number"),
        (with_layer(headdim=5), InvalidInput, "has 32 channels, which are not heads of 5 in 1 groups"),
        (with_layer(ngroups=3), InvalidInput, "which are not heads of 8 in 3 groups"),
        (with_layer(dt_limit=3), InvalidInput, "describes no model"),
        (with_layer(bias="some"), InvalidInput, "describes no model"),
        (CONFIGS["mamba2"] | {"ssm_cfg": "Mamba2"}, InvalidInput, "is 'Mamba2', no table of settings"),
        (CONFIGS["mamba2"] | {"attn_layer_idx": [1]}, UnsupportedModel, r"attn_layer_idx = \[1\]"),
        (CONFIGS["mamba2"] | {"d_intermediate": 64}, UnsupportedModel, "d_intermediate = 64"),
        (CONFIGS["mamba2"] | {"rms_norm": False}, UnsupportedModel, "rms_norm = False"),
        (CONFIGS["mamba2"] | {"d_model": "16"}, InvalidInput, "d_model in .* is '16'"),
        (CONFIGS["mamba2"] | {"dropout": 0.1}, UnsupportedModel, "the setting 'dropout', which is not known"),
        (CONFIGS["mamba2"] | {"n_layer": 3}, InvalidInput, r"missing keys, backbone\.layers\.2\."),
        (CONFIGS["mamba"] | {"ssm_cfg": {"headdim": 8}}, UnsupportedModel, "the setting 'headdim'"),
    ],
)
def test_settings_that_are_not_served(
    config: dict[str, Any], error: type[DraftwoodError], words: str, tmp_path: Path
) -> None:
    write(tmp_path, ssm_tensors(CONFIGS["mamba2"]), config=config)
    with pytest.raises(error, match=words) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    if error is UnsupportedModel:
        with pytest.raises(error, match=words):
            load(package_model(config, ssm_tensors(CONFIGS["mamba2"])))


@pytest.mark.parametrize(
    ("llama", "mamba", "error", "words"),
    [
        (LLAMA | {"model_type": "mistral"}, IN_LLAMA, UnsupportedModel, "a model of type 'mistral'"),
        (LLAMA | {"hidden_size": "32"}, IN_LLAMA, InvalidInput, "config.json in .* could not be read"),
        (LLAMA, IN_LLAMA | {"d_model": 64}, InvalidInput, "d_model = 64, but .* hidden_size = 32"),
        (LLAMA, IN_LLAMA | {"rms_norm_eps": 1e-5}, InvalidInput, "rms_norm_eps = 1e-05, but config.json"),
        (LLAMA, IN_LLAMA | {"d_xb": 12}, InvalidInput, "which do not divide into heads of d_state = 8"),
        (LLAMA, IN_LLAMA | {"attn_layers": [3]}, InvalidInput, r"attn_layers = \[3\]"),
        (LLAMA, IN_LLAMA | {"attn_layers": [0, 1]}, InvalidInput, "missing keys"),
        (LLAMA, IN_LLAMA | {"d_conv": 4}, UnsupportedModel, "the setting 'd_conv', which is not known"),
        (
            LLAMA,
            IN_LLAMA | {"ssm_cfg": {"ngroups": 4, "d_state": 8, "D_has_hdim": True}},
            UnsupportedModel,
            "D_has_hdim = True",
        ),
        (
            LLAMA,
            IN_LLAMA | {"ssm_cfg": {"ngroups": 6, "d_state": 8}, "d_inner": 48},
            UnsupportedModel,
            "d_inner = 48, which is not supported",
        ),
    ],
)
def test_distilled_settings_that_are_not_served(
    llama: dict[str, Any], mamba: dict[str, Any], error: type[DraftwoodError], words: str, tmp_path: Path
) -> None:
    write(tmp_path, llama_tensors(LLAMA, IN_LLAMA), config=llama, mamba_config=mamba)
    with pytest.raises(error, match=words) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_llamas_distilled_into_mamba_1(tmp_path: Path) -> None:
    folder = checkpoint("half", tmp_path, "safetensors")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mamba.in_proj_x.weight"] = torch.zeros(16, 32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="distilled into Mamba-1, which are not supported"):
        load(folder)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_mamba_config(text: str, tmp_path: Path) -> None:
    folder = checkpoint("half", tmp_path)
    (folder / "mamba_config.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"mamba_config\.json (could not be read|holds no JSON object)"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InvalidInput, match=r"config\.json could not be read"):
        load(folder)
