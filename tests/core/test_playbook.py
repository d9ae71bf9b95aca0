"""Playbooks: reading them, and filling in parameters that nobody can smuggle a command in with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck.playbook import Library, PlaybookError, Recipe, fill, load
from rlcheck.text import several
from tests.conftest import PLUGIN_SOURCE

PLAYBOOK = PLUGIN_SOURCE / "acme_rlcheck" / "playbooks" / "acme-storage.md"
HOSTILE = [
    "$(touch canary)",
    "`touch canary`",
    "; touch canary",
    "| touch canary",
    "&& touch canary",
    "\ntouch canary\n",
    "' ; touch canary ; '",
    '" ; touch canary ; "',
    "'$(touch canary)'",
    '"$(touch canary)"',
    "\\'; touch canary; \\'",
    "${IFS}touch${IFS}canary",
    "> canary",
    ">canary",
    "a > canary #",
    "&touch canary&",
    "{touch,canary}",
    "!!",
    "~",
    "*",
    "$(touch canary",
    "a'b",
    'a"b',
    "\\",
    "a\\",
    "#",
    " # ",
    "\t",
    "-rf",
    "--",
    "<(touch canary)",
    "\x00",
    "\x1b[2J",
    "",
    "E\ntouch canary\nE",
    "\r touch canary",
    "\u2028touch canary",
    "\u202etouch canary",
    "`>canary`",
]
# Every place where a playbook could put a parameter, also those where it should not.
PLACES = [
    "true {{p}}",
    "true a{{p}}b",
    "export X={{p}}",
    "true '{{p}}'",
    'true "{{p}}"',
    'true "a {{p}} b"',
    "true `true {{p}}`",
    "true $(true {{p}})",
    'true "$(true {{p}})"',
    "bash -c 'true {{p}}'",
    "bash -c \"true '{{p}}'\"",
    "cat <<E\n{{p}}\nE",
    "true a\\'{{p}}",
    "# it's\ntrue {{p}}",
    "true 'it'\\''s' {{p}} 'x'",
    'true "a\\" {{p}}"',
    "true {{p}} # {{p}}",
    "true {{p}} '{{p}}' {{p}}",
    "true $'{{p}}'",
    "cat <<< {{p}}",
]


def recipe(command: str) -> Recipe:
    return Recipe(title="t", kind="shell", command=command)


def run_in_bash(commands: list[str], cwd: Path) -> None:
    """Run each in a shell of its own, all below one bash so that hundreds take a second."""
    script = "".join(f"( eval {quoted(command)} ) >/dev/null 2>&1\n" for command in commands)
    subprocess.run(["bash"], input=script.encode("utf-8", "replace"), cwd=cwd, timeout=60, check=False)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def test_the_canary_sings(tmp_path: Path) -> None:
    run_in_bash(["true 'a b'; $(touch canary)"], tmp_path)
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize("place", PLACES)
def test_no_parameter_becomes_a_command(place: str, tmp_path: Path) -> None:
    fixes = [fill(recipe(place), {"p": value}) for value in HOSTILE]
    run_in_bash([fix.command for fix in fixes if fix.complete], tmp_path)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("$(){}`'\"\\;|&<>#!~*? \n\tab-", max_size=30), min_size=20, max_size=20))
def test_no_made_up_parameter_becomes_a_command(tmp_path_factory: pytest.TempPathFactory, values: list[str]) -> None:
    """`a` and `b` are the only commands that such a value could call: both are canaries."""
    directory = tmp_path_factory.mktemp("c")
    fixes = [fill(recipe(place), {"p": value}) for value, place in zip(values, PLACES, strict=True)]
    canaries = "a() { touch canary; }; b() { touch canary; }; ab() { touch canary; }; set -f\n"
    run_in_bash([canaries + fix.command for fix in fixes if fix.complete], directory)
    assert list(directory.iterdir()) == []


def test_the_value_arrives_whole(tmp_path: Path) -> None:
    for value in [v for v in HOSTILE if v.isprintable()]:
        fix = fill(recipe("printf %s {{p}}"), {"p": value})
        assert fix.complete
        done = subprocess.run(["bash", "-c", fix.command], capture_output=True, cwd=tmp_path, check=True)
        assert done.stdout.decode() == value


def test_what_cannot_be_shown_is_not_filled_in() -> None:
    """A command with a hidden character in it would not be what its reader copies."""
    for value in ("a\nb", "\x1b[2J", "\x00", "a\u202eb", "a\u2028b", "\udcff"):
        fix = fill(recipe("true {{p}}"), {"p": value})
        assert (fix.command, fix.complete) == ("true <p>", False)


def test_plain_values_may_stand_in_quotes() -> None:
    assert fill(recipe('true "{{p}}"'), {"p": "/dev/shm:8"}).command == 'true "/dev/shm:8"'
    assert fill(recipe('true "{{p}}"'), {"p": "a b"}).command == 'true "<p>"'


def test_several_words_stay_several() -> None:
    fix = fill(Recipe(title="Delete {{p}}", kind="shell", command="rm -r -- {{p}}"), {"p": several(("~/a b", "/c;d"))})
    assert (fix.title, fix.command, fix.complete) == ("Delete ~/a b, /c;d", "rm -r -- ~/'a b' '/c;d'", True)
    assert not fill(recipe("rm -r -- {{p}}"), {"p": several(("/a", ""))}).complete
    assert not fill(recipe("rm -r -- {{p}}"), {"p": several(("/a", "/b\n/c"))}).complete


def test_unknown_parameters_stay_open() -> None:
    fix = fill(recipe("a {{x}} {{y}}"), {"x": "1"})
    assert (fix.command, fix.complete) == ("a 1 <y>", False)
    assert fill(Recipe(title="Give {{x}} {{y}}", kind="advice"), {"x": "a b"}).title == "Give a b <y>"


def test_a_good_file_is_read() -> None:
    playbook = load(PLAYBOOK)
    assert (playbook.id, playbook.checks, playbook.verified) == ("acme-storage", ("ACM001",), "2026-11-21")
    assert [fix.safety for fix in playbook.fixes] == ["safe", "unsafe"]
    assert playbook.body.startswith("## What happens")


TEXT = PLAYBOOK.read_text()
BAD = {
    "empty": b"",
    "no front matter": b"# Title\n",
    "one line of dashes": b"---\nid: x\n",
    "not a mapping": b"---\n- a\n---\nb\n",
    "nothing between": b"---\n---\nb\n",
    "not YAML": b"---\n{ [ :\n---\nb\n",
    "not UTF-8": b"---\nid: \xff\n---\n",
    "a tag": b"---\nid: !!python/object/apply:os.system ['touch canary']\n---\nb\n",
    "deep": b"---\n" + b"[" * 5000 + b"\n---\nb\n",
    "unknown field": TEXT.replace("cause:", "reason:").encode(),
    "bad kind": TEXT.replace("kind: env", "kind: magic").encode(),
    "another id": TEXT.replace("id: acme-storage", "id: other").encode(),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named(case: str, tmp_path: Path) -> None:
    path = tmp_path / "acme-storage.md"
    path.write_bytes(BAD[case])
    with pytest.raises(PlaybookError, match=r"^acme-storage\.md: [^\n]+$"):
        load(path)


def test_a_library_looks_in_its_directories_in_order(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "acme-storage.md").write_text(TEXT.replace("Acme storage is slow", "Mine"))
    library = Library((mine, PLAYBOOK.parent))
    assert library.get("acme-storage").title == "Mine"
    assert library.get("acme-directory").title == "Acme's directory is missing"
    assert library.ids() == ("acme-directory", "acme-storage")


@pytest.mark.parametrize("name", ["", "nothing", "../acme-storage", "/etc/passwd", "x" * 5000, "a\x00b"])
def test_no_such_playbook(name: str) -> None:
    with pytest.raises(PlaybookError):
        Library((PLAYBOOK.parent,)).get(name)
