"""Write the corpus: `python -m tools.demo_model.corpus --bytes 60000000 > corpus.txt`."""

from __future__ import annotations

import argparse
import sys

from . import SEED, SPLITS, document


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.corpus", description=__doc__)
    parser.add_argument("--split", choices=list(SPLITS), default="train")
    parser.add_argument("--bytes", type=int, default=60_000_000, help="stop after this many bytes of text")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    written = index = 0
    while written < args.bytes:
        text = document(args.seed, args.split, index) + "\n"
        written += len(text.encode())
        index += 1
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
