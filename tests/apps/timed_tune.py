"""Runs of `draftwood tune` in which passes cost what a test says."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from draftwood.apps.bench.specs import Spec
from draftwood.apps.bench.writers import Text, writer
from draftwood.apps.tune import command, measure
from draftwood.decoding.pass_time import PassTime
from tests.apps.costs import costs_of

FEW = ["--prompts", 2, "--new-tokens", 5, "--budget", 2, "--budget", 5]


@attrs.frozen
class Timed:
    """A writer whose time is that of its passes: 1 for the target, `draft` for a draft call."""

    spec: Spec
    writes: Any
    draft: float

    def write(self, prompt, tokens, seed) -> Text:
        text = self.writes.write(prompt, tokens, seed)
        drafting = self.draft * (text.draft_calls or 0)
        prefill = 1.0 * (text.prefill_tokens > 0)
        spent = {"target_seconds": 1.0 * text.rounds, "draft_seconds": drafting, "prefill_seconds": prefill}
        return attrs.evolve(text, seconds=text.rounds + drafting + prefill, **spent)


def tuned(tmp_path_factory: pytest.TempPathFactory, draft: float, *arguments: object) -> tuple[Path, str]:
    """The file and output of a run in which a draft call costs so many target passes."""
    from draftwood_cli import app
    from typer.testing import CliRunner

    file = tmp_path_factory.mktemp("tuned") / "tuned.json"
    costs = costs_of(PassTime(1.0), PassTime(draft))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "pass_costs", lambda *asked, temperature: costs)
        patch.setattr(measure, "writer", lambda spec, *rest: Timed(spec, writer(spec, *rest), draft))
        result = CliRunner().invoke(app, ["tune", "--to", str(file), *map(str, (*FEW, *arguments))])
    assert result.exit_code == 0, result.output
    return file, result.output
