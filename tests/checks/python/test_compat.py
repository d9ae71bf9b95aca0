"""The curated table is sound, and no facts, however odd, break a check of this family."""

import re
from datetime import date

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlcheck import judging
from rlcheck.check import Check
from rlcheck.checks import family_checks
from rlcheck.checks.python.compat import compat
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.python import Distribution, Extension, PythonFacts, TorchFacts
from rlcheck.playbook import Library
from rlcheck.requirements import admits, specifiers, version
from tests.checks.python.cases import CASES

CHECKS = family_checks("ENV")

LIBRARY = Library()


def test_every_rule_has_a_source_and_a_date() -> None:
    table = compat()
    rules = (
        *(table.engine_extras + table.omissions + table.torch + table.companions + table.known_bad + table.owners),
        *(table.glibc_floors + table.expandable_segments + table.python_floors),
        *(table.engine_pairs, table.tensordict_aarch64, table.vllm_variables),
    )
    assert not [row for row in rules if not re.fullmatch(r"https://[\w.-]+/\S*", row.source) or not row.date]
    assert all(date.fromisoformat(row.date) <= date.fromisoformat(table.updated) for row in table.known_bad)


def test_every_range_can_be_read() -> None:
    table = compat()
    ranges = [row.versions for row in (*table.companions, *table.known_bad, *table.glibc_floors)]
    ranges += [row.torch for row in table.companions] + [row.vllm for row in table.expandable_segments]
    ranges += [text for row in table.known_bad for text in row.with_.values()]
    assert all(specifiers(text) is not None for text in ranges)
    assert all(version(row.glibc) for row in table.glibc_floors)
    assert all(re.compile(row.pattern) for row in table.libraries)
    assert len({row.id for row in table.known_bad}) == len(table.known_bad)


def test_companions_are_in_order_and_newest_last() -> None:
    """The last row that admits a torch is offered as the fix."""
    rows_of = [row for row in compat().companions if row.package == "torchvision"]
    assert [row.versions for row in rows_of if admits(row.torch, "2.13.0")] == ["==0.28.*"]
    assert admits(rows_of[-1].torch, "2.15.0")


def test_removed_variables_were_known_once() -> None:
    table = compat().vllm_variables
    assert set(table.removed) <= set(table.known)
    assert all(version(row.gone_in) is not None for row in table.removed.values())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_both_fixtures(check: Check) -> None:
    fires, quiet = CASES[check.id]
    loud, calm = (judging.judge(facts, (check,), LIBRARY)[0] for facts in (fires, quiet))
    assert loud.status in ("fail", "warn", "info"), loud.message
    assert calm.status in ("pass", "skip"), calm.message
    assert all(fix.complete for fix in loud.fixes), [fix.command for fix in loud.fixes if not fix.complete]


def test_the_other_fixtures_do_not_set_off_a_false_failure() -> None:
    """What a quiet fixture is quiet about, no other check of the family may call a failure by mistake."""
    loud = {
        check.id: sorted(
            f.id for f in judging.judge(CASES[check.id][1], CHECKS, LIBRARY) if f.status in ("fail", "error")
        )
        for check in CHECKS
    }
    # Fixtures are small: what they require is mostly not installed, which is a finding of its own.
    assert {key: ids for key, ids in loud.items() if set(ids) - {"ENV007", "ENV005", "ENV022"}} == {}


TEXTS = st.one_of(
    st.text(max_size=12), st.sampled_from(["torch", "vllm", "2.13.0", "==2.*", "a; extra == 'x'", "9" * 5000])
)
DISTRIBUTIONS = st.builds(
    Distribution, name=TEXTS, version=TEXTS, location=TEXTS, installer=TEXTS, requires_read=st.booleans(),
    requires_python=TEXTS, requires=st.lists(TEXTS, max_size=3).map(tuple), editable=TEXTS, broken=TEXTS,
    wheel_tags=st.lists(TEXTS, max_size=2).map(tuple),
)  # fmt: skip
EXTENSIONS = st.builds(
    Extension, distribution=TEXTS, path=TEXTS, needed=st.lists(TEXTS, max_size=2).map(tuple),
    unresolved_libs=st.lists(TEXTS, max_size=2).map(tuple), unresolved_symbols=st.lists(TEXTS, max_size=2).map(tuple),
    cxx11_abi=TEXTS, cuda_major=st.integers(-(2**60), 2**60), uses_numpy_1=st.booleans(),
)  # fmt: skip
NAMES = st.sampled_from(
    ["TORCH_CUDA_ARCH_LIST", "PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS", "VLLM_X", "PYTHONPATH", "CUDA_HOME"]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    distributions=st.lists(DISTRIBUTIONS, max_size=4), extensions=st.lists(EXTENSIONS, max_size=2), words=TEXTS,
    build=st.builds(TorchFacts, version=TEXTS, cuda=TEXTS, hip=TEXTS, cxx11_abi=TEXTS),
    markers=st.dictionaries(st.sampled_from(["python_version", "sys_platform", "x"]), TEXTS, max_size=2),
    environ=st.dictionaries(NAMES, TEXTS, max_size=3), lines=st.lists(TEXTS, max_size=2).map(tuple),
)  # fmt: skip
def test_hostile_facts_never_break_a_check(
    distributions, extensions, words, build, markers, environ, lines
) -> None:  # fmt: skip
    python = PythonFacts(
        executable=words, version=words, implementation=words, prefix=words, kind="conda", user_site=words,
        user_site_enabled=True, marker_environment=markers, distributions=tuple(distributions), pip_config=lines,
        extensions=tuple(extensions), torch=known(build), leftovers=lines, owners={"torch": lines},
        shadowed={"torch": lines}, conda_packages={"pytorch": words},
    )  # fmt: skip
    facts = Facts(
        python=known(python), environ=known(environ),
        platform=known(PlatformFacts(machine="aarch64", libc="glibc", libc_version=words)),
    )  # fmt: skip
    broken = [f"{f.id}: {f.message}" for f in judging.judge(facts, CHECKS, LIBRARY) if f.status == "error"]
    assert not broken
