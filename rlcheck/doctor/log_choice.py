"""Which diagnoses the user wants to hear of: `--select` and `--ignore` by playbook, check or family."""

from __future__ import annotations

import difflib

import msgspec

from rlcheck.checks import family_checks
from rlcheck.diagnose.model import Answer, Diagnosis
from rlcheck.errors import UserError
from rlcheck.families import FAMILIES
from rlcheck.playbook import Library, PlaybookError


def require(name: str, library: Library) -> None:
    """Make sure that NAME is a playbook, a check or a family.

    Raises:
        UserError: it is none of them; the message names the nearest.
    """
    known = {*FAMILIES, *library.ids()}
    if name[:3] in FAMILIES:  # the checks of one family only: importing all would take longer than the answer
        known |= {check.id for check in family_checks(name[:3])}
    if name in known:
        return
    near = difflib.get_close_matches(name, sorted(known), 1) or difflib.get_close_matches(name.lower(), known, 1)
    hint = f"did you mean {near[0]}?" if near else "`rlcheck list --playbooks` names them all"
    raise UserError(f"no playbook, check or family {name!r}; {hint}")


def chosen(
    answer: Answer, select: tuple[str, ...], ignore: tuple[str, ...], library: Library
) -> tuple[Answer, tuple[str, ...]]:
    """`answer` with the diagnoses that `select` names (all, when it names none), without those of `ignore`.

    What only follows from one that is left out goes with it. Returned, too: the IDs of all that are left out.
    """
    kept = [found for found in answer.diagnoses
            if (not select or _named(found, select, library)) and not _named(found, ignore, library)]  # fmt: skip
    roots = {found.incident for found in kept if not found.echo}
    had = {found.incident for found in answer.diagnoses if not found.echo}
    kept = [found for found in kept if found.incident in roots or found.incident not in had]
    gone = dict.fromkeys(found.id for found in answer.diagnoses if found not in kept)
    return msgspec.structs.replace(answer, diagnoses=tuple(kept)), tuple(gone)


def _named(found: Diagnosis, names: tuple[str, ...], library: Library) -> bool:
    if not names or found.id in names:
        return bool(names)
    try:
        book = library.get(found.id)
    except PlaybookError:
        return False
    return any(name in names for name in (*book.checks, *book.families))
