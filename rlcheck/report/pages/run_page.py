"""A run, or two side by side, as one HTML page: findings, curves, samples; light and dark, nothing loaded."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rlcheck.facts.run import Curve, RunFacts, SampleRow
from rlcheck.finding import Finding, Report
from rlcheck.report.pages import run_curves
from rlcheck.report.pages.parts import MORE_STYLE, head, table
from rlcheck.report.pages.run_curves import MAX_POINTS, figure
from rlcheck.report.topics.run import headline_of, name_of, shown_rows
from rlcheck.report.wording import clean, cleaned, first_words
from rlcheck.report.wording import since as steps_since

SIZE_LIMIT = 2_000_000
"""Bytes of a page that a mail or a ticket still takes."""
_CURVE_BYTES = SIZE_LIMIT // 2
_POINT_BYTES = 12
_BANDS_BYTES = 6500
_FEWEST = 40
_MAX_CURVES = 150
_SAMPLES = 6
_TEXT = 1600


def page(report: Report, runs: Sequence[RunFacts]) -> str:
    """The whole page as text; `report` is redacted and holds the tables, `runs` are one or two."""
    report = cleaned(report)
    title = " against ".join(clean(run.source) or "a record" for run in runs)
    parts = [
        head(f"rlcheck run {title}", MORE_STYLE + run_curves.STYLE),
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{_letter(n, runs)}{escape(clean(headline_of(run)))}</p>" for n, run in enumerate(runs)),
        *_findings(report),
        *(table(exhibit) for exhibit in report.exhibits),
        *_curves(report, runs),
        *(part for n, run in enumerate(runs) for part in _samples(run, _letter(n, runs))),
    ]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _letter(number: int, runs: Sequence[RunFacts]) -> str:
    return f'<b class="key">{"AB"[number]}</b> ' if len(runs) > 1 else ""


def _findings(report: Report) -> list[str]:
    shown = [f for f in report.checks if f.is_problem]
    first = first_words(report)
    well = "nothing to fix was found" if report.summary.passed else "nothing was checked"
    parts = [f'<p class="first">{escape(first or well)}</p>']
    parts += ["<h2>Findings</h2>"] if shown else []
    bad = {(f.id, f.node) for f in shown if f.status in ("fail", "warn")}
    for f in shown:
        if f.status != "unknown":
            causes = [id for id in f.caused_by if (id, f.node) in bad]
            parts.append(_finding(f, len(report.nodes) > 1, causes))
    rest = [f for f in report.checks if f.status in ("pass", "info", "skip", "unknown") or f.waived is not None]
    rows = "".join(f"<tr><th>{escape(f.id)}</th><td>{f.status}</td>"
                   f'<td class="words">{escape(f.headline)}: {escape(f.message)}</td></tr>' for f in rest)  # fmt: skip
    if rest:
        parts.append(f"<details><summary>{len(rest)} more checks</summary><div><table>{rows}</table></div></details>")
    return parts


def _finding(finding: Finding, several: bool, causes: Sequence[str]) -> str:
    """One finding; of what follows from another only what was found: the rest is shown once that is fixed."""
    status = finding.status if finding.status in ("fail", "warn") else "fail"
    where = f" ({finding.node})" if several else ""
    words = f"expected {finding.expected}, found {finding.found}" if finding.expected else finding.message
    parts = [f'<article class="{status}"><h3><span class="{status}">{finding.status}</span> {escape(finding.id)} '
             f"{escape(finding.headline)}{escape(where)}</h3>", f"<p>{escape(words)}</p>"]  # fmt: skip
    if causes:
        return "".join([*parts, f'<p class="key">fix {escape(" and ".join(causes))} first</p></article>'])
    details = [detail for detail in finding.details if detail != finding.found]
    parts += [f"<pre>{escape(chr(10).join(details))}</pre>"] if details else []
    parts += [f"<p>{escape(finding.why)}</p>"] if finding.why else []
    for fix in finding.fixes[:3]:
        parts.append(f"<p>{escape(fix.title)}</p>" + (f"<pre>{escape(fix.command)}</pre>" if fix.command else ""))
    parts.append(f'<p class="key">rlcheck explain {escape(finding.playbook or finding.id)}</p></article>')
    return "".join(parts)


def _curves(report: Report, runs: Sequence[RunFacts]) -> list[str]:
    """The metrics that everybody looks at, then all others, folded up."""
    labels = {name_of(run, row): row.label for run in runs for row in shown_rows(run)}
    others = sorted({name for run in runs for name in run.curves} - set(labels))[: _MAX_CURVES - len(labels)]
    total = max(1, len(labels) + len(others))
    room = _CURVE_BYTES // total - _BANDS_BYTES
    most = max(_FEWEST, min(MAX_POINTS, room // (_POINT_BYTES * len(runs))))
    first = next((f for f in report.checks if f.is_problem and f.status in ("fail", "warn")), None)
    since = steps_since(first) if first is not None else None
    key = '<p><b class="key">A</b> blue, <b class="key">B</b> orange, on one scale.</p>' if len(runs) > 1 else ""
    mark = f"<p>Dashed: step {since}, from which on the first finding holds.</p>" if since is not None else ""
    parts = ["<h2>Curves</h2>", "<p>Point at a picture to see its values.</p>", key, mark, '<div class="charts">']
    parts += [_figure(name, label, runs, since, MAX_POINTS) for name, label in labels.items()]
    parts.append("</div>")
    if others:
        parts.append(f'<details><summary>{len(others)} more metrics</summary><div class="charts">')
        parts += [_figure(name, "", runs, since, most) for name in others]
        parts.append("</div></details>")
    return parts


def _figure(name: str, label: str, runs: Sequence[RunFacts], since: int | None, most: int) -> str:
    return figure(clean(name), label, [run.curves.get(name, Curve()) for run in runs], since, most)


def _samples(run: RunFacts, letter: str) -> list[str]:
    rows = run.samples.value or ()
    if not rows:
        return []
    steps = sorted({row.step for row in rows})
    parts = ["<h2>Samples</h2>"]
    for step in dict.fromkeys((steps[0], steps[-1])):
        there = [row for row in rows if row.step == step][:_SAMPLES]
        parts.append(f"<details{' open' if step == steps[-1] else ''}><summary>{letter}step {step}</summary>")
        parts.append('<div class="samples">')
        parts += [_sample(row) for row in there]
        parts.append("</div></details>")
    return parts


def _sample(row: SampleRow) -> str:
    facts = [f"reward {row.reward:.4g}", *(f"{name} {value:.4g}" for name, value in row.parts.items())]
    facts += [row.source, f"{row.length} tokens" if row.length >= 0 else "", row.uid]
    head = ", ".join(fact for fact in facts if fact)
    texts = (("prompt", row.prompt), ("response", row.response), ("ground truth", row.ground_truth))
    body = "".join(f'<h4>{name}</h4><pre dir="auto">{_cut(text)}</pre>' for name, text in texts if text)
    return f'<div class="sample"><p>{escape(clean(head))}</p>{body}</div>'


def _cut(text: str) -> str:
    """Text of a model: shown, never acted on; of a long one the start and the end."""
    text = clean(text)
    if len(text) > _TEXT:
        text = f"{text[: _TEXT // 2]}\n… {len(text) - _TEXT} characters …\n{text[-_TEXT // 2 :]}"
    return escape(text)
