"""Errors of packages that are not installed here, or in another version: what the record of releases says of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from rlcheck.diagnose.lines import read_line
from rlcheck.diagnose.model import Answer, LogLine, Site
from rlcheck.diagnose.source.installed import Environment
from rlcheck.diagnose.source.recall import stated
from rlcheck.diagnose.source.recorded import FOLDER
from rlcheck.report.diagnosis.report import make_report
from tests.diagnose.answers import FORMATS, shown
from tests.diagnose.planted import OWN, THERE, asked, plant, site_of, traceback

RECORD = """\
# read on 2026-11-28
# acme 1.0 1.1 1.2 2.0
acme/config.py
ValueError	Config.verify	02!	size > 4  seats % size != 0	c:seats=0*  c:size=1*	The {seats} seats must be divisible by size ({size}).
ValueError	Config.verify	33!	seats % (2 * size) != 0	c:seats=0*  c:size=1*	The {seats} seats must be divisible by size ({size}).
KeyError	Config.get	03	name		No 'thing' of the name {name} was found
acme/engine.py
RuntimeError	start	03!	envs.ACME_PORT	e:ACME_PORT*  l:LIMIT=64	The port is taken, so ACME_PORT has to name another one
RuntimeError	go	03!	a		this cannot be done here
RuntimeError	go	13!	b		this cannot be done here
TypeError	pick	03	not kind	a:kind=1*	{}: {kind} is wrong
ValueError	dump	03	not text		The text {{{text}}} of a dump has to be one of:  {...}
exit	serve	03!	taken	a:port=0*	the port {port} is taken by another program
RuntimeError	twin	03!~	n		none of these twins can be told from the other
acme/v1/other.py
RuntimeError	elsewhere	03!	c		this cannot be done here at all
acme/worker.py
RuntimeError	elsewhere	03!	d		this cannot be done here at all
"""  # noqa: E501
SEATS = "ValueError: The 14 seats must be divisible by size (4)."


@pytest.fixture
def where(tmp_path: Path) -> Environment:
    """An environment without packages, and a record of acme."""
    folder = tmp_path / "raises"
    folder.mkdir()
    (folder / "acme.txt").write_text(RECORD, encoding="utf-8")
    return Environment(
        sites=(str(tmp_path / "site-packages"),), stdlib=os.path.dirname(os.__file__), records=str(folder)
    )


def frame(function: str, file: str = "acme/config.py", root: str = THERE) -> str:
    return f'  File "{root}/{file}", line 7, in {function}\n    raise ValueError(\n'


def unknown(answer: Answer) -> bool:
    return answer.diagnoses == () and answer.unknown is not None


def values(site: Site) -> dict[str, str]:
    return {one.name: one.value for one in site.settings}


def test_a_traceback_into_a_package_that_is_not_here_is_answered_from_the_record(where: Environment) -> None:
    answer = asked(where, traceback(frame("verify"), SEATS, "acme==1.1\n"))
    site = site_of(answer)
    assert (site.package, site.file, site.function, site.line) == ("acme", "acme/config.py", "Config.verify", 0)
    assert (site.releases, site.version, site.outside) == (("1.0", "1.2"), "1.1", False)
    assert site.conditions == ("size > 4", "seats % size != 0")
    assert values(site) == {"seats": "14", "size": "4"}
    assert answer.diagnoses[0].confidence == "medium"
    told = " ".join(shown(make_report(answer), "text").split())
    assert "From the source of acme 1.0 to 1.2, acme/config.py: confidence is medium." in told
    assert "raises ValueError where `seats % size != 0`" in told
    assert "Change `seats` (now 14) or `size` (now 4) so that `seats % size != 0` is no longer true" in told
    for format in FORMATS:
        assert "acme" in shown(make_report(answer), format)


@pytest.mark.parametrize(
    ("version", "condition", "outside"),
    [("", "seats % (2 * size) != 0", False), ("1.0.3", "seats % size != 0", False),
     ("2.0", "seats % (2 * size) != 0", False), ("2.3", "seats % (2 * size) != 0", True)],
)  # fmt: skip
def test_the_version_of_the_log_chooses_and_is_said_to_be_outside(
    where: Environment, version: str, condition: str, outside: bool
) -> None:
    before = f"INFO acme version {version}\n" if version else ""
    answer = asked(where, traceback(frame("verify"), SEATS, before))
    site = site_of(answer)
    assert (site.conditions[-1], site.outside, site.version) == (condition, outside, version)
    assert ("the log is of 2.3, which is none of these" in shown(make_report(answer), "json")) is False
    told = " ".join(shown(make_report(answer), "text").split())
    assert ("the log is of 2.3, which is none of these: confidence is low" in told) is outside


def test_a_line_without_a_traceback_is_answered_if_it_names_one_site(where: Environment) -> None:
    site = site_of(asked(where, SEATS + "\n"))
    assert (site.file, values(site)) == ("acme/config.py", {"seats": "14", "size": "4"})
    port = asked(where, "(Worker pid=7) RuntimeError: The port is taken, so ACME_PORT has to name another one\n")
    assert values(site_of(port)) == {"ACME_PORT": "", "LIMIT": "64"}
    assert port.diagnoses[0].confidence == "low"
    assert values(site_of(asked(where, "KeyError: \"No 'thing' of the name x was found\"\n"))) == {}


def test_what_is_logged_before_an_exit_is_answered(where: Environment) -> None:
    answer = asked(where, "ERROR 08-01 12:00:00 [serve.py:1] the port 80 is taken by another program\n")
    assert values(site_of(answer)) == {"port": "80"}
    assert "serve logs this and ends the process where `taken`" in answer.diagnoses[0].cause
    assert asked(where, "INFO 08-01 12:00:00 [serve.py:1] the port 80 is taken by another program\n").unknown is None
    assert unknown(asked(where, "ValueError: the port 80 is taken by another program\n"))


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: The 14 seats must be divisible by size (4). And more.",
        "TypeError: The 14 seats must be divisible by size (4).",
        "RuntimeError: this cannot be done here at all",
        "TypeError: x: y is wrong",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "IndexError: list index out of range",
        "INFO The 14 seats must be divisible by size (4).",
        "WARNING: The port is taken, so ACME_PORT has to name another one",
    ],
)
def test_what_fits_in_part_or_is_generic_is_not_claimed(where: Environment, line: str) -> None:
    answer = asked(where, f"{line}\n")
    assert answer.diagnoses == ()
    assert (answer.unknown is None) is line.startswith(("INFO", "WARNING"))


def test_messages_of_several_lines_braces_and_cut_ends_fit(where: Environment) -> None:
    lines = "ValueError: The text {a: 1} of a\n  dump has to be one of: b, c\n"
    assert site_of(asked(where, traceback(frame("dump", "acme/engine.py"), lines))).function == "dump"
    assert site_of(asked(where, lines)).function == "dump"


def test_of_several_sites_with_one_message_the_traceback_chooses(where: Environment) -> None:
    raised = "RuntimeError: this cannot be done here at all"
    assert site_of(asked(where, traceback(frame("elsewhere", "acme/worker.py"), raised))).conditions == ("d",)
    assert unknown(asked(where, traceback(frame("elsewhere", "acme/moved.py"), raised)))
    # Two in one function: which of them, the message does not say.
    twice = site_of(asked(where, traceback(frame("go", "acme/engine.py"), "RuntimeError: this cannot be done here")))
    assert (twice.function, twice.conditions, twice.settings) == ("go", (), ())


def test_a_message_that_others_say_as_well_needs_the_function(where: Environment) -> None:
    raised = "RuntimeError: none of these twins can be told from the other"
    assert site_of(asked(where, traceback(frame("twin", "acme/moved.py"), raised))).function == "twin"
    assert unknown(asked(where, traceback(frame("other", "acme/engine.py"), raised)))
    assert unknown(asked(where, raised + "\n"))


def test_a_generic_message_needs_file_and_function(where: Environment) -> None:
    raised = "TypeError: x: y is wrong"
    assert values(site_of(asked(where, traceback(frame("pick", "acme/engine.py"), raised)))) == {"kind": "y"}
    assert unknown(asked(where, traceback(frame("pick", "acme/moved.py"), raised)))
    assert unknown(asked(where, traceback(frame("choose", "acme/engine.py"), raised)))


def test_a_site_that_has_moved_is_found_by_its_function(where: Environment) -> None:
    site = site_of(asked(where, traceback(frame("verify", "acme/config/model.py"), SEATS)))
    assert site.file == "acme/config.py"
    assert unknown(asked(where, traceback(frame("other", "acme/config/model.py"), SEATS)))
    assert unknown(asked(where, traceback(frame("verify", "bolt/config.py"), SEATS)))


def test_the_users_own_code_stays_unknown_and_a_checkout_does_not(where: Environment) -> None:
    assert unknown(asked(where, traceback("", SEATS)))
    assert unknown(asked(where, traceback(frame("verify", "config.py", "/home/kim/rl"), SEATS)))
    assert unknown(asked(where, traceback("", "KeyError: 'hamster'") + "\n" + SEATS + "\n"))
    assert site_of(asked(where, traceback(frame("verify", root="/workspace/acme"), SEATS))).package == "acme"


def test_what_is_installed_here_comes_first_and_the_record_if_it_lacks_the_raise(
    where: Environment, tmp_path: Path
) -> None:
    code = "def verify(seats, size):\n    if seats > size:\n        raise ValueError(  # here\n"
    code += "            f'The {seats} seats must be divisible by size ({size}).')\n"
    here = msgspec.structs.replace(plant(tmp_path / "a", code, "acme/config.py"), records=where.records)
    site = site_of(asked(here, traceback(frame("verify"), SEATS)))
    assert (site.releases, site.line) == ((), 3)
    other = code.replace("must be divisible by", "do not go with")
    lacking = msgspec.structs.replace(plant(tmp_path / "b", other, "acme/config.py"), records=where.records)
    assert site_of(asked(lacking, traceback(frame("verify"), SEATS))).releases == ("2.0", "2.0")


def test_without_a_record_nothing_changes(where: Environment) -> None:
    shutil.rmtree(where.records)
    for log in (traceback(frame("verify"), SEATS), SEATS + "\n"):
        assert unknown(asked(where, log))


@pytest.mark.parametrize(
    ("package", "line", "version"),
    [
        ("vllm", "INFO 08-01 12:00:00 [api_server.py:1] vLLM API server version 0.10.0", "0.10.0"),
        ("vllm", "INFO [core.py:1] Initializing a V1 LLM engine (v0.8.5.post1) with config: model='x'", "0.8.5.post1"),
        ("torch", "PyTorch version: 2.6.0+cu124", "2.6.0"),
        ("torch", "torch==2.7.1", "2.7.1"),
        ("megatron-core", "megatron_core==0.12.0", "0.12.0"),
        ("transformers", "- `transformers` version: 4.51.3", "4.51.3"),
        ("transformers", "Please upgrade: pip install transformers==4.51.3", ""),
        ("transformers", "transformers==4.51.3 requires huggingface-hub", ""),
        ("transformers", '  "transformers_version": "4.40.0",', ""),
        ("trl", "my_trl==1.2.0", ""),
        ("ray", "ray 2 workers", ""),
        ("torch", "the version that was used to compile PyTorch (12.1)", ""),
    ],
)
def test_the_version_that_a_log_says(package: str, line: str, version: str) -> None:
    assert stated(package, [read_line(LogLine(number=1, text=line), 0, 0)]) == version


def test_two_versions_in_one_log_are_none() -> None:
    lines = [read_line(LogLine(number=at, text=f"trl==1.{at}.0"), 0, at) for at in range(2)]
    assert stated("trl", lines) == ""


def test_the_command_finds_a_site_of_the_shipped_record() -> None:
    where = Environment(sites=(), records=str(FOLDER))
    log = "Traceback (most recent call last):\n" + OWN + frame("new", "verl/checkpoint_engine/base.py")
    site = site_of(asked(where, log + "ValueError: Checkpoint engine nickel not registered\n"))
    assert (site.package, values(site)) == ("verl", {"backend": "nickel"})
