"""MTP layers: made for a target that has none, and trained as heads are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftwood.base.errors import UnsupportedModel
from draftwood.strategies.mtp.checkpoint import load_layer
from draftwood.zoo.heads.agreement import agreement
from draftwood.zoo.heads.eagle3 import HeadOptions, trained_head
from draftwood.zoo.heads.known_text import known_text
from draftwood.zoo.heads.mtp import new_layer, new_layout, save_trained
from tests.zoo.test_heads import rows, target


def test_a_layer_begins_with_the_targets_own_state() -> None:
    head = new_layer(target(), new_layout(target(), intermediate=20, depths=3), seed=0)
    text = known_text(target(), rows().tokens, head.taps_in(4))
    (out,) = text.drafted(head, depths=1)
    # What the target says behind the token before a pair's.
    own = target().lm_head(text.features)
    assert (head.logits(out).argmax(-1) == own.argmax(-1)).float().mean() > 0.7


def test_training_raises_the_agreement_at_every_depth(tmp_path: Path) -> None:
    layout = new_layout(target(), depths=3)
    fresh, head = (new_layer(target(), layout, seed=0) for _ in range(2))
    options = HeadOptions(steps=60, batch=300, learning_rate=2e-2, depths=3)
    shards = [rows(1.0), rows(1.0, 1)]
    for _ in trained_head(target(), head, shards, options=options, checkpoint=tmp_path / "checkpoint.pt"):
        pass
    before, after = (agreement(target(), one, [rows(1.0, 2)], depths=3).by_depth for one in (fresh, head))
    assert all(new > old + 0.02 for old, new in zip(before, after, strict=True))
    save_trained(head, tmp_path / "layer", target="big")
    read = load_layer(tmp_path / "layer")
    assert read.layout.trained_depths == 3
    assert read.like.dtype == torch.bfloat16
    assert torch.equal(read.projection.weight, head.projection.weight)


def test_targets_whose_logits_are_scaled_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = target()
    plain = type(model).forward

    def scaled(self, *arguments, **options):
        output = plain(self, *arguments, **options)
        output.logits = output.logits / 4
        return output

    monkeypatch.setattr(type(model), "forward", scaled)
    with pytest.raises(UnsupportedModel, match="scales or caps its logits"):
        new_layer(model, new_layout(model, depths=2), seed=0)
