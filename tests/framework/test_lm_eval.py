"""lm-evaluation-harness: its model of transformers writes equal texts with draft trees."""

from typing import Any

import pytest
import torch

from draftwood import zoo

pytest.importorskip("lm_eval", reason="the extra `integrations` brings lm-eval")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from draftwood.integrations.lm_eval import DraftwoodLM
from tests.near_ties import check_ties

pytestmark = pytest.mark.integrations

# Stops that begin in the prompt, stop at once, lie over two tokens, or never come.
TASKS = [
    ("import torch\n", ["\n\n"]),
    ("x = 1\n", ["\n\n"]),
    ("x = 1\n", ["\n#", "\ndef", "\nclass"]),
    ('def f(x):\n    """Add one."""\n', ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]),
    ("# a\n# b\n", ["\n#"]),
    ("Question: Tom has 3 apples and buys 4. How many?\nAnswer:", ["Question:", "."]),
    ("Dear Sir,", []),
]


def texts(lm, **options):
    requests = [
        Instance("generate_until", {}, (prompt, {"until": until, "max_gen_toks": 16, **options}), number)
        for number, (prompt, until) in enumerate(TASKS)
    ]
    return lm.generate_until(requests, disable_tqdm=True)


def check_texts(plain, found, expected):
    """Texts are equal but where two tokens are equally likely within the rounding of bfloat16."""
    for (prompt, _), mine, theirs in zip(TASKS, found, expected, strict=True):
        ids = [plain.tok_encode(prompt + text) for text in (mine, theirs)]

        def scores_at(place, ids=ids[1]):
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                return plain.model(torch.tensor([ids[:place]])).logits[0, -1]

        if mine != theirs:
            check_ties(ids[0], ids[1], scores_at)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("options", [{}, {"mixed_precision_dtype": "bfloat16"}], ids=["fp32", "autocast"])
def test_drafted_texts_are_those_of_lm_eval(rows, options, monkeypatch):
    options = {"tokenizer": zoo.tokenizer(), "batch_size": rows, "device": "cpu", **options}
    plain = HFLM(pretrained=zoo.load("llama-7m"), **options)
    ours = DraftwoodLM(zoo.load("llama-7m"), drafter=str(zoo.path("llama-draft")), **options)
    dtypes = []
    head = ours.model.get_output_embeddings()
    head.register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
    expected = texts(plain, do_sample=False)
    found = texts(ours, do_sample=False)
    autocast = "mixed_precision_dtype" in options
    if autocast:
        check_texts(plain, found, expected)
    else:
        assert found == expected
    assert len(set(expected)) > 3
    assert set(dtypes) == {torch.bfloat16 if autocast else torch.float32}
    loop: Any = ours._loop
    assert loop._decoder is not None  # it was ours that wrote


def test_a_temperature_is_sampled_at():
    lm = DraftwoodLM(zoo.load("llama-7m"), tokenizer=zoo.tokenizer(), device="cpu")
    torch.manual_seed(0)
    assert texts(lm, temperature=1.0, do_sample=True) != texts(lm, temperature=1.0, do_sample=True)
    assert texts(lm) == texts(lm, temperature=0.0)
