"""Whatever stands in a report, no output drives a terminal, breaks a parser or takes for ever."""

from __future__ import annotations

import json
import re
import time
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from rlcheck.finding import Report
from rlcheck.redact import redact
from tests.report.samples import FORMATS, REPORT, on_two_nodes, shown, spoiled

# All that acts instead of showing: C0 and C1 but line feed, line separators, direction marks, byte order mark.
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
HOSTILE = {
    "escapes": "\x1b[2J\x1b]0;title\x07\x9b31m\x90q\x1b\\",
    "lines": "a\r\nb\n\n# heading\n---\n```\ncode\n```\n\x0b\x0c\x85\u2028\u2029",
    "controls": "".join(map(chr, range(32))) + "\x7f" + "".join(map(chr, range(128, 160))),
    "markdown": "| a | `b` **c** [d](http://e) <details> ![](x) @octocat #1 \\| ````` ~~f~~ $x$ &lt;",
    "html": "<script>alert(1)</script><!-- --> </details> &amp; <img src=x onerror=y>",
    "xml": "]]> <![CDATA[ & &#0; <?xml?> <!DOCTYPE x [<!ENTITY y SYSTEM 'file:///etc/passwd'>]> &y; \ufffe\uffff",
    "json": '"},{"status":"pass"},{"\\u0000\\',
    "direction": "\u202eevil\u202c \u2066x\u2069 \u200f \u061c \ufeff",
    "surrogates": "a\ud800b\udfffc\udc80",
    "astral": "\U0001f600\U000e0041\U0010ffff",
    "wide": "字" * 200,
    "blank": " \t ",
    "nothing": "",
    "format": "%s %n {0} {{x}} ${HOME} %(a)s",
}  # fmt: skip


def through(report: Report, format: str, **options: bool) -> str:
    """As the command does it: redacted, then rendered, then checked for what acts."""
    text = shown(redact(report, Report, {}), format, **options)
    assert not ACTS.search(text), repr(ACTS.search(text))
    parse(text, format)
    return text


def parse(text: str, format: str) -> None:
    if format in ("json", "sarif"):
        json.loads(text)
    elif format == "junit":
        ElementTree.fromstring(text)
    elif format == "prometheus":
        list(text_string_to_metric_families(text))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_strings_everywhere(name: str, format: str) -> None:
    for report in (REPORT, on_two_nodes()):
        through(spoiled(report, lambda text: HOSTILE[name]), format, verbose=True)
        through(spoiled(report, lambda text: f"{text[:9]}{HOSTILE[name]}{text[9:]}"), format)


@pytest.mark.parametrize("name", HOSTILE)
def test_ascii_only_is_ascii(name: str) -> None:
    through(spoiled(REPORT, lambda text: text + HOSTILE[name]), "text", ascii_only=True, verbose=True).encode("ascii")


@pytest.mark.parametrize("format", FORMATS)
def test_a_megabyte_in_every_field(format: str) -> None:
    one = msgspec.structs.replace(REPORT.checks[0], details=("d",), fixes=REPORT.checks[0].fixes[:1])
    short = msgspec.structs.replace(REPORT, checks=(one,), families=REPORT.families[:1])
    started = time.monotonic()
    text = through(spoiled(short, lambda text: "x <&|`" * 170_000), format)
    assert len(text) > 1_000_000 or format == "nagios"
    assert time.monotonic() - started < 20


def test_json_loses_nothing() -> None:
    report = spoiled(REPORT, lambda text: text + HOSTILE["escapes"] + HOSTILE["direction"])
    assert msgspec.json.decode(shown(report, "json"), type=Report) == report


def outside_code(text: str) -> list[str]:
    """The lines of Markdown, code blocks left out."""
    return re.sub(r"(?ms)^(`{3,})bash\n.*?^\1$", "", text).splitlines()


def starting(start: str, lines: list[str]) -> int:
    return sum(line.startswith(start) for line in lines)


def test_markdown_stays_in_its_place() -> None:
    """A hostile string makes no heading, no table row, no fence and no tag of its own."""
    plain = outside_code(through(REPORT, "markdown"))
    for name in ("lines", "markdown", "html"):
        spoilt = outside_code(through(spoiled(REPORT, lambda text: text + HOSTILE[name]), "markdown"))  # noqa: B023
        for start in ("#", "|", "```", ">", "- ", "---"):
            assert starting(start, spoilt) == starting(start, plain), name
    text = through(spoiled(REPORT, lambda text: HOSTILE["html"] if "`" not in text else text), "markdown")
    outside = re.sub(r"`[^`\n]*`", "", "\n".join(outside_code(text)))
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", outside)
    text = "\n".join(outside_code(through(spoiled(REPORT, lambda text: HOSTILE["markdown"]), "markdown")))
    assert "@octocat" not in re.sub(r"(?<!\\)`[^`\n]*`", "", text)


@settings(max_examples=400, deadline=None)
@given(
    st.text(max_size=60) | st.text(alphabet="\x1b\n\r\t|`<>&\"'\\]}[{@#*_~$ \x9b\u202e\ud800\ufffe", max_size=60),
    st.booleans(),
)
def test_any_string(value: str, verbose: bool) -> None:
    report = spoiled(REPORT, lambda text: value)
    for format in FORMATS:
        through(report, format, verbose=verbose)
