"""What `model.generate(custom_generate="<this repository>", trust_remote_code=True)` runs."""

from draftwood.integrations.loops import loop_of


def generate(model, drafter=None, recipe=None, **arguments):
    """`model.generate(**arguments)`, drafted.

    Args:
        model: the model whose `generate` was called.
        drafter: a model, its folder or hub name, with the same tokenizer; None looks the text itself up.
        recipe: a method of the literature, such as "dyspec", "sequoia" or "rsd-s".
        arguments: every other argument of `generate`, as it was given.
    """
    return model.generate(custom_generate=loop_of(model, drafter=drafter, recipe=recipe), **arguments)
