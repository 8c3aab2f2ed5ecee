"""The appearance of the page: its light and dark colours, and its style sheet."""

from __future__ import annotations

COLOURS = {
    "paper": ("#ffffff", "#14171c"),
    "ink": ("#1b1f24", "#e8ebef"),
    "faint": ("#59616b", "#a3acb8"),
    "line": ("#d5dae0", "#3a424d"),
    "card": ("#f4f6f8", "#1e2229"),
    "on": ("#ffffff", "#14171c"),
    "forward": ("#1f6fb4", "#62aef2"),
    "backward": ("#123f6b", "#4b8de0"),
    "optimizer": ("#0f7784", "#57c7d4"),
    "input": ("#a35c00", "#ffb454"),
    "waiting": ("#bf3320", "#ff7a66"),
    "moving": ("#7a4aa5", "#bb95e6"),
    "saving": ("#2c7548", "#66cc95"),
    "other": ("#656d78", "#a0a8b3"),
}
"""The light and the dark colour by name. `on` is the colour of text on the colours of activities."""

_RULES = """
body{margin:0 auto;max-width:60rem;padding:1.5rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.2rem 0 .3rem}
p{margin:.3rem 0 .7rem}
.faint,caption,figcaption{color:var(--faint);font-size:.9rem}
.finding{font-size:1.15rem;border-left:.3rem solid var(--forward);padding:.4rem .9rem;background:var(--card);
margin:1rem 0}
.failed{border-color:var(--waiting)}
dl.key{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:1rem 0}
dl.key div{background:var(--card);padding:.5rem .8rem;border-radius:.4rem}
dl.key dt{color:var(--faint);font-size:.85rem}
dl.key dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
figure{margin:.5rem 0}
svg{display:block;width:100%;min-width:44rem;height:auto;font:13px system-ui,"Segoe UI",Roboto,Arial,sans-serif}
svg text{fill:var(--ink)}
svg .faint{fill:var(--faint);font-size:12px}
svg .on{fill:var(--on);font-size:12px}
svg .grid{stroke:var(--line);stroke-width:1}
svg .axis{stroke:var(--faint);stroke-width:1}
svg .mark{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:4 3}
svg .curve{fill:none;stroke:var(--forward);stroke-width:2}
svg .segment{stroke:var(--paper);stroke-width:1}
.wide{overflow-x:auto;background:linear-gradient(90deg,var(--paper) 30%,transparent) 0/2rem 100% no-repeat local,
linear-gradient(270deg,var(--paper) 30%,transparent) 100%/2rem 100% no-repeat local,
linear-gradient(90deg,var(--line),transparent) 0/.7rem 100% no-repeat,
linear-gradient(270deg,var(--line),transparent) 100%/.7rem 100% no-repeat}
code{font-size:.85rem;overflow-wrap:anywhere}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.15rem .9rem .15rem 0;vertical-align:top;border-bottom:1px solid var(--line)}
td.number,th.number{text-align:right}
pre{background:var(--card);padding:.8rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
details{margin:.4rem 0}
summary{cursor:pointer;color:var(--faint);font-size:.9rem}
"""
_PRINTED = """
@page{margin:15mm}
svg{min-width:0}
body{max-width:none;padding:0;font-size:11pt}
figure,dl.key,.finding,tr{break-inside:avoid}
h2{break-after:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
"""


def style_sheet() -> str:
    """Return the style sheet: light, dark if the reader prefers it, and light in print."""
    fills = "".join(f".{name}-fill{{fill:var(--{name})}}" for name in list(COLOURS)[6:])
    light, dark = ("".join(f"--{name}:{pair[is_dark]};" for name, pair in COLOURS.items()) for is_dark in (0, 1))
    return (
        f":root{{color-scheme:light dark;{light}}}\n@media screen and (prefers-color-scheme:dark){{"
        f":root{{color-scheme:dark;{dark}}}}}{_RULES}{fills}\n@media print{{{_PRINTED}}}"
    )
