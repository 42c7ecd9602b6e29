"""From the words of the command line to what strategies take."""

import inspect

import pytest

from draftwood import InvalidInput, UnknownStrategy
from draftwood.apps.terminal.options import assign, convert, parse
from draftwood.protocols import registry


def parameter(annotation: object, default: object = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter("x", inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


@pytest.mark.parametrize(
    ("annotation", "word", "value"),
    [
        ("int", "7", 7),
        (int, "-7", -7),
        ("float", "0.5", 0.5),
        ("float", "3", 3.0),
        ("int | float", "3", 3),
        ("int | float", "3.5", 3.5),
        ("int | None", "none", None),
        (int | None, "4", 4),
        ("bool", "yes", True),
        (bool, "False", False),
        ("str", "7", "7"),
        ("str | None", "none", None),
        ("str | type[Proposal]", "top-k", "top-k"),
        ("Path", "none", "none"),
    ],
)
def test_words_become_values_of_the_declared_type(annotation, word, value):
    found = convert("x", word, parameter(annotation))
    assert found == value
    assert type(found) is type(value)


def test_without_an_annotation_the_default_tells_the_type():
    assert convert("x", "7", parameter(inspect.Parameter.empty, default=1)) == 7
    assert convert("x", "7", parameter(inspect.Parameter.empty, default="a")) == "7"
    assert convert("x", "7", parameter(inspect.Parameter.empty)) == "7"


@pytest.mark.parametrize(
    ("annotation", "word", "wanted"),
    [
        ("int", "1.5", "give an integer"),
        ("float", "much", "give a number"),
        ("bool", "2", "give true or false"),
        ("int | None", "much", "give an integer or none"),
    ],
)
def test_what_is_no_value_of_the_type_is_refused_by_name(annotation, word, wanted):
    with pytest.raises(InvalidInput, match=f"x is '{word}'; {wanted}"):
        convert("x", word, parameter(annotation))


def test_parse():
    assert parse(["budget=32", "draft-law = top-k", "a=b=c"]) == {
        "budget": "32",
        "draft_law": "top-k",
        "a": "b=c",
    }
    for wrong in ("budget", "=3"):
        with pytest.raises(InvalidInput, match="name=value"):
            parse([wrong])


def test_an_option_goes_to_the_first_strategy_that_has_it():
    chosen = [("policies", "chain"), ("verifiers", "greedy"), ("drafters", "prompt-lookup")]
    assert assign({"length": "2", "longest": "4"}, chosen) == [{"length": 2}, {}, {"longest": 4}]
    with pytest.raises(UnknownStrategy, match="'longst' of chain, greedy, prompt-lookup; did you mean"):
        assign({"longst": "4"}, chosen)


def test_every_option_of_every_strategy_takes_its_own_default():
    for kind in registry.KINDS:
        for name in registry.names(kind):
            for option, given in registry.options(kind, name).items():
                if isinstance(given.default, int | float | str | None):
                    assert convert(option, str(given.default), given) == given.default


def test_an_option_that_a_strategy_once_had_is_named_with_what_serves_instead():
    given = [("policies", "fixed-tree"), ("verifiers", "class-ordered-traversal")]
    with pytest.raises(UnknownStrategy, match="no longer has the option 'phantoms'.*name 'traversal'"):
        assign({"phantoms": "true"}, given)
