"""Sizes of a head's description that its weights do not hold: refused before memory is asked for."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import DraftwoodError, InvalidInput, zoo
from draftwood.strategies.blocks.files import load_block, save_block
from draftwood.strategies.heads.formats import load_head, save_head
from draftwood.strategies.heads.peagle import load_peagle, save_peagle
from draftwood.strategies.heads.sizes import check_guesses, check_held, check_layers
from draftwood.strategies.mtp.checkpoint import load_layer
from tests.strategies import block_heads, test_p_eagle
from tests.strategies.mtp_layers import KINDS as MTP
from tests.strategies.mtp_layers import checkpoint

pytestmark = pytest.mark.linux

HUGE = (10**9, 2**31 - 1, 2**62)
MEMORY = 400 * 2**20  # bytes that reading a head may ask for
SECONDS = 20
Load = Callable[[Path], Any]


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Load]]:
    """A sound head of every format, and what reads it."""
    base, zoos = tmp_path_factory.mktemp("heads"), {}
    for name, load in (
        ("llama-7m-eagle3", load_head),
        ("llama-7m-dspark", load_block),
        ("bamba-6m-mtp", load_layer),
    ):
        zoos[name] = (Path(shutil.copytree(zoo.path(name), base / name)), load)
    found: dict[str, tuple[Path, Load]] = dict(zoos)
    save_head(load_head(zoo.path("llama-7m-eagle3")), base / "eagle3", target="x", format="speculators")
    found["eagle3 of speculators"] = base / "eagle3", load_head
    save_peagle(test_p_eagle.random_head(test_p_eagle.KINDS["plain"]), base / "peagle", target="x")
    found["P-EAGLE"] = base / "peagle", load_peagle
    for kind in ("map", "rnn behind the root"):
        drafter = block_heads.random_head(block_heads.KINDS[kind])
        save_block(drafter, base / kind, target="x", format="speculators")
        found[f"block, {kind}"] = base / kind, load_block
    for kind in MTP:
        found[f"MTP, {kind}"] = checkpoint(MTP[kind], base / f"mtp-{kind}"), load_layer
    return found


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a description integers are."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, dict | list):
            yield from numbers(inner, (*path, key))
        elif type(inner) is int:
            yield (*path, key)


def tried(folder: Path, load: Load) -> str:
    """Returns the result of reading a head with little memory and time, in a separate process."""
    reads, writes = os.pipe()
    if not (child := os.fork()):
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
        signal.alarm(SECONDS)
        try:
            load(folder)
            said = "read"
        except DraftwoodError as error:
            said = f"refused: {error}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode()[:4000])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as told:
        said = told.read().decode(errors="replace")
    os.waitpid(child, 0)
    return said or "killed"


# What a size decides: tables, layers, rotations and passes; the rest of the numbers is told by nothing.
SIZES = {
    "block_size",
    "draft_vocab_size",
    "hidden_size",
    "intermediate_size",
    "markov_rank",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "speculative_tokens",
    "target_hidden_size",
    "vocab_size",
}


@pytest.mark.parametrize(
    "name",
    [
        "llama-7m-eagle3",
        "llama-7m-dspark",
        "bamba-6m-mtp",
        "eagle3 of speculators",
        "P-EAGLE",
        "block, map",
        "block, rnn behind the root",
        *(pytest.param(f"MTP, {kind}", marks=[] if kind == "mimo" else pytest.mark.thorough) for kind in MTP),
    ],
)
def test_a_size_of_a_thousand_million_is_one_sentence_and_takes_no_memory(heads, tmp_path, name):
    folder, load = heads[name]
    at = Path(shutil.copytree(folder, tmp_path / "head"))
    assert tried(at, load) == "read"
    sound = json.loads((at / "config.json").read_text())
    for path in numbers(sound):
        changed = copy.deepcopy(sound)
        place = changed
        for key in path[:-1]:
            place = place[key]
        for size in HUGE:
            place[path[-1]] = size
            (at / "config.json").write_text(json.dumps(changed))
            said = tried(at, load)
            where = f"{path} is {size}: {said}"
            if said != "read":
                assert said.startswith("refused: "), where
                assert "\n" not in said, where
                assert len(said) < 600, where
            elif path[-1] in SIZES and "mtp" not in name.lower():
                # SafeAILab's files name layers that its class does not build.
                assert path[-1] in ("speculative_tokens", "num_hidden_layers"), where
                assert path[-1] != "num_hidden_layers" or name == "llama-7m-eagle3", where
                assert name != "P-EAGLE", where  # which reads it


def test_what_the_sentences_say(heads, tmp_path):
    at = Path(shutil.copytree(heads["llama-7m-eagle3"][0], tmp_path / "head"))
    sound = json.loads((at / "config.json").read_text())
    (at / "config.json").write_text(json.dumps(sound | {"hidden_size": 10**9, "head_dim": 64}))
    with pytest.raises(
        InvalidInput, match="hidden_size is 1000000000 in '.*head', and its weights are 4096 wide"
    ):
        load_head(at)
    tensors = {"a": torch.zeros(3, 5), "b": torch.zeros(())}
    check_held({"x": 5}, tensors, vocabulary=2**24, where="'x'")
    for sizes, vocabulary in (({"x": 6}, 1), ({}, 2**24 + 1)):
        with pytest.raises(InvalidInput, match="its weights are 5 wide at most"):
            check_held(sizes, tensors, vocabulary=vocabulary, where="'x'")
    check_layers(256, tensors, "'x'")
    with pytest.raises(InvalidInput, match="its files hold 2 tensors"):
        check_layers(257, tensors, "'x'")
    check_guesses("block_size", 1024)
    with pytest.raises(InvalidInput, match="block_size is 1025; heads that guess up to 1024"):
        check_guesses("block_size", 1025)
