"""The tables of a report: on terminals and in pipes, with 3, 12 and 64 members; the way to a head; the headline."""

from __future__ import annotations

import io
from functools import partial

import msgspec
import pytest

from rlcheck.facts.base import MissingKind, known, missing
from rlcheck.facts.cluster import ClusterFacts
from rlcheck.facts.document import Facts
from rlcheck.facts.reach import Contact, GcsFacts, GcsNode, ReachFacts, Resolution, Route, Speaker
from rlcheck.finding import Exhibit, Report
from rlcheck.report.by_family import exhibits, headline
from rlcheck.report.render import render
from rlcheck.report.tables import table_lines
from rlcheck.report.topics.cluster import matrix, members
from rlcheck.report.topics.way import way
from tests.checks.cluster.cluster_cases import cluster, with_versions
from tests.report.samples import HEALTHY, shown
from tests.report.test_text import Terminal


def spoilt(size: int) -> ClusterFacts:
    """Node 2 is reached by nobody, node 3 has another torch, the last one is silent."""
    found = cluster(
        size,
        odd={3: with_versions(torch="2.10.0") | {"clock_offset_s": known(7.2)}},
        silent=(size,) if size > 3 else (),
        outcome=lambda a, b, what: "filtered" if b == 2 else "open",
    )
    assert found.cluster.value is not None
    return found.cluster.value


def gcs(nodes: int, **more: object) -> GcsFacts:
    alive = tuple(GcsNode(node_id=str(n), address=f"10.0.0.{n}", resources={"GPU": 8.0}) for n in range(nodes))
    usual = {"health": "serving", "ray_version": known("2.60.0"), "python_version": known("3.11.7"),
             "nodes": known((*alive, GcsNode(node_id="d", address="10.0.0.99", alive=False)))}  # fmt: skip
    return GcsFacts(**{**usual, **more})  # pyright: ignore[reportArgumentType]


def reach(**more: object) -> ReachFacts:
    usual = {
        "resolution": known(Resolution(name="head", addresses=("10.0.0.1",))),
        "route": known(Route(destination="10.0.0.1", source="10.0.0.7", interface="eth0")),
        "tcp": known((Contact(address="10.0.0.1", port=6379, what="gcs", outcome="open", rtt_s=1e-4),)),
        "speaker": known(Speaker(kind="gcs")),
        "gcs": known(gcs(3)),
    }
    return ReachFacts(head="head", port=6379, **{**usual, **more})  # pyright: ignore[reportArgumentType]


