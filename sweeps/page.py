"""sweep.html: the table, the loss curves and what was found, in one file without scripts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

from sweeps.chart import Line, chart, colour
from sweeps.findings import ScalingLaw
from sweeps.results import Result, numbers_of, swept_keys

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #8884;
         font-variant-numeric: tabular-nums; white-space: nowrap; }
.bad { color: #d55e00; } .best { font-weight: 700; }
.swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; }
.note { border-left: 4px solid #e69f00; padding-left: .8rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1.5rem;
          margin: 2rem 0; }
figure { margin: 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
code { overflow-wrap: anywhere; }
"""


def page(
    sweep_dir: Path,
    results: Sequence[Result],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    law: ScalingLaw | None,
) -> str:
    """The whole page; `rows` is the table as text, its headings first."""
    done = sum(result.exit_code == 0 for result in results)
    body = [
        f"<h1>{escape(sweep_dir.name)}</h1>",
        f"<p>{done} of {len(results)} jobs are done, in <code>{escape(str(sweep_dir))}</code></p>",
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        _table(results, rows),
        f'<div class="charts">{"".join(_figures(results, law))}</div>',
        "<h2>Commands</h2>",
        *(_command(result) for result in results),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(sweep_dir.name)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(results: Sequence[Result], rows: Sequence[Sequence[str]]) -> str:
    headings, *lines = rows
    best = min(results, key=lambda result: result.goal)
    text = ["<table><thead><tr><th></th>", *(f"<th>{escape(h)}</th>" for h in headings)]
    text.append("</tr></thead><tbody>")
    for number, (line, result) in enumerate(zip(lines, results, strict=True)):
        kind = "bad" if result.exit_code not in (0, None) else ""
        kind = "best" if result is best and result.exit_code == 0 else kind
        swatch = f'<span class="swatch" style="background:{colour(number)}"></span>'
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in line)
        text.append(f'<tr class="{kind}"><td>{swatch}</td>{cells}</tr>')
    return "".join([*text, "</tbody></table>"])


def _figures(results: Sequence[Result], law: ScalingLaw | None) -> list[str]:
    names = [_name(result, swept_keys(results)) for result in results]
    losses = [Line(name, r.losses) for name, r in zip(names, results, strict=True)]
    evals = [Line(name, r.eval_losses) for name, r in zip(names, results, strict=True)]
    curves = [("Training loss", losses), ("Eval loss", evals)]
    figures = [
        *((caption, chart(lines, "step", "loss, nats per token")) for caption, lines in curves
          if any(len(line.points) > 1 for line in lines)),
        *_against_numbers(results),
    ]  # fmt: skip
    if law:
        figures.append((str(law), _law_chart(law)))
    return [
        f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"
        for caption, drawing in figures
        if drawing
    ]


def _against_numbers(results: Sequence[Result]) -> list[tuple[str, str]]:
    """The last loss over every number that was swept, one dot a job."""
    found, done = [], [result for result in results if math.isfinite(result.goal)]
    for key in swept_keys(done):
        numbers = numbers_of(done, key)
        if numbers is None or len(set(numbers.values())) < 3:
            continue
        points = sorted((numbers[result.number], result.goal) for result in done)
        spread = min(numbers.values()) > 0 and max(numbers.values()) > 4 * min(numbers.values())
        drawing = chart([Line(key, points, dots=True)], key, "last loss", log_x=spread)
        found.append((f"Last loss over {key}", drawing))
    return found


def _law_chart(law: ScalingLaw) -> str:
    low, high = law.points[0][0], law.points[-1][0] * 4
    xs = [low * (high / low) ** (n / 60) for n in range(61)]
    curve = Line(str(law), [(x, law(x)) for x in xs])
    return chart([curve, Line("jobs", law.points, dots=True)], "FLOPs", "last loss", log_x=True)


def _name(result: Result, keys: Sequence[str]) -> str:
    swept = " ".join(f"{key}={result.values.get(key, '')}" for key in keys)
    return f"job {result.number} {swept}".strip()


def _command(result: Result) -> str:
    """What runs the job by hand, or goes on with it."""
    words = ["python", "train.py", *result.overrides]
    if "run.dir" not in result.values:
        words.append(f"run.dir={result.folder}")
    return f"<p>{result.number}: <code>{escape(shlex.join(words))}</code></p>"
