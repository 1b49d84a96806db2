"""What a profile says, as a table and as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

ATTRIBUTION = (
    "Kernels were timed apart, so their times say where a token's time goes, not what it would be without them."
)


STEADY = 0.15  # two measurements of the same may differ by so much, relatively
OVERLAP = 0.1  # of a replay: what its kernels, timed apart, may take beyond it


def duration(seconds: float) -> str:
    """For the eye: 12.3 us, 1.23 ms."""
    us = seconds * 1e6
    return f"{us:.1f} us" if abs(us) < 1e3 else f"{us / 1e3:.2f} ms" if abs(us) < 1e6 else f"{us / 1e6:.2f} s"


@dataclass(frozen=True)
class KernelTime:
    """The launches of one kernel in one scope; layers count together as `layers.*`."""

    scope: str
    kernel: str
    launches: int  # per token
    bytes: int  # per token, that they must move
    seconds: float  # per token, timed apart from other kernels

    @property
    def gb_s(self) -> float:
        """Rate of the bytes that they must move."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """The time of one decoded token (of each sequence), in seconds, and its parts."""

    model: str
    device: str
    executor: str
    dtype: str  # of activations
    weights: str  # format of the packed weights, else their dtype
    batch: int
    context: int  # tokens in the cache
    read_gb_s: float  # measured beside it
    generate_s: float  # a token of generate(), read in blocks
    submit_s: float  # of which on the host, to hand a token over; on the host executor that includes running it
    replay_s: float  # a token's graph, replayed back to back
    replay_again_s: float  # the same, after the kernels were timed
    lines: list[KernelTime]

    @property
    def kernels_s(self) -> float:
        """All kernels, timed apart."""
        return sum(line.seconds for line in self.lines)

    @property
    def gaps_s(self) -> float:
        """What a replay takes beyond its kernels: launches and dependencies. Negative if kernels overlap."""
        return self.replay_s - self.kernels_s

    @property
    def rest_s(self) -> float:
        """What generate() takes beyond replays: Python, small launches between graphs, waiting, reading."""
        return self.generate_s - self.replay_s

    @property
    def kinds(self) -> str:
        """Of weights and activations."""
        return self.dtype if self.weights == self.dtype else f"weights {self.weights}, activations {self.dtype}"

    @property
    def doubts(self) -> list[str]:
        """Why the parts should not be believed: sentences, none if all is well."""
        found = []
        if abs(self.replay_again_s / self.replay_s - 1) > STEADY:
            found.append(
                f"Unsteady: a replay took {duration(self.replay_s)} before its kernels were timed and "
                f"{duration(self.replay_again_s)} after. Was the machine busy? Measure again."
            )
        if self.gaps_s < -OVERLAP * self.replay_s:
            found.append(
                f"Timed apart, the kernels take {100 * self.kernels_s / self.replay_s:.0f} % of a replay: they overlap "
                "in it, or the machine was busy."
            )
        if self.rest_s < -STEADY * self.generate_s:
            found.append(
                f"A replay took {duration(self.replay_s)} and a token of generate(), which has one, "
                f"{duration(self.generate_s)}: the machine was busy. Measure again."
            )
        return found

    @property
    def launches(self) -> int:
        """On the graph of a token."""
        return sum(line.launches for line in self.lines)

    @property
    def bytes(self) -> int:
        """That a token's launches must move."""
        return sum(line.bytes for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        """All figures, with those that follow from others."""
        derived = ("kernels_s", "gaps_s", "rest_s", "launches", "bytes", "doubts")
        return {
            "attribution_only": ATTRIBUTION,
            **dataclasses.asdict(self),
            **{name: getattr(self, name) for name in derived},
        }

    def __str__(self) -> str:
        head = (
            f"{self.model}, {self.kinds} on {self.device} ({self.executor}), batch {self.batch}, {self.context} tokens"
        )
        rows = [("scope", "kernel", "launches", "us", "GB/s", "% read", "% token")]
        for line in sorted(self.lines, key=lambda line: -line.seconds):
            rate = 100 * line.gb_s / self.read_gb_s
            rows.append(
                (line.scope or "-", line.kernel, str(line.launches), f"{line.seconds * 1e6:.1f}", f"{line.gb_s:.1f}",
                 f"{rate:.0f}", self._share(line.seconds))
            )  # fmt: skip
        for name, value in (("all kernels", self.kernels_s), ("between kernels", self.gaps_s),
                            ("generate() beyond replays", self.rest_s), ("a token", self.generate_s)):  # fmt: skip
            rows.append((name, "", "", f"{value * 1e6:.1f}", "", "", self._share(value)))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        texts = ["  ".join(self._cell(i, row[i], widths[i]) for i in range(len(row))).rstrip() for row in rows]
        last = (
            f"{1 / self.generate_s:.1f} tokens/s a row; {self.launches} launches, {self.bytes / 1e6:.1f} MB a token, "
        )
        last += f"{self.submit_s * 1e6:.1f} us to hand one over; memory reads at {self.read_gb_s:.1f} GB/s"
        return "\n".join([head, *texts, last, ATTRIBUTION, *self.doubts])

    def _share(self, seconds: float) -> str:
        return f"{100 * seconds / self.generate_s:.1f}"

    @staticmethod
    def _cell(column: int, text: str, width: int) -> str:
        return text.ljust(width) if column < 2 else text.rjust(width)
