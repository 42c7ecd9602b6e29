"""Built-in prompts of several domains, written in the style the small models were trained on."""

from __future__ import annotations

PROMPTS: dict[str, tuple[str, ...]] = {
    "maths": (
        "Question: A baker fills 6 trays with 12 rolls each. He sells 45 rolls in the morning and "
        "gives 7 to his neighbour. How many rolls are left?\nAnswer:",
        "Question: Nina reads 18 pages a day for 5 days and 10 pages on Saturday. Her book has 160 "
        "pages. How many pages does she still have to read?\nAnswer:",
    ),
    "code": (
        "def count_words(text: str) -> dict[str, int]:\n"
        '    """\n    Count how often each word occurs in a text.\n\n'
        "    >>> count_words('one two one')\n    {'one': 2, 'two': 1}\n"
        '    """\n',
        "class Stack:\n"
        '    """\n    A last-in, first-out collection of items.\n    """\n\n'
        "    def __init__(self) -> None:\n        self.items = []\n\n"
        "    def push(self, item) -> None:\n",
    ),
    "prose": (
        "The old lighthouse stood at the end of the harbour. Every evening, when the boats had come "
        "in, the keeper climbed the stairs with his lamp, and",
        "The river rises in the hills to the north of the town and flows for about forty miles "
        "before it reaches the sea. In the year of the great flood, the people of the valley",
    ),
}


def interleaved(count: int | None = None) -> list[tuple[str, str]]:
    """(domain, prompt) for the first `count` prompts, the domains taking turns."""
    turns = zip(*PROMPTS.values(), strict=True)
    every = [pair for turn in turns for pair in zip(PROMPTS, turn, strict=True)]
    return every[:count]
