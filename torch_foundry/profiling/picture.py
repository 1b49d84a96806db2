"""A profile as a picture: what a token's time is made of, one bar for each kernel."""

from __future__ import annotations

from torch_foundry.chart import bars
from torch_foundry.profiling.result import ATTRIBUTION, Profile

COLOURS = {"layers.*.attention": "#3465a4", "layers.*.mlp": "#4e9a06"}
OTHER, BETWEEN, REST = "#c4a000", "#a40000", "#888a85"


def svg(profile: Profile) -> str:
    """An SVG document."""
    parts = [
        (f"{line.scope} {line.kernel} x{line.launches}", line.seconds, COLOURS.get(line.scope, OTHER))
        for line in sorted(profile.lines, key=lambda line: -line.seconds)
    ]
    parts.append(("between kernels", profile.gaps_s, BETWEEN))
    parts.append(("generate() beyond replays", profile.rest_s, REST))
    most = max(seconds for _, seconds, _ in parts)
    rows = []
    for name, seconds, _ in parts:
        share = f"{seconds * 1e6:.1f} us, {100 * seconds / profile.generate_s:.1f} %"
        rows.append((name if len(name) <= 60 else name[:59] + "…", max(seconds, 0.0) / most, share))
    title = f"{profile.model}, {profile.dtype}, {profile.device}: {profile.generate_s * 1e6:.0f} us a token"
    return bars(title, rows, ATTRIBUTION, left=380, right=110, colours=[colour for _, _, colour in parts])
