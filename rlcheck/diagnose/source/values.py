"""The value that a run has for a setting: from its config, or from what its log prints of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from rlcheck.diagnose.lines import Message
from rlcheck.diagnose.model import Setting

_END = r"""(?=[,;)}\]]|\s*\\?$| +(?:-|[|>&;]|\d>)|,? +['"]?[\w.+]+['"]?[=:])"""
_VALUE = rf"""('[^'\n]{{0,80}}'|"[^"\n]{{0,80}}"|[\w./:+-]{{1,80}}){_END}"""
_LISTS = re.compile(
    r"""(?:^|[\s(])[\w-]{0,40}(?:[Aa]rg(?:ument)?s?|[Cc]onfig(?:uration)?|[Ss]ettings|[Pp]arameters|[Oo]ptions|Namespace)"""
    r"""(?: ?[:=] ?\w{0,40})?[ :=({]{1,4}['"]?[\w.]{1,80}['"]? ?[=:]|^\{['"]\w{1,80}['"] ?:"""
    r"|^(?:[+$>#] |(?:\w+ )?[Cc](?:ommand|md)\w*: ?)?(?:env |nohup |[A-Z_]+=\S+ )*(?:\S*/)?"
    r"(?:python[\d.]*|vllm|torchrun|accelerate|deepspeed|srun|mpirun|ray|bash|rltrain|sglang|trl|swift|uv) "
)
"""What begins a list of the settings of a run in a line: a dump of its configuration, or its command line."""
_ADVISES = re.compile(
    r"(?i)\b(?:try|should|must|instead|example|(?<!non-)default|consider|increase|lower|reduce|set)\b"
)


def with_value(one: Setting, log: Sequence[Message], config: Mapping[str, str]) -> Setting:
    """ONE with the value that the run's config, or what the log prints of it, has for it."""
    if one.value or one.kind in ("limit", "argument"):
        return one
    values = {value for key, value in config.items() if key.rpartition(".")[2] == one.name}
    if len(values) == 1:
        return msgspec.structs.replace(one, value=values.pop(), origin="config")
    values = set(_printed(one.name, log)) if "_" in one.name else set[str]()
    return msgspec.structs.replace(one, value=values.pop(), origin="log") if len(values) == 1 else one


def _printed(name: str, log: Sequence[Message]) -> Iterator[str]:
    """The values that LOG prints for a setting in dumps of a configuration and in command lines, nowhere else."""
    dashed = name.replace("_", "-")
    form = re.compile(
        rf"""(?<![\w.-])(?:{re.escape(name)}['"]?\s*[=:]\s*|--{re.escape(dashed)}(?:=| (?=[\d'"]))){_VALUE}"""
    )
    for message in log:
        if name not in message.text and dashed not in message.text:
            continue
        above = log[message.at - 1].text if message.at else ""
        if message.text[:1].isspace() or 'File "' in above or 'File "' in message.text:
            continue
        if not _LISTS.search(message.text) or _ADVISES.search(message.text):
            continue
        yield from (found[1].strip("'\"") for found in form.finditer(message.text))
