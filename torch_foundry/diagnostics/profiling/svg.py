"""A profile as a picture: what a token's time is made of, one bar for each kernel."""

from __future__ import annotations

from torch_foundry.diagnostics.chart import Bar, bars
from torch_foundry.diagnostics.profiling.result import ATTRIBUTION, Profile, duration

ATTENTION, MLP, OTHER = "attention", "MLP", "outside the layers"
BETWEEN, REST = "between kernels", "generate() beyond replays"
COLOURS = {ATTENTION: "#3465a4", MLP: "#4e9a06", OTHER: "#c4a000", BETWEEN: "#a40000", REST: "#888a85"}
KINDS = {"layers.*.attention": ATTENTION, "layers.*.mlp": MLP}


def svg(profile: Profile) -> str:
    """An SVG document."""
    parts = [
        (f"{line.scope} {line.kernel} x{line.launches}", line.seconds, KINDS.get(line.scope, OTHER))
        for line in sorted(profile.lines, key=lambda line: -line.seconds)
    ]
    parts += [(BETWEEN, profile.gaps_s, BETWEEN), (REST, profile.rest_s, REST)]
    most = max(seconds for _, seconds, _ in parts)
    rows = [
        Bar(
            name if len(name) <= 60 else name[:59] + "…",
            max(seconds, 0.0) / most,
            f"{duration(seconds)}, {100 * seconds / profile.generate_s:.1f} %",
            kind,
        )
        for name, seconds, kind in parts
    ]
    title = f"{profile.model}, {profile.kinds} on {profile.device}: {duration(profile.generate_s)} a token"
    return bars(title, {"": rows}, [ATTRIBUTION, *profile.doubts], COLOURS)
