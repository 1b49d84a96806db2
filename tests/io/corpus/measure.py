"""How long refusals take, best of five: python -m tests.io.corpus.measure."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

from torch_foundry.core.load_errors import LoadError

from .manifest import CASES, header, load


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = next(case for case in CASES if case.id == "A00")
        load(first, first.write(Path(folder)))
        found = []
        for case in CASES:
            path, times = case.write(Path(folder)), []
            large = not case.want and case.policy
            for _ in range(5):
                start = time.perf_counter()
                with contextlib.suppress(LoadError):
                    (header if large else load)(case, path)
                times.append(time.perf_counter() - start)
            found.append((min(times) * 1e3, case))
    for title, chosen in (("refused", True), ("taken", False)):
        some = sorted(((ms, case) for ms, case in found if bool(case.want) == chosen), key=lambda each: -each[0])
        print(f"{len(some)} {title}: median {some[len(some) // 2][0]:.2f} ms")
        for ms, case in some[:6]:
            print(f"  {ms:8.1f} ms  {case.id}: {case.what}")


if __name__ == "__main__":
    main()
