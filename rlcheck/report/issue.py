"""The Markdown that a maintainer's form for bugs asks for: environment, what was started, what happened, last lines.

The headings are those of TRL's form (huggingface/trl:.github/ISSUE_TEMPLATE/bug-report.yml@0759cd47); vLLM's asks for
the same as "Your current environment" and "Describe the bug" (vllm-project/vllm:400-bug-report.yml@2c897219).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlcheck.finding import Finding, Report
from rlcheck.report.diagnosis.report import DiagnosisReport, culprit_words, place, sureness
from rlcheck.report.markdown import code, fenced, inline
from rlcheck.report.wording import in_a_line

MOST_CHARACTERS = 60_000
"""GitHub takes 65,536 in the body of an issue."""
_LAST_LINES = 25
_MOST_LOGS = 12
_MOST_CONFIG = 12_000
_MOST_LINE = 400


def issue(
    environment: Report | None,
    diagnosis: DiagnosisReport | None,
    others: Sequence[Report],
    versions: Mapping[str, str],
    taken: Mapping[str, bytes],
) -> str:
    """The text; what cannot be known is left for the reader to write, in parentheses.

    Args:
        environment: of `rlcheck env`.
        diagnosis: of the run's logs and dumps.
        others: what else was judged of the run.
        versions: of the packages that matter, by name.
        taken: files of the bundle, without secrets.
    """
    lines = ["### System Info", "", *_environment(environment, versions), ""]
    lines += ["### Reproduction", "", "(How it was started, and with which data and model, in a few lines.)", ""]
    lines += _config(taken)
    lines += ["### What happened", "", *_happened(diagnosis), *_judged(others), ""]
    lines += ["### Expected behavior", "", "(What should have happened instead.)", ""]
    logs = _logs(diagnosis, taken)
    text = "\n".join([*lines, *(line for block in logs for line in block)])
    while len(text) > MOST_CHARACTERS and logs:
        logs.pop()
        text = "\n".join([*lines, *(line for block in logs for line in block), "(More logs are in the bundle.)"])
    return text[:MOST_CHARACTERS].rstrip() + "\n"


def _environment(report: Report | None, versions: Mapping[str, str]) -> list[str]:
    if report is None:
        return ["(The machine could not be examined.)"]
    lines = [f"- {inline(line.title)}: {inline(line.headline)}" for line in report.families if line.headline]
    found = [f"{name}=={version}" for name, version in versions.items()]
    problems = [f"- {inline(in_a_line(f))}" for f in report.checks if f.is_problem and f.status in ("fail", "warn")]
    head = f"Of the machine on which the bundle was made ({inline(report.collected_at)}), by rlcheck {report.version}."
    return [head, "", *lines, "", *_folded("Packages", fenced("\n".join(found), "text")),
            *_folded(f"{len(problems)} findings about the machine", problems[:30])]  # fmt: skip


def _config(taken: Mapping[str, bytes]) -> list[str]:
    """The run's config: the resolved one first, where the trainer has kept it."""
    ranks = ("run.json", ".hydra/config.yaml", "config.yaml", "args.json")
    found = [name for name in taken if name.startswith("config/")]
    found.sort(key=lambda name: next((n for n, end in enumerate(ranks) if name.endswith(end)), len(ranks)))
    lines: list[str] = []
    for name in found[:2]:
        text = taken[name].decode("utf-8", "replace")
        text = text if len(text) <= _MOST_CONFIG else f"{text[:_MOST_CONFIG]}\n… (all of it is in the bundle)"
        lines += _folded(name, fenced(text, "json" if name.endswith(".json") else "yaml"))
    return lines or ["(No config was found in the run's folder: add it.)", ""]


def _happened(report: DiagnosisReport | None) -> list[str]:
    if report is None or report.silent:
        return ["(No error was found in the logs: say what you saw.)"]
    lines: list[str] = []
    if report.hang is not None:
        lines += [f"The job stands still: {inline(report.hang.said)}.", ""]
        lines += [*(f"- {inline(culprit_words(one))}" for one in report.hang.culprits[:8]), ""]
    for one in report.diagnoses[:3]:
        lines += [f"**{inline(one.title)}** ({inline(sureness(one))})", "", inline(one.cause), ""]
        for quote in one.evidence[:2]:
            lines += [f"{code(place(quote))}:", "", *fenced("\n".join(quote.text)[:4000], "text"), ""]
    if report.unknown is not None:
        lines += ["An error that rlcheck does not know:", ""]
        for quote in report.unknown.evidence[:2]:
            lines += [f"{code(place(quote))}:", "", *fenced("\n".join(quote.text)[:4000], "text"), ""]
    return lines


def _judged(reports: Sequence[Report]) -> list[str]:
    """Findings of what else was judged, by its command."""
    return [
        f"- {code(f'rlcheck {report.command}')}: {inline(in_a_line(finding))}"
        for report in reports
        for finding in _problems(report)[:8]
    ]


def _problems(report: Report) -> list[Finding]:
    return [finding for finding in report.checks if finding.is_problem and finding.status in ("fail", "warn")]


def _logs(report: DiagnosisReport | None, taken: Mapping[str, bytes]) -> list[list[str]]:
    """The last lines of each role's log, those first that a diagnosis quotes."""
    quoted = [quote.file for one in (report.diagnoses if report else ()) for quote in one.evidence]
    names = [name for name in taken if name.startswith("logs/")]
    names.sort(key=lambda name: name.removeprefix("logs/") not in quoted)
    blocks: list[list[str]] = []
    for name in names[:_MOST_LOGS]:
        last = taken[name].decode("utf-8", "replace").rstrip().split("\n")[-_LAST_LINES:]
        cut = [line if len(line) <= _MOST_LINE else f"{line[:_MOST_LINE]} …" for line in last]
        blocks.append(_folded(f"Last lines of {name.removeprefix('logs/')}", fenced("\n".join(cut), "text")))
    return blocks


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{inline(title)}</summary>", "", *lines, "", "</details>", ""] if lines else []
