"""The evaluation of declared requirements: parsing, markers, extras, what satisfies several specifiers at once."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Reference
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from rlcheck.facts.python import Distribution, PythonFacts
from rlcheck.requirements import admits, clashing, common, demands, parse
from tests.checks.python.build import MARKERS, METADATA, dist


def environment(*distributions: Distribution) -> PythonFacts:
    return PythonFacts(version="3.12.3", marker_environment=MARKERS, distributions=distributions)


def said(*distributions: Distribution, presumed=()) -> set[str]:
    return {demand.says for demand in demands(environment(*distributions), presumed).in_force}


ODD_LINES = [
    "torch (>=2.0,<3)", "a @ https://example.org/a-1.0.whl", "a@git+https://example.org/a@main ; python_version < '4'",
    "Foo_Bar[x, Y.z]>=1,!=2.*;sys_platform=='linux'", "foo ~= 1.0", "x>=1 ;extra == \"y\" ", "b  [c]  ==  1.0+cpu",
]  # fmt: skip


@pytest.mark.parametrize("line", ODD_LINES + [line for entry in METADATA.values() for line in entry["requires"]])
def test_a_line_is_read_as_packaging_reads_it(line: str) -> None:
    ours, theirs = parse(line), Reference(line)
    assert ours is not None
    assert ours.name == canonicalize_name(theirs.name)
    assert set(ours.extras) == {canonicalize_name(extra) for extra in theirs.extras}
    assert SpecifierSet(ours.specifier) == theirs.specifier
    assert ours.url == (theirs.url or "")
    assert bool(ours.marker) == bool(theirs.marker)


@pytest.mark.parametrize("line", ["", "==1", "a b c", "a>=", "a>=>1", "a[", "ä>=1", "a ; b ; c d"])
def test_a_line_that_is_none_is_reported_not_raised(line: str) -> None:
    found = demands(environment(dist("owner", "1.0", line)))
    assert found.in_force == ()
    assert found.invalid == (("owner", line),)


@given(st.text(max_size=60))
def test_no_line_escapes(line: str) -> None:
    found = demands(environment(dist("owner", "1.0", line)))
    try:
        Reference(line)
    except (InvalidRequirement, ValueError):
        assert not found.in_force or parse(line) is not None


def test_markers_are_evaluated_in_the_examined_environment() -> None:
    got = said(
        dist("a", "1", "b; python_version >= '3.12'", "c; python_version < '3.12'", "d; sys_platform == 'win32'")
    )
    assert got == {"a 1 requires b"}


def test_extras_count_only_when_somebody_asks() -> None:
    ray = dist("ray", "2.60.0", "filelock", "aiohttp_cors; extra == 'default'", "pandas; extra == 'data'")
    assert said(ray) == {"ray 2.60.0 requires filelock"}
    asked = said(ray, dist("verl", "0.9.1", "ray[default]>=2.41.0"))
    assert "ray 2.60.0[default] requires aiohttp-cors" in asked
    assert not any("pandas" in line for line in asked)


def test_an_extra_that_brings_another_extra_of_itself() -> None:
    verl = dist("verl", "0.9.1", "verl[core]; extra == 'vllm'", "torch==2.11.0; extra == 'core'")
    found = demands(environment(verl), [("verl", "vllm")]).in_force
    assert {(d.extra, d.requirement.text, d.presumed) for d in found} == {
        ("vllm", "verl[core]", True),
        ("core", "torch==2.11.0", True),
    }


def test_a_marker_that_mixes_extra_with_or() -> None:
    line = "tomli; extra == 'toml' or python_version >= '3.12'"
    assert said(dist("a", "1", line)) == {"a 1 requires tomli"}


@pytest.mark.parametrize(
    ("specifier", "installed", "wanted"),
    [
        ("==2.13.0", "2.13.0+cpu", True),
        ("==2.13.0+cpu", "2.13.0", False),
        ("==2.13.0+cpu", "2.13.0+cpu", True),
        (">=2.14", "2.15.0.dev20261001+cu130", True),
        ("<2.14", "2.14.0rc1", False),
        ("!=5.6.0,<5.11,>=5.5.3", "5.6.0", False),
        ("==4.0.0b9", "4.0.0b9", True),
        (">=1.0", "not-a-version", True),
        ("==" + "9" * 5000, "1.0", True),
    ],
)
def test_what_satisfies(specifier: str, installed: str, wanted: bool) -> None:
    assert admits(specifier, installed) is wanted


@pytest.mark.parametrize(
    ("wanted", "together"),
    [
        (["==5.6.0", "==5.9.0"], None),
        (["==5.6.0", "!=5.6.0,<5.11,>=5.5.3"], None),
        (["<5.11", ">=5.16.1,<5.20"], None),
        (["==2.11.*", "!=2.11.*"], None),
        ([">5.6.0", "<=5.6.0"], None),
        (["==2.13.0+cpu", "==2.13.0", ">=2.1"], "==2.13.0+cpu"),
        ([">=4.56", ">=5.5.3", "!=4.57.0", "<6"], ">=5.5.3,<6"),
        (["~=3.8.0", ">=3.7"], "~=3.8.0"),
        (["==0.24.0", ">=0.22.0,<=0.31.0"], "==0.24.0"),
        (["", ""], ""),
    ],
)
def test_one_specifier_that_says_all(wanted: list[str], together: str | None) -> None:
    assert common(wanted) == together


VERSIONS = st.builds(lambda *n: ".".join(map(str, n)), *[st.integers(0, 3)] * 3)
PARTS = st.builds(lambda op, v: op + v, st.sampled_from(["==", "!=", ">=", "<=", "<", ">", "~="]), VERSIONS)


@given(st.lists(PARTS, min_size=1, max_size=5), VERSIONS)
def test_a_version_that_satisfies_all_is_never_denied(parts: list[str], candidate: str) -> None:
    fits = all(SpecifierSet(part).contains(candidate) for part in parts)
    together = common(parts)
    if fits:
        assert together is not None
        assert SpecifierSet(together).contains(candidate)
    elif together is not None:
        assert not SpecifierSet(together).contains(candidate)


def test_a_development_release_as_a_bound() -> None:
    assert common(["<=0.41.0.dev0", ">=0.30"]) is not None
    assert common(["<=0.41.0.dev0", ">=0.41.0"]) is None


def test_clashing_is_about_all_of_them() -> None:
    packages = demands(environment(dist("a", "1", "x>=2"), dist("b", "1", "x<2"), dist("c", "1", "x>=1"))).in_force
    assert clashing(packages)
    assert not clashing(packages[1:])


def test_ten_thousand_distributions_take_no_more_than_a_moment() -> None:
    many = [
        dist(f"p{i}", "1.0", f"p{i + 1}>=1", f"q{i}; extra == 'dev'", "r; python_version < '3'") for i in range(10_000)
    ]
    started = time.perf_counter()
    found = demands(environment(*many))
    assert len(found.in_force) == 10_000
    assert time.perf_counter() - started < 20  # a guard against something quadratic, not a measurement
