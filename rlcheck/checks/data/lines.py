"""Lines and characters."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.data.common import data, found, listed, places, proof, stops, verdict
from rlcheck.facts.document import Facts

_LINES = ("lines", "gz")
_OBJECTS = (*_LINES, "array")


@check("DAT005", "Every line is one JSON object", needs=("data",), playbook="data-lines",
       problem="A line is not a JSON object")  # fmt: skip
def json_lines(facts: Facts) -> Verdict:
    """Parses every line.

    What it does:
        Reports lines that are no JSON (with the column), that hold something other than an object, that say a key
        twice, or that never end. Control characters inside of strings are looked at by DAT009.

    Why it matters:
        One cut line, often the last one of a copy that broke off, makes the whole file unreadable for a trainer, or
        is skipped in silence by a loader that means well.
    """
    section = data(facts)
    if not any(file.format in _OBJECTS for file in section.files):
        return skip("no file of JSON")
    troubles = found(section, "json", "no_object", "double_key", "line_long")
    if not troubles:
        return passed("every line is an object")
    return verdict(fail, section, troubles, "one JSON object a line")


@check("DAT006", "The data is UTF-8 text", needs=("data",), playbook="data-lines",
       problem="Some text is not UTF-8")  # fmt: skip
def utf8(facts: Facts) -> Verdict:
    """Decodes every line.

    What it does:
        Reports bytes that are no UTF-8, with the column counted in bytes, and files that begin as UTF-16 or UTF-32 do;
        of these no line is read.

    Why it matters:
        JSON is UTF-8 by definition. A loader raises UnicodeDecodeError in the middle of the file, or replaces what it
        cannot read, and the model trains on text that was never written.
    """
    section = data(facts)
    if not any(file.format in _LINES for file in section.files):
        return skip("no file of lines")
    troubles = found(section, "wide", "utf8")
    wide = section.trouble("wide").spots
    params = {"encoding": wide[0].text} if wide else {}
    return verdict(fail, section, troubles, "UTF-8", params=params) if troubles else passed("all of it")


@check("DAT007", "Line ends are of one kind, without a byte order mark", needs=("data",), playbook="data-lines",
       problem="Line ends are mixed, or a file begins with a byte order mark")  # fmt: skip
def line_ends(facts: Facts) -> Verdict:
    """Counts line ends and looks at the first bytes.

    What it does:
        Notes a byte order mark, and files in which some lines end in CR LF and others in LF alone.

    Why it matters:
        Strict JSON readers refuse a byte order mark as an unexpected character in line 1. Mixed line ends show that
        the file was put together from several or edited on another system.
    """
    section = data(facts)
    if not any(file.format in _LINES for file in section.files):
        return skip("no file of lines")
    marked = found(section, "bom")
    mixed = [file for file in section.files if 0 < file.num_crlf < file.num_lines - 1]
    if not marked and not mixed:
        return passed("LF or CR LF, without a mark")
    lines = tuple(f"{file.path}: {file.num_crlf} of {file.num_lines} lines end in CR LF" for file in mixed)
    words = [listed(marked).partition(": ")[2]] if marked else []
    words += ["line ends of two kinds"] if mixed else []
    return info(" and ".join(words), details=(*places(marked), *lines), evidence=proof(marked))


@check("DAT008", "No text has NUL or half characters", needs=("data",), playbook="data-characters",
       problem="Some text has NUL or half characters")  # fmt: skip
def broken_characters(facts: Facts) -> Verdict:
    r"""Looks for U+0000 and for halves of surrogate pairs (`\ud83d` alone) in every string.

    What it does:
        Looks at keys and values of every row, escaped ones too.

    Why it matters:
        A half pair cannot be written as UTF-8: tokenizers and loggers raise when they meet it. NUL ends strings in
        native code. rltrain refuses both, naming the place.
    """
    section = data(facts)
    troubles = found(section, "nul", "half_pair")
    if not troubles:
        return passed("none in any string")
    return verdict(fail if section.asked.framework == "rltrain" else warn, section, troubles, "whole characters")


@check("DAT009", "No text has control or replacement characters", needs=("data",), playbook="data-characters",
       problem="Some text has control or replacement characters")  # fmt: skip
def odd_characters(facts: Facts) -> Verdict:
    """Looks for control characters and for U+FFFD in every string.

    What it does:
        Tab, line feed and carriage return are usual; all other control characters, DEL and U+FFFD are reported. In
        lines of JSON each of them, tabs too, must be escaped; this fails where the framework's loader refuses the file.

    Why it matters:
        U+FFFD is found where something could not be decoded: the text was damaged before it got here. Control
        characters come from terminals and scraping, and each becomes a token of its own. One that is not escaped is no
        JSON: `Invalid control character at`, or pyarrow's `Invalid encoding in string`, ends the loading of the whole
        file.
    """
    section = data(facts)
    damaged, control = found(section, "replaced"), found(section, "control_raw", "control")
    if section.trouble("control_raw").count and section.asked.framework != "rltrain":  # which reads them
        return verdict(stops(section), section, (*control, *damaged), "control characters written as \\u00XX")
    if damaged:
        return verdict(warn, section, (*damaged, *control), "text as it was written")
    if control:
        return info(listed(control), details=places(control), evidence=proof(control))
    return passed("none in any string")


@check("DAT010", "Numbers in the data are finite", needs=("data",), playbook="data-characters",
       problem="Some numbers in the data are not finite")  # fmt: skip
def finite(facts: Facts) -> Verdict:
    """Looks for NaN and infinity.

    What it does:
        Reports the place of every such number; those in extra_info and in the ground truth reach the reward.

    Why it matters:
        A reward that computes with NaN gives NaN, and one of them makes the whole batch's advantages NaN. JSON does not
        know these words at all: strict readers refuse the line.
    """
    section = data(facts)
    used, other = found(section, "not_finite_used"), found(section, "not_finite")
    if used and section.asked.framework == "rltrain":
        return verdict(fail, section, (*used, *other), "finite numbers")
    if used or other:
        return verdict(warn, section, (*used, *other), "finite numbers")
    return passed("all of them")


@check("DAT011", "Every row has the same columns, of one type each", needs=("data",), playbook="data-columns",
       problem="Rows differ in their columns or types")  # fmt: skip
def columns(facts: Facts) -> Verdict:
    """Counts the types of each column, of nested ones too.

    What it does:
        Reports columns whose values are of several kinds (text here, a number there; null does not count, nor whole
        numbers among others) and columns that some rows do not have. extra_info may hold what it likes: what differs
        below it is shown in the table alone.

    Why it matters:
        Arrow, which most loaders are built on, gives a column one type: a ground truth that is text in most rows and a
        number in some stops the load, or comes back as something else.
    """
    section = data(facts)
    lines: list[str] = []
    for file in section.files:
        for column in file.columns:
            if column.name.startswith("extra_info.") or column.name == "…":
                continue
            kinds = {"number" if kind in ("integer", "not finite") else kind for kind in column.kinds} - {"null"}
            if len(kinds) > 1:
                counts = ", ".join(f"{kind} {count}" for kind, count in column.kinds.items())
                where = next((spot.place for kind, spot in column.odd.items() if kind not in ("null", "missing")), "")
                lines.append(f"{where or file.path}: column {column.name}: {counts}")
            elif column.missing:
                spot = column.odd.get("missing")
                lines.append(f"{spot.place if spot else file.path}: column {column.name}: missing in {column.missing} "
                             f"of {file.num_rows} rows")  # fmt: skip
    if not lines:
        return passed("the same in every row")
    return warn(
        "the same columns in every row, of one type each",
        f"{len(lines)} column{'' if len(lines) == 1 else 's'} that differ",
        details=tuple(lines[:20]),
        evidence=(evidence("data.files", lines[0]),),
        params={"file": section.files[0].path},
    )
