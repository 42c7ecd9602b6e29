"""`UnrolledBackend`: what it keeps of a pass, and what it recomputes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.base.errors import InvalidInput, OutOfMemory
from draftwood.testing.backends import Mirror
from tests.backends.attention_models import against, bloom, tiny, words
from tests.backends.recurrent_models import build


def windowed() -> Any:
    return tiny(hf.MistralConfig, sliding_window=5)


def mirror(model: Any, **options: Any) -> Mirror:
    return against(model, UnrolledBackend(model, **options))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Batch and width of every pass."""
    seen: list[tuple[int, int]] = []
    run = UnrolledBackend._run

    def counted(self: Any, cache: Any, tokens: torch.Tensor, row: Any, **options: Any) -> torch.Tensor:
        seen.append((tokens.shape[0], tokens.shape[1]))
        return run(self, cache, tokens, row, **options)

    monkeypatch.setattr(UnrolledBackend, "_run", counted)
    return seen


@pytest.mark.parametrize("build", [bloom, windowed])
@pytest.mark.parametrize("prompt", [3, 12])
def test_a_commit_keeps_the_row_that_ran_the_path(build: Any, prompt: int, passes: list[Any]) -> None:
    both = mirror(build())
    both.prefill([words(prompt)])
    both.extend([[(1, -1), (2, 0), (3, 0), (4, 2), (5, 3)]])
    assert passes == [(1, prompt), (2, 4)]
    both.commit([[0, 2]])  # shorter than the row that ran it
    assert len(passes) == 2
    both.check_state()
    both.extend([[(1, -1), (2, 0)]])
    both.commit([[0, 1]])
    both.check_state()


def test_a_path_that_the_last_pass_did_not_run_is_run_again(passes: list[Any]) -> None:
    both = mirror(bloom())
    both.prefill([words(4)])
    both.extend([[(1, -1), (2, 0), (3, 0)]])
    both.extend([[(4, 1)]])
    passes.clear()
    both.commit([[0, 2]])
    assert passes == [(1, 2)]
    both.check_state()


def test_later_calls_recompute_uncommitted_ancestors(passes: list[Any]) -> None:
    both = mirror(bloom())
    both.prefill([words(4)])
    both.extend([[(1, -1), (2, 0)]])
    both.extend([[(3, 1), (4, 1), (5, 0)]])
    assert passes[1:] == [(1, 2), (3, 3)]


def test_prefill_in_chunks(passes: list[Any]) -> None:
    both = mirror(windowed(), chunk=4)
    both.prefill([words(11), words(4)])
    assert passes == [(1, 4), (1, 4), (1, 3), (1, 4)]
    both.check_state()


def test_context_and_memory_errors_leave_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model = windowed()
    both = mirror(model)
    both.backend.max_length = 9
    both.prefill([words(6), words(2)])
    with pytest.raises(InvalidInput, match="row 0 has position 9.*holds 9"):
        both.backend.extend(torch.tensor([[1, 1, 1, 1], [2, 2, 2, 2]]), torch.tensor([[-1, 0, 1, 2]] * 2))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[1].mlp, "forward", fail)
        with pytest.raises(OutOfMemory):
            both.backend.extend(torch.tensor([[1], [2]]), torch.tensor([[-1], [-1]]))
        with pytest.raises(OutOfMemory):
            both.backend.prefill([torch.tensor(words(3))])
    both.check_lengths()
    both.extend([[(1, -1)], [(2, -1), (3, 0)]])
    both.commit([[0], [0, 1]])
    both.check_state()


def test_a_failed_replay_keeps_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bloom()
    both = mirror(model)
    both.prefill([words(4)])
    both.extend([[(1, -1), (2, 0), (3, 0)]])
    both.extend([[(4, 1)]])
    with monkeypatch.context() as patch:
        patch.setattr(model.transformer.h[1].mlp, "forward", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            both.backend.commit([[0, 2]])
    both.commit([[0, 2]])
    both.check_state()


def test_rows_may_join_in_the_middle_of_a_round() -> None:
    both = mirror(bloom())
    both.prefill([words(4)])
    both.extend([[(1, -1)]])
    both.prefill([words(2)])
    both.extend([[(2, 0)], [(3, -1)]])
    both.commit([[0, 1], [0]])
    both.check_state()


@pytest.mark.parametrize("name", ["mamba2", "bamba", "lfm2"])
def test_recurrent_states_are_copied_for_every_path(name: str, passes: list[Any]) -> None:
    both = mirror(build(name))
    both.prefill([words(9), words(3), []])
    for _ in range(2):
        both.extend([[(1, -1), (2, 0), (3, 0)], [(4, -1)], [(5, -1), (6, 0), (7, 1)]])
        both.extend([[(4, 1), (5, 2)], [(6, 0), (7, 0)], []])
        both.commit([[0, 2], [0, 2], [0, 1]])
    both.check_state()
