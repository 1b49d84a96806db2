"""A profile as a picture: what a token's time is made of, one bar for each kernel."""

from __future__ import annotations

from html import escape

from torch_foundry.profiling.result import ATTRIBUTION, Profile

WIDTH, LEFT, ROW, TOP = 960, 380, 22, 56
COLOURS = {"layers.*.attention": "#3465a4", "layers.*.mlp": "#4e9a06", "between": "#a40000", "rest": "#888a85"}
OTHER = "#c4a000"


def svg(profile: Profile) -> str:
    """An SVG document."""
    bars = [
        (f"{line.scope} {line.kernel} x{line.launches}", line.seconds, COLOURS.get(line.scope, OTHER))
        for line in sorted(profile.lines, key=lambda line: -line.seconds)
    ]
    bars.append(("between kernels", profile.gaps_s, COLOURS["between"]))
    bars.append(("generate() beyond replays", profile.rest_s, COLOURS["rest"]))
    scale = (WIDTH - LEFT - 110) / max(seconds for _, seconds, _ in bars)
    height = TOP + ROW * len(bars) + 30
    title = f"{profile.model}, {profile.dtype}, {profile.device}: {profile.generate_s * 1e6:.0f} us a token"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="16">{escape(title)}</text>',
    ]
    for i, (name, seconds, colour) in enumerate(bars):
        y = TOP + i * ROW
        length = max(seconds, 0.0) * scale
        label = name if len(name) <= 60 else name[:59] + "…"
        share = f"{seconds * 1e6:.1f} us, {100 * seconds / profile.generate_s:.1f} %"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 3}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + 14}">{share}</text>')
    parts.append(f'<text x="12" y="{height - 10}" fill="#555753">{escape(ATTRIBUTION)}</text></svg>')
    return "\n".join(parts) + "\n"
