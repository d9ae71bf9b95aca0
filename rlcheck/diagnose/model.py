"""What goes into a diagnosis and what comes out of it."""

from __future__ import annotations

from typing import Literal

from rlcheck.facts.base import Struct
from rlcheck.facts.hang import Hang
from rlcheck.finding import Action, Fix
from rlcheck.playbook import Source, Verify

Confidence = Literal["high", "medium", "low"]
Status = Literal["fail", "warn", "info"]


class LogLine(Struct, frozen=True):
    """A line of a log as it is there: `number` from 1, `text` without line break and terminal colours.

    A progress bar that redraws itself with carriage returns, and a line of more than `MAX_LINE` characters, become
    several of these with one number.
    """

    number: int
    text: str


class CondensedLog(Struct, frozen=True):
    """A log, or of a long one the lines that may matter with their surroundings, in order.

    `name` is how the user called it (`-` for standard input); `total_lines` and `total_bytes` are the whole log's.
    `whole` says whether nothing was left out. `problem` is why it could not be read to its end, in words.
    """

    name: str
    lines: tuple[LogLine, ...]
    total_lines: int = 0
    total_bytes: int = 0
    whole: bool = True
    problem: str = ""


MAX_LINE = 4096


class Quote(Struct, frozen=True, omit_defaults=False):
    """Lines of a log that show something: who wrote them, where they stand."""

    file: str
    line: int
    text: tuple[str, ...]
    rank: str = ""
    node: str = ""
    pid: str = ""
    time: str = ""


class Confirmation(Struct, frozen=True, omit_defaults=False):
    """What a check of the playbook says of the facts at hand: `confirmed`, `ruled out`, or `open` with the reason."""

    check: str
    verdict: Literal["confirmed", "ruled out", "open"]
    message: str
    node: str = ""


SettingKind = Literal["config key", "constructor argument", "argument", "environment variable", "limit"]


class Setting(Struct, frozen=True, omit_defaults=False):
    """A setting that decides whether an error is raised. `owner` is the config, class or function that takes it.

    `value` is "" where neither the log (`origin`) nor the run's config nor the source shows it. `about` is what the
    library's own documentation says of it, a sentence. `decides`: it is in the innermost condition.
    """

    name: str
    kind: SettingKind
    value: str = ""
    origin: Literal["", "log", "config", "source"] = ""
    owner: str = ""
    about: str = ""
    decides: bool = False


class Site(Struct, frozen=True, omit_defaults=False):
    """Where the source of a package raises an error.

    `file` is the path from site-packages on, `line` that of the statement here. `exact`: the log names the same line.
    `conditions` lead to it, the innermost last, as source text.

    Where the package is not installed here, the record of releases says it: `releases` are the first and the last one
    that it has seen to raise this, `version` is the log's, "" if that does not say it, and `outside` if it is older or
    newer than these; `line` is 0 then.
    """

    package: str
    version: str
    file: str
    line: int
    function: str
    exact: bool
    conditions: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    releases: tuple[str, ...] = ()
    outside: bool = False


class Diagnosis(Struct, frozen=True, omit_defaults=False):
    """One problem that the logs show. `evidence` is all that is quoted from them.

    `incident` counts from 1; problems of one incident share it, its root cause stands first. `consequences` are the
    titles of what followed from it, `seen` says how often and on how many ranks it shows. `basis` is what knows it: a
    playbook, or the source that raised it (`site`, where it is a file of a package), or a table of the doctor.
    `grounds` is what the playbook rests on: a source, or general knowledge.
    """

    id: str
    title: str
    status: Status
    cause: str
    confidence: Confidence
    verify: tuple[Verify, ...] = ()
    fixes: tuple[Fix, ...] = ()
    sources: tuple[Source, ...] = ()
    evidence: tuple[Quote, ...] = ()
    incident: int = 1
    echo: bool = False
    consequences: tuple[str, ...] = ()
    seen: str = ""
    confirmations: tuple[Confirmation, ...] = ()
    basis: Literal["playbook", "source"] = "playbook"
    grounds: Literal["sourced", "general"] = "sourced"
    site: Site | None = None
    next: Action = "fix"


class Raised(Struct, frozen=True, omit_defaults=False):
    """Where an exception was raised, as the log says. `package` is "" in the user's own code."""

    file: str
    line: int
    function: str
    type: str
    message: str = ""
    package: str = ""


class Unknown(Struct, frozen=True, omit_defaults=False):
    """A failure that no playbook knows: where it shows first, and what to collect to learn more.

    `raised` is None where the log has no traceback of it.
    """

    evidence: tuple[Quote, ...]
    hints: tuple[str, ...] = ()
    raised: Raised | None = None


class Answer(Struct, frozen=True, omit_defaults=False):
    """What the logs say: the diagnoses, best first, or the first failure that nobody knows, or neither (healthy).

    `remarks` are lines that look like trouble and are none, and beside an unknown failure what was warned of. `notes`
    concern the reading itself. `hang` is what dumps of the ranks say of a job that stands still.
    """

    diagnoses: tuple[Diagnosis, ...] = ()
    unknown: Unknown | None = None
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    files: int = 0
    lines: int = 0
    bytes: int = 0
    dumps: int = 0
    hang: Hang | None = None

    @property
    def failed(self) -> bool:
        """Whether the logs show an error, known or not, or the dumps a job that stands still."""
        return (
            self.hang is not None or self.unknown is not None or any(found.status == "fail" for found in self.diagnoses)
        )
