"""`draftwood prove`: what is registered is proved, and what is wrong is found and named."""

import pytest

from draftwood import IncompatibleStrategy
from draftwood.apps.proof import proofs
from draftwood.apps.proof.proofs import Toys, pairs, prove_pairs
from draftwood.protocols import registry
from draftwood.testing import drawn_trees
from tests.thorough import every

PAIRS = pairs(registry.names("policies"), registry.names("verifiers"))

ACME = '''
import attrs

from draftwood import Outcome, TreePolicy, Verifier, WithoutReplacement, WithReplacement
from draftwood.protocols.compatibility import registered_laws
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection


def drawn_again(outcome, target_probs, rng):
    extra = outcome.extra if outcome.bonus else rng.choose(target_probs[outcome.path[-1]])
    return attrs.evolve(outcome, extra=extra)


class Right(RecursiveRejection):
    pass


class Forgetful(RecursiveRejection):
    """After a rejection it draws from the target instead of the residual."""

    def verify(self, tree, target_probs, rng):
        return drawn_again(super().verify(tree, target_probs, rng), target_probs, rng)


class Lossy(Forgetful):
    lossless = False


class Chains(RecursiveRejection):
    branches = False


@attrs.frozen
class Switched(RecursiveRejection):
    """Right or wrong as told."""

    forget: bool = False

    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        return drawn_again(outcome, target_probs, rng) if self.forget else outcome


class Raises(RecursiveRejection):
    def verify(self, tree, target_probs, rng):
        raise KeyError("no such thing")
'''


