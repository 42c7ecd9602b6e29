"""Compare many configurations: `python -m tests.configurations --count 300 --seed 0`."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch
from transformers.utils import logging as transformers_logging

from tests.configurations.case import FAMILIES, Case
from tests.configurations.compare import FINE, verdict


def quiet() -> None:
    """One thread, and no warnings, which random options call for."""
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    logging.getLogger("draftwood").setLevel(logging.ERROR)


def told(number: int, *, seed: int, families: tuple[str, ...]) -> tuple[str, str, str, str]:
    """The kind of what came of a case, why, its family, and the case in words."""
    case = Case.of(number, seed=seed, families=families)
    found = verdict(case)
    return found.kind, found.detail, case.family, str(case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", action="append", default=[], choices=sorted(FAMILIES))
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    kinds: Counter[str] = Counter()
    sentences: Counter[tuple[str, str, str]] = Counter()
    compare = partial(told, seed=given.seed, families=tuple(given.family))
    with ProcessPoolExecutor(given.processes, initializer=quiet) as pool:
        for kind, detail, family, case in pool.map(
            compare, range(given.first, given.first + given.count), chunksize=4
        ):
            kinds[kind] += 1
            if kind not in FINE:
                print(f"\n{kind}: {detail}\n  {case}", flush=True)
            elif detail:
                sentences[kind, family, re.sub(r"\d+", "…", detail)[:160]] += 1
    print(f"\n{given.count} configurations of seed {given.seed}:")
    for kind, count in kinds.most_common():
        print(f"{count:6d}  {kind}")
    for (kind, family, sentence), count in sentences.most_common():
        print(f"{count:6d}  {kind} ({family}): {sentence}")
    sys.exit(any(kind not in FINE for kind in kinds))


if __name__ == "__main__":
    main()
