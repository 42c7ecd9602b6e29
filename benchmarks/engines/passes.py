"""Passes over draft trees by OpenVINO, compared with its own stateful pass over as many tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import torch
import typer
from transformers import AutoModelForCausalLM

from draftwood import load
from draftwood.apps.files.machine import device_name
from draftwood.base.errors import InvalidInput


def engine_passes(
    folders: Annotated[Path, typer.Argument(help="What engine-folders wrote.")],
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    weights: Annotated[str, typer.Option(help="Rounded weights: int8; default: as they are.")] = "",
    nodes: Annotated[str, typer.Option(help="Nodes of the passes.")] = "1,5,9,17",
    context: Annotated[int, typer.Option(help="Tokens before them.", min=1)] = 256,
    repetitions: Annotated[int, typer.Option(help="Timed passes of each kind, in turns.", min=1)] = 40,
    threads: Annotated[int, typer.Option(help="Of the engine.", min=1)] = 2,
) -> None:
    """Time passes of draftwood over OpenVINO, and stateful passes of what optimum-intel exported.

    Times are of whole calls: for draftwood a tree's pass with its masks and the commit of its root. Shows the
    fastest, as other programs only make passes slower, and the median. Over rounded weights the engine rounds
    activations too, and draftwood does so in bfloat16 only.
    """
    torch.set_num_threads(threads)
    rounded: Any = weights or None
    exported = folders / (f"openvino-{weights}" if weights else "openvino") / "target"
    if not (exported / "openvino_model.xml").is_file():
        raise InvalidInput(f"weights={weights!r}: there is no {exported}; run engine-folders, or give int8.")
    model = AutoModelForCausalLM.from_pretrained(folders / "target", dtype=getattr(torch, dtype)).eval()
    vocab = model.config.vocab_size
    text = (17 * np.arange(context) + 11) % vocab
    ours: Any = load(model, engine="openvino", weights=rounded)
    own = Stateful(exported, text, dtype=dtype, threads=threads)
    ours.prefill([torch.from_numpy(text)])
    kind = f"{dtype}, {weights}" if weights else dtype
    typer.echo(f"{device_name()}: {folders}, {kind}, {context} tokens before; ms, fastest and median")
    typer.echo(f"{'nodes':>6}{'draftwood':>18}{'engine':>18}{'ratio':>8}{'CPU':>8}{'engine':>8}{'ratio':>8}")
    for count in map(int, nodes.split(",")):
        tokens = (np.arange(count) + 5) % vocab
        parents = torch.from_numpy((np.arange(count) + 1) // 2 - 1).unsqueeze(0)
        ids = torch.from_numpy(tokens).unsqueeze(0)

        def tree(ids: Any = ids, parents: Any = parents) -> None:
            ours.extend(ids, parents)

        def stateful(tokens: Any = tokens) -> None:
            own.run(tokens)

        found = _timed(
            {"ours": tree, "own": stateful},
            {"ours": lambda: ours.commit([[]]), "own": own.rewind},
            repetitions,
        )
        wall = {name: [one for one, _ in times] for name, times in found.items()}
        cpu = {name: min(one for _, one in times) for name, times in found.items()}
        shown = {name: f"{min(times):.2f}, {median(times):.2f}" for name, times in wall.items()}
        typer.echo(
            f"{count:>6}{shown['ours']:>18}{shown['own']:>18}{min(wall['ours']) / min(wall['own']):>8.2f}"
            f"{cpu['ours']:>8.2f}{cpu['own']:>8.2f}{cpu['ours'] / cpu['own']:>8.2f}"
        )


class Stateful:
    """The model that optimum-intel exported, whose keys and values are in the engine's own state."""

    def __init__(self, folder: Path, text: Any, *, dtype: str, threads: int) -> None:
        """Compile the model of `folder` and read `text`, `[tokens]`; other options are the engine's own."""
        import openvino

        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
            "KV_CACHE_PRECISION": {"float32": "f32", "bfloat16": "bf16"}[dtype],
        }
        compiled = openvino.Core().compile_model(str(folder / "openvino_model.xml"), "CPU", options)
        self._request, self._length = compiled.create_infer_request(), 0
        self._names = {name for one in compiled.inputs for name in one.names}
        self.run(text)
        self._length = len(text)
        self._kept = [np.array(state.state.data) for state in self._request.query_state()]

    def run(self, tokens: Any) -> Any:
        """Returns logits `[1, tokens, vocab]`, and keeps the tokens in the state."""
        count = len(tokens)
        inputs = {
            "input_ids": np.asarray(tokens, np.int64)[None],
            "attention_mask": np.ones((1, self._length + count), np.int64),
            "position_ids": np.arange(self._length, self._length + count)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer({name: one for name, one in inputs.items() if name in self._names})
        return self._request.get_output_tensor(0).data

    def rewind(self) -> None:
        """Go back to the text."""
        import openvino

        for state, kept in zip(self._request.query_state(), self._kept, strict=True):
            state.state = openvino.Tensor(kept)


def _timed(
    runs: dict[str, Callable[[], None]], after: dict[str, Callable[[], None]], repetitions: int
) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds of each, in turns, and of CPU time; what follows a run is not timed."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(-3, repetitions):
        for name, run in runs.items():
            busy, started = process_time(), perf_counter()
            run()
            taken = 1e3 * (perf_counter() - started), 1e3 * (process_time() - busy)
            if number >= 0:
                found[name].append(taken)
            after[name]()
    return found
