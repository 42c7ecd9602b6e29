"""Built-in prompts of several domains, written in the style the small models were trained on."""

from __future__ import annotations

PROMPTS: dict[str, tuple[str, ...]] = {
    "maths": (
        "Question: Nina reads 18 pages a day for 5 days and 10 pages on Saturday. Her book has 160 pages. "
        "How many pages does she still have to read?\nAnswer:",
        "Question: There are 30 students in a class. 40% of them are boys. How many girls are in the class?\n"
        "Answer:",
    ),
    "code": (
        'def read_config(path):\n    """Read a file of names and values."""\n    with open(path) as file:\n',
        "def parse_date(text):\n"
        '    """Parse a date such as 2024-05-17."""\n'
        "    parts = text.split('-')\n"
        "    if len(parts) != 3:\n"
        "        raise ValueError(",
    ),
    "prose": (
        "It was a cold morning in the month of March, and the captain had not yet come on deck.",
        "The elephant is the largest animal that lives on land. It is found in Africa and in Asia, and",
    ),
}


def interleaved(count: int | None = None) -> list[str]:
    """The first `count` prompts, the domains taking turns."""
    return [text for turn in zip(*PROMPTS.values(), strict=True) for text in turn][:count]
