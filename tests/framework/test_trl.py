"""TRL's GRPO: its trainer calls `generate()` as ever; draft trees write the texts while weights change."""

import json

import pytest
import torch

from benchmarks.__main__ import app
from draftwood import create, custom_generate, zoo
from draftwood.zoo.distil.online import OnlineDistillation
from tests.near_ties import check_ties
from tests.thorough import marks_unless

pytest.importorskip("trl", reason="the extra `integrations` brings TRL")

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from typer.testing import CliRunner

pytestmark = pytest.mark.integrations

PROMPTS = ["Dear Sir,", "def fibonacci(n):\n", "Once upon a time", "Question: Tom has"]


def reward(completions, **_):
    return [float(len(set(text))) for text in completions]


class Compared:
    """`generate` of a model in training, with every greedy text compared with the plain one."""

    def __init__(self, model, exact, draft=None, learner=None):
        method = create("recipes", "dyspec", {"budget": 8})
        drafter = zoo.load("llama-draft") if draft is None else draft
        self.loop = custom_generate(
            drafter=drafter, policy=method.policy, verifier=method.verifier, learner=learner
        )
        self.generate, self.exact = type(model).generate.__get__(model), exact
        self.model, self.texts, self.modes = model, set(), set()

    def __call__(self, *args, **options):
        self.modes.add(self.model.training)
        greedy = {**options, "do_sample": False}
        shown = {"return_dict_in_generate": True, "output_scores": True}
        plain = self.generate(*args, **greedy, **shown)
        ours = self.generate(*args, **greedy, custom_generate=self.loop)
        if self.exact:
            assert torch.equal(ours, plain.sequences)
        else:
            prompt = options["input_ids"].shape[1]
            for row, (mine, theirs) in enumerate(zip(ours.tolist(), plain.sequences.tolist(), strict=True)):

                def scores_at(place, row=row):
                    return plain.scores[place - prompt][row]

                check_ties(mine, theirs, scores_at)
        self.texts.add(str(ours.tolist()))
        return self.generate(*args, **options, custom_generate=self.loop)  # sampled, for the training itself


def grpo(tmp_path, *, steps, bf16=False):
    """A trainer of llama-7m on a few prompts."""
    tokenizer = zoo.tokenizer()
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.pad_token or tokenizer.eos_token
    options = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=12,
        max_steps=steps,
        bf16=bf16,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        gradient_checkpointing=False,
        learning_rate=1e-3,
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=zoo.load("llama-7m"),
        reward_funcs=reward,
        args=options,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("steps", [4, pytest.param(20, marks=marks_unless(False))])
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_texts_are_equal_while_weights_change(bf16, steps, tmp_path):
    trainer = grpo(tmp_path, steps=steps, bf16=bf16)
    compared = trainer.model.generate = Compared(trainer.model, exact=not bf16)
    before = trainer.model.get_output_embeddings().weight.detach().clone()
    trainer.train()
    assert compared.modes == {True}  # as TRL calls it
    assert len(compared.texts) > steps // 2
    assert not torch.equal(before, trainer.model.get_output_embeddings().weight)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_texts_are_equal_while_the_draft_follows(bf16, tmp_path):
    trainer, draft = grpo(tmp_path, steps=4, bf16=bf16), zoo.load("llama-draft")
    learner = OnlineDistillation(draft=draft, learning_rate=2e-3)
    compared = trainer.model.generate = Compared(trainer.model, exact=not bf16, draft=draft, learner=learner)
    before = draft.model.norm.weight.detach().clone()
    trainer.train()
    assert learner.taken == 8  # of greedy and of sampled texts
    assert len(compared.texts) > 2
    assert not torch.equal(before, draft.model.norm.weight)


def test_the_benchmark_of_rollouts(tmp_path):
    table = tmp_path / "table.csv"
    options = ["--steps", "6", "--prompts", "2", "--texts", "8", "--tokens", "6", "--csv", str(table)]
    result = CliRunner().invoke(app, ["rollouts", str(data(tmp_path)), *options])
    assert result.exit_code == 0, result.output
    assert [line.split(",")[0] for line in table.read_text().splitlines()] == [
        "draft",
        "earlier rollouts",
        "frozen",
        "following",
    ]
    assert result.output.count("greedy texts equal at 6 of 6 steps") == 3


def data(folder):
    """Prompts in the form of GSM8K."""
    rows = [{"question": f"{text} {n}?", "answer": f"#### {n}"} for n, text in enumerate(PROMPTS)]
    (folder / "gsm8k_test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder
