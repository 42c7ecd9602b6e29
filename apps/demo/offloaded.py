"""The demo's contest where the target's weights stay on the disk: ordinary decoding, and the tree for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from draftwood.apps.files.machine import Pair
from draftwood.apps.models import by_name as models
from draftwood.apps.tune.command import STREAMED, candidates, measure
from draftwood.apps.tune.measure import TuneTrial
from draftwood.protocols import registry

_PROMPTS, _TOKENS = 2, 24  # of the trial of each budget; the contest's texts are twice as long


def contest_offloaded(console: Console, pair: Pair, tokenizer: Any, prompts: Sequence[Sequence[int]]) -> None:
    """Write the widened target to the disk, find the tree that pays with streamed weights, and contest it."""
    with TemporaryDirectory(prefix="draftwood-") as folder:
        place = Path(folder)
        with console.status("writing the target's weights to the disk"):
            pair.target.save_pretrained(place)
        size = pair.target.num_parameters() * pair.target.dtype.itemsize
        target = registry.load(place, device=pair.target.device, offload=place / "converted")
        loader = models.Loader(models.Dtype.auto, target.device, trust_remote_code=False)
        loaded = models.Loaded(target, registry.load(pair.draft), tokenizer, loader)
        trial = TuneTrial(loaded, prompts[:_PROMPTS], temperature=0.0, seed=0)
        specs = candidates(["dyspec"], models.DRAFT, STREAMED, 0.0)
        found = measure(trial, specs, _TOKENS, max(STREAMED))
    one = found.costs.target(1)
    passes = (
        f"\nWith its layers on the disk ({size / 1e9:.1f} GB, streamed in every pass) a pass over one token "
        f"takes {one * 1e3:.0f} ms"
    )
    if not found.contest:
        console.print(f"{passes}, and no tree pays: {found.gain:.2f} times ordinary decoding at best.")
        return
    best = max(found.contest, key=lambda result: result.gain)
    chosen = next(estimate for estimate in found.estimates if estimate.label == best.label)
    tree = found.costs.target(1 + round(chosen.tree_size))
    console.print(
        f"{passes}, one over {chosen.tree_size:.0f} nodes {tree * 1e3:.0f} ms.\n"
        f"{best.label} brings {chosen.tokens_per_round:.2f} tokens a pass, and is {best.gain:.2f} times as "
        "fast as ordinary decoding of the same streamed target, which reads its next layer ahead too."
    )
    if not best.equal:
        console.print("Some text differs from that of generate(), as rounding may make it.")
