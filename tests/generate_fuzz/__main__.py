"""Run calls and print what came of them."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.generate_fuzz.compare import BOTH_RAISE, FINE, REFUSED, quiet, run, run_directly


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--show", type=int, default=5, help="calls to print of each kind that is not fine")
    given = parser.parse_args()
    kinds: Counter[str] = Counter()
    sentences: dict[str, Counter[str]] = {REFUSED: Counter(), BOTH_RAISE: Counter()}
    numbers = range(given.first, given.first + given.calls)
    direct: Counter[str] = Counter()
    with ProcessPoolExecutor(given.processes, initializer=quiet) as pool:
        for found in pool.map(run_directly, numbers, chunksize=8):
            if found is not None:
                number, kind, detail, one = found
                direct[kind] += 1
                if kind not in FINE:
                    print(f"\n{kind}, directly (call {number}): {detail}\n  {one}", flush=True)
        for number, kind, detail, one in pool.map(run, numbers, chunksize=8):
            kinds[kind] += 1
            if kind in sentences:
                sentences[kind][re.sub(r"\d+|'[^']*'", "…", detail)[:200]] += 1
            if kind not in FINE and kinds[kind] <= given.show:
                print(f"\n{kind} (call {number}): {detail}\n  {one}", flush=True)
    print(f"\n{direct.total()} calls of SpeculativeDecoder.generate: {dict(direct)}")
    print(f"\n{given.calls} calls through custom_generate:")
    for kind, count in kinds.most_common():
        print(f"{count:6d}  {kind}")
    for kind, counts in sentences.items():
        print(f"\n{kind}:")
        for sentence, count in counts.most_common():
            print(f"{count:6d}  {sentence}")
    sys.exit(any(kind not in FINE for kind in kinds | direct))


if __name__ == "__main__":
    main()