def report_of(facts: Facts) -> Report:
    return msgspec.structs.replace(HEALTHY, exhibits=exhibits((facts,)))


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize("size", [2, 3, 12, 64])
def test_never_wider_than_the_terminal(size: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    facts = Facts(node="gpu-01", cluster=known(spoilt(size)), reach=known(reach()))
    for ascii_only in (False, True):
        out = Terminal(io.BytesIO(), encoding="utf-8")
        render(report_of(facts), "text", out, ascii_only=ascii_only)
        out.seek(0)
        text = out.read()
        assert "node2" in text
        assert not [line for line in text.splitlines() if len(line) > columns or line != line.rstrip()]
        assert text.isascii() or not ascii_only


def test_small_cluster() -> None:
    table = members(spoilt(4))
    assert [row[0] for row in table.rows] == ["node1", "node2", "node3", "node4"]
    assert "torch" in table.columns
    assert "Ray" not in table.columns, "what all have in common is said once"
    assert "Ray 2.60.0" in table.notes[0]
    assert "silent: did not answer within 5 s" in table.rows[3]
    (times,) = matrix(spoilt(4))
    assert [row[3] for row in times.rows] == [".", "-", ".", ""], "nobody reaches node2"
    assert any(". filtered" in note for note in times.notes)


def test_large_cluster_shows_the_odd_ones() -> None:
    table = members(spoilt(64))
    assert [row[0] for row in table.rows] == ["node3", "node64", "62 others"]
    (times,) = matrix(spoilt(64))
    assert [row[0] for row in times.rows] == ["node2"]
    assert "0 of 62" in times.rows[0]


def test_a_large_healthy_cluster_is_a_few_lines() -> None:
    facts = cluster(64)
    assert sum(len(table.rows) + len(table.notes) for table in exhibits((facts,))) < 8


def marks(facts: ReachFacts) -> dict[str, str]:
    return {layer: mark for mark, layer, _ in (tuple(row) for row in way(facts).rows)}


def test_the_way_when_all_is_well() -> None:
    assert set(marks(reach(own_ray_version="2.60.0", own_python_version="3.11.7")).values()) == {"✓"}


def test_the_way_ends_where_it_ends() -> None:
    refused = known((Contact(address="10.0.0.1", port=6379, what="gcs", outcome="refused", detail="refused"),))
    nothing = missing(MissingKind.NOT_COLLECTED, "the port is not open")
    found = reach(tcp=refused, speaker=nothing, gcs=nothing, proxies={"http_proxy": "10.0.0.1"})
    assert marks(found) == {"name": "✓", "route": "✓", "TCP": "✗", "what speaks": "–", "GCS": "–", "proxies": "!"}
    redis = reach(speaker=known(Speaker(kind="redis", detail="-ERR unknown command")), gcs=nothing)
    assert way(ReachFacts(head="fd00::5", port=6379)).title == "The way to [fd00::5]:6379"
    assert ("✗", "what speaks", "a Redis server (-ERR unknown command)") in way(redis).rows


def test_the_way_names_what_differs() -> None:
    ports = tuple(Contact(address=f"10.0.0.{n}", port=4000, what="raylet", outcome="filtered" if n == 2 else "open")
                  for n in range(3))  # fmt: skip
    rows = way(reach(own_ray_version="2.60.0", own_python_version="3.11.9", node_ports=known(ports))).rows
    assert ("✗", "versions", "Ray 2.60.0, Python 3.11.7; here Ray 2.60.0, Python 3.11.9") in rows
    assert ("✗", "ports of the nodes", "2 of 3 open; 10.0.0.2:4000 filtered") in rows
    assert ("✓", "nodes", "3 alive, 1 dead, 24 GPUs") in rows


def test_headlines() -> None:
    line = partial(headline, "RAY")
    assert line(Facts(reach=known(reach()))) == "head:6379 serves, 3 nodes alive, 24 GPUs, Ray 2.60.0, Python 3.11.7"
    refused = known((Contact(address="10.0.0.1", port=6379, what="gcs", outcome="refused"),))
    none = missing(MissingKind.NOT_COLLECTED, "")
    assert line(Facts(reach=known(reach(tcp=refused, speaker=none, gcs=none)))) == "head:6379: refused"
    redis = known(Speaker(kind="redis"))
    assert line(Facts(reach=known(reach(speaker=redis, gcs=none)))) == "head:6379: redis, not the GCS"
    assert line(cluster(3, via="ssh")) == "3 of 3 machines answered by ssh, 24 GPUs"


def test_a_table_that_fits_in_no_way_becomes_a_list() -> None:
    columns = ("", "node", *(str(n) for n in range(30)))
    rows = [("1", "node1", *("12345" for _ in range(30)))]
    lines = table_lines(columns, rows, 60)
    assert max(map(len, lines)) <= 60
    assert "node: node1" in lines[1]


def test_markdown_and_hostile_cells() -> None:
    table = Exhibit(title="a | b <script>", columns=("x", ""), rows=(("1 | 2\n# 3", "@root"),), notes=("*n*",))
    text = shown(msgspec.structs.replace(HEALTHY, exhibits=(table,)), "markdown")
    assert "| 1 \\| 2 \\# 3 | @\u200broot |" in text
    assert "<script>" not in text.replace("\\<script\\>", "")