@pytest.fixture
def acme(monkeypatch, tmp_path):
    """Install a package that has verifiers, only on the search path."""
    (tmp_path / "acme_verifiers.py").write_text(ACME)
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    names = ("Right", "Forgetful", "Lossy", "Chains", "Switched", "Raises", "Absent")
    entries = "\n".join(f"acme-{name.lower()} = acme_verifiers:{name}" for name in names)
    (info / "entry_points.txt").write_text(f"[draftwood.verifiers]\n{entries}\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._entries.cache_clear()
    yield
    registry._entries.cache_clear()


def pair_id(pair):
    return f"{pair.policy}, {pair.law.__name__ if pair.law else 'own law'}, {pair.verifier_in_words}"


@pytest.mark.parametrize("pair", every(3, PAIRS), ids=pair_id)
def test_every_registered_pair_is_exact_or_refused_by_name(pair):
    (verdict,) = prove_pairs([pair], [Toys(25), Toys(34)])  # both of depth 2
    assert not verdict.failed, verdict.why
    if verdict.word == "refused":
        assert "verifiers that fit:" in verdict.why
    else:
        assert verdict.word == "ok"
        assert verdict.error is not None
        assert verdict.rounded is not None
        assert 0 <= verdict.error <= 1e-12
        assert 0 <= verdict.rounded <= 1e-6


def test_pairs_of_one_policy_are_proved_together_as_each_alone():
    mine = [pair for pair in PAIRS if pair.policy == "stochastic-beam"]
    models = [Toys(25), Toys(34)]
    together = prove_pairs(mine, models)
    assert together == [prove_pairs([pair], models)[0] for pair in mine]
    assert {verdict.word for verdict in together} == {"ok", "refused"}


def test_trees_are_drawn_once_for_all_verifiers_they_fit(monkeypatch):
    drawn = []

    def counted(policy, drafter, **options):
        drawn.append((policy, options["temperature"]))
        return drawn_trees(policy, drafter, **options)

    monkeypatch.setattr("draftwood.testing.drawn_trees", counted)
    # Block fits beams of one path alone, and the greedy verifier has a temperature of its own.
    verifiers = ["recursive-rejection", "traversal", "block", "greedy"]
    verdicts = prove_pairs(pairs(["stochastic-beam"], verifiers), [Toys(34)])
    assert {verdict.word for verdict in verdicts} == {"ok"}
    assert [(policy.width, temperature) for policy, temperature in drawn] == [(2, 1.0), (1, 1.0), (2, 0.0)]


@pytest.mark.thorough
def test_a_pair_is_proved_on_every_model_or_none():
    def fits(pair, number):
        try:
            return bool(pair.build(Toys(number).shapes, {}))
        except IncompatibleStrategy:
            return False

    # A pair tries all shapes of a model, and those of equal vocabularies differ in their order alone.
    shapes = {number: frozenset(map(repr, Toys(number).shapes)) for number in range(70)}
    first = {found: number for number, found in reversed(shapes.items())}
    assert len(first) == len({Toys(number).vocab_size for number in shapes}) == 3
    assert all(len({fits(pair, number) for number in first.values()}) == 1 for pair in PAIRS)


def test_several_rounds_are_proved_on_trees_of_every_vocabulary():
    several = [Toys(number) for number in range(200) if Toys(number).rounds is None]
    assert {toys.vocab_size for toys in several} == {2, 3, 4}
    assert len({str(toys.shapes[0]) for toys in several}) > 3


def test_most_pairs_are_proved_rather_than_refused():
    assert sum(pair.verifier == "recursive-rejection" for pair in PAIRS) >= 10


def test_the_table_has_a_row_a_pair_and_the_exit_code_is_zero(draftwood):
    result = draftwood(
        "prove", "--policy", "chain", "--verifier", "recursive-rejection", "--models", 2, "-o", "length=1"
    )
    assert result.exit_code == 0, result.output
    counts = [result.stdout.count(word) for word in (" ok ", " refused ")]
    assert result.stdout.count("recursive-rejection") == sum(counts)
    assert counts[0] >= 4
    assert counts[1] == 1  # sets are judged as a whole alone
    assert "WithoutReplacement" in result.stdout


def test_a_third_partys_verifiers_are_proved_and_a_biased_one_is_found(draftwood, acme):
    arguments = ("prove", "--policy", "fixed-tree", "--models", 1, "-o", "depth=1", "-o", "law=top-k")
    right = draftwood(*arguments, "--verifier", "acme-right")
    assert right.exit_code == 0, right.output
    assert "top-k" in right.stdout
    wrong = draftwood(*arguments, "--verifier", "acme-right", "--verifier", "acme-forgetful")
    assert wrong.exit_code == 1
    assert "biased" in wrong.stdout
    assert "fixed-tree with acme-forgetful" in wrong.stdout
    assert "should have" in wrong.stdout
    assert "1 ok, 1 biased." in wrong.stdout


def test_lossy_verifiers_have_no_row_and_misfits_are_refused(draftwood, acme):
    result = draftwood(
        *("prove", "--policy", "dyspec", "--policy", "chain", "--models", 1, "-o", "law=top-k"),
        *("--verifier", "acme-lossy", "--verifier", "acme-chains"),
    )
    assert result.exit_code == 0, result.output
    assert "acme-lossy" not in result.stdout
    assert result.stderr == "'acme-lossy' declares that it is lossy, so it is left out.\n"
    assert "1 refused, 1 ok." in result.stdout


def test_a_lossy_verifier_alone_is_nothing_to_prove(refused):
    sentence = refused("prove", "--policy", "dyspec", "--verifier", "typical", "--models", 1)
    assert "'typical' declares that it is lossy, so there is nothing to prove" in sentence


@pytest.mark.thorough
def test_several_processes_find_what_one_finds(draftwood):
    arguments = ("prove", "--policy", "chain", "--verifier", "traversal", "--models", 1)
    alone, together = draftwood(*arguments), draftwood(*arguments, "--processes", 2)
    assert together.exit_code == 0
    assert together.stdout == alone.stdout


def test_a_verifiers_switches_are_proved_on_and_off(draftwood, acme):
    arguments = ("prove", "--policy", "chain", "--verifier", "acme-switched", "--models", 1)
    result = draftwood(*arguments, "-o", "law=without-replacement")
    assert result.exit_code == 1
    assert "chain with acme-switched forget=true" in result.stdout
    assert "1 ok, 1 biased." in result.stdout
    told = draftwood(*arguments, "-o", "law=without-replacement", "-o", "forget=no")
    assert told.exit_code == 0
    assert "\n1 ok." in told.stdout


@pytest.mark.parametrize(
    ("verifier", "message"),
    [("acme-raises", "raises (KeyError: 'no such thing')"), ("acme-absent", "has no attribute 'Absent'")],
)
def test_a_verifier_that_breaks_fails_its_own_pairs_alone(draftwood, acme, verifier, message):
    result = draftwood(
        *("prove", "--policy", "chain", "--models", 1, "-o", "law=top-k"),
        *("--verifier", "acme-right", "--verifier", verifier),
    )
    assert result.exit_code == 1
    assert " ".join(message.split()) in " ".join(result.stdout.split())
    assert "1 ok, 1 fails." in result.stdout


def test_a_pair_with_too_many_outcomes_says_so(draftwood, monkeypatch):
    monkeypatch.setattr(proofs, "BUDGET", 20)
    result = draftwood(
        "prove", "--policy", "dyspec", "--verifier", "recursive-rejection", "-o", "law=without-replacement"
    )
    assert result.exit_code == 0
    assert "too large" in result.stdout
    assert "20 outcomes were visited" in result.stdout


def test_unknown_names_name_the_nearest(refused):
    assert "did you mean 'dyspec'?" in refused("prove", "--policy", "dyspek")
    assert "did you mean 'greedy'?" in refused("prove", "--verifier", "gredy")
    assert "did you mean 'budget'?" in refused("prove", "-o", "budgett=3")
