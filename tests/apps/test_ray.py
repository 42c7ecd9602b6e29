"""Work over a Ray cluster on this machine, with two workers, also when processes of it die."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.apps.cells import cells

pytestmark = [pytest.mark.ray, pytest.mark.linux]

MINE = '''
    """Drafters that look text up, and do to the process that they run in what a file asks for."""

    import os, signal, time
    from pathlib import Path

    from draftwood.strategies.drafters.prompt_lookup import PromptLookup

    HERE = Path(__file__).parent
    slow = False


    def asked(what):
        """Whether this process, and no other, is to do `what`."""
        try:
            (HERE / what).unlink()
        except FileNotFoundError:
            return False
        return True


    class Drafter(PromptLookup):
        calls = 0

        def distributions(self, requests):
            global slow
            Drafter.calls += 1
            slow = slow or asked("slow")
            time.sleep(0.3 if slow or (HERE / "slow-always").exists() else 0)
            if Drafter.calls > 20 and (asked("die") or (HERE / "die-always").exists()):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().distributions(requests)

        def prefill(self, rows):
            with (HERE / "prefills").open("a") as file:
                file.write("".join(f"{os.getpid()}\\n" for _ in rows))
            super().prefill(rows)
'''

OPTIONS = ("--target", "llama-draft", "--drafter", "mine:Drafter", "--temperature", 0.7, "--seed", 5)
SHORT = ("--max-new-tokens", 6, "--rows", 4)


# The clusters of these tests have a token of their own, whatever there is on this machine.
SETTING = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


STARTS = 3
"""Ray gives up a start that a busy machine draws out."""


class Cluster:
    """A Ray cluster of two CPUs, in separate processes; `folder` is on its path."""

    def __init__(self, folder):
        log = folder / "cluster.log"
        for _ in range(STARTS):
            self.start(folder, log)
            while "Ray runtime started" not in log.read_text() and self.process.poll() is None:
                time.sleep(0.1)
            if self.process.poll() is None:
                return
            with suppress(ProcessLookupError):
                self.kill()  # what its head has left running
        raise AssertionError(log.read_text())

    def start(self, folder, log):
        self.address = f"127.0.0.1:{free_port()}"
        port = self.address.split(":")[1]
        words = ["start", "--head", "--block", "--num-cpus=2", f"--port={port}", "--include-dashboard=false"]
        environment = {**os.environ, **SETTING, "PYTHONPATH": str(folder)}
        with log.open("w") as written:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from ray.scripts.scripts import main; main()",
                    *words,
                    "--object-store-memory=100000000",
                ],
                env=environment,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    (folder / "mine.py").write_text(textwrap.dedent(MINE))
    (folder / "prompts.txt").write_text(
        "".join(f"Question: Tom has {n} apples and {n % 7} pears. {n}\n" for n in range(200))
    )
    (folder / "few.txt").write_text("".join(f"Count from {n} to {n + 9}: {n}\n" for n in range(40)))
    return folder


@pytest.fixture(scope="module")
def cluster(folder):
    one = Cluster(folder)
    yield one
    one.kill()


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    for name, value in SETTING.items():
        monkeypatch.setenv(name, value)
    yield
    for left in ("slow", "slow-always", "die", "die-always", "prefills"):
        (folder / left).unlink(missing_ok=True)


def read(name):
    """The lines without what depends on the clock."""
    lines = [json.loads(line) for line in Path(name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "statistics"} for line in lines]


def generate(draftwood, prompts, out, *words):
    return draftwood("generate", "--data", prompts, "--out", out, *OPTIONS, *SHORT, *words)


@pytest.fixture
def few_here(draftwood):
    """Returns the texts that a run without Ray writes after the few prompts."""
    if not Path("few-here.jsonl").exists():
        assert generate(draftwood, "few.txt", "few-here.jsonl").exit_code == 0
        Path("prefills").unlink()
    return read("few-here.jsonl")


def test_a_killed_worker_loses_nothing(draftwood, cluster):
    Path("die").touch()
    began = time.monotonic()
    result = generate(draftwood, "prompts.txt", "over-ray.jsonl", "--ray", cluster.address, "--workers", 2)
    print(f"{time.monotonic() - began:.1f} s over Ray")
    assert result.exit_code == 0, result.output
    assert not Path("die").exists()  # somebody did
    assert "2 decoders on 1 machine(s)" in result.stderr
    written = Path("prefills").read_text().split()
    assert len(set(written)) == 3, "two workers, and one in place of that which died"
    Path("prefills").unlink()
    assert generate(draftwood, "prompts.txt", "here.jsonl").exit_code == 0
    lines = read("over-ray.jsonl")
    assert [line["number"] for line in lines] == list(range(200))
    assert lines == read("here.jsonl")
    assert len(written) > 200, "what the dead worker was writing was written again"
    assert not Path("over-ray.jsonl.part").exists()


def test_a_slow_worker_writes_less_and_delays_nothing_else(draftwood, cluster, few_here):
    Path("slow").touch()
    assert generate(draftwood, "few.txt", "slow.jsonl", "--ray", cluster.address).exit_code == 0
    counts = sorted(Counter(Path("prefills").read_text().split()).values())
    assert len(counts) == 2
    assert counts[0] < counts[1] / 2, counts
    assert read("slow.jsonl") == few_here


def test_workers_that_die_again_and_again_end_in_a_sentence_and_the_run_goes_on(draftwood, cluster, few_here):
    Path("die-always").touch()
    result = generate(draftwood, "few.txt", "dies.jsonl", "--ray", cluster.address, "--workers", 1)
    assert result.exit_code == 1
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith("Error: The Ray cluster at ")
    assert sentence.endswith("repeat the command, which continues from the finished texts.")
    Path("die-always").unlink()
    assert generate(draftwood, "few.txt", "dies.jsonl").exit_code == 0
    assert read("dies.jsonl") == few_here


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--target", "no-such-model", "--drafter", "prompt-lookup"], "no-such-model is neither"),
        (["--drafter", "llama-draft", "--tokenizer", "no-such-tokenizer"], "no-such-tokenizer"),
    ],
)
def test_what_a_worker_cannot_load_is_its_own_sentence(draftwood, cluster, words, sentence):
    run = ["generate", "--data", "few.txt", "--out", "loads.jsonl", "--ray", cluster.address]
    result = draftwood(*run, "--workers", 1, *words)
    assert result.exit_code == 1
    _, said = result.stderr.splitlines()
    assert said.startswith("Error: ")
    assert sentence in said
    assert "ray::" not in said
    Path("loads.jsonl.part").unlink()


def test_a_cluster_that_is_not_there(refused):
    run = ["generate", "--data", "few.txt", "--out", "gone.jsonl", "--ray", "127.0.0.1:1"]
    assert "No Ray cluster answers at '127.0.0.1:1' (" in refused(*run)


def test_proofs_over_a_cluster(draftwood, cluster):
    words = ("prove", "--policy", "dyspec", "--policy", "chain", "--verifier", "traversal", "--models", 2)
    there = draftwood(*words, "--ray", cluster.address)
    assert there.exit_code == 0, there.output
    assert there.stdout == draftwood(*words).stdout


def test_a_bench_over_a_cluster_measures_the_cells_of_one_here(draftwood, cluster, tmp_path):
    (tmp_path / "questions.jsonl").write_text(
        '{"turns": ["How many is 2 and 3?", "And 4?"]}\n{"turns": ["What is a dog?"]}\n'
    )
    words = ["bench", "--data", tmp_path / "questions.jsonl", "--prompts", 2, "--new-tokens", 4]
    words += ["--strategy", "leviathan:length=2", "--temperature", 0, "--temperature", 0.8]
    there, here = tmp_path / "there", tmp_path / "here"
    result = draftwood(*words, "--to", there, "--ray", cluster.address, "--workers", 2)
    assert result.exit_code == 0, result.output
    assert draftwood(*words, "--to", here).exit_code == 0

    def tokens(folder):
        lines = cells(folder)
        found = {line["key"]: line.get("tokens") for line in lines}
        assert len(found) == len(lines)
        return found

    assert tokens(there) == tokens(here)
    # A run that was broken off, by whatever: half of its lines.
    lines = (there / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (there / "cells.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    result = draftwood(*words, "--to", there, "--ray", cluster.address, "--workers", 2)
    assert "cells are there already" in result.stderr
    assert tokens(there) == tokens(here)


def test_a_cluster_that_goes_away_ends_in_a_sentence_and_the_run_goes_on_without_it(
    draftwood, folder, start, few_here
):
    Path("slow-always").touch()  # in both workers: a quick one might be through before the cluster is gone
    lost = Cluster(folder)
    running = start(
        "generate", "--data", "few.txt", "--out", "lost.jsonl", *OPTIONS, *SHORT, "--ray", lost.address
    )
    part = Path("lost.jsonl.part")
    while not part.exists() or part.read_bytes().count(b"\n") < 5:
        assert running.poll() is None, running.communicate()
        time.sleep(0.1)
    lost.kill()
    _, said = running.communicate(timeout=300)
    assert running.returncode == 1
    progress, sentence = [line for line in said.splitlines() if not line.startswith("[")][-2:]
    assert progress.endswith("of 40 texts are written; the same command continues.")
    Path("slow-always").unlink()
    assert sentence.startswith(f"Error: The Ray cluster at {lost.address!r} failed (")
    kept = part.read_bytes().splitlines()
    assert generate(draftwood, "few.txt", "lost.jsonl").exit_code == 0
    assert read("lost.jsonl") == few_here
    assert set(kept[1:]) <= set(Path("lost.jsonl").read_bytes().splitlines())
