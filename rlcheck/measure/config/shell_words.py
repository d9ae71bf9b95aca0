"""Words of a shell script: quotes, continuation lines, comments, arrays, and variables in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rlcheck.measure.config.shell_sums import total

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!]")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_BRACED = re.compile(r"([A-Za-z_]\w*|[0-9@*])(\[[@*]\])?(?:(:?[-=?+])(.*)|(,,?|\^\^?))?", re.DOTALL)
# What is typed behind the script.
_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*](?::\d+)?\})")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_SEPARATORS = ("&&", "||", ";;", ";", "|", "&", "\n", "(", ")")
# Words that open or continue a block: what follows is a statement of its own.
_OPENS, _CLOSES = ("if", "while", "until", "for", "case"), ("fi", "done", "esac")
_KEYWORDS = (
    "if",
    "then",
    "else",
    "elif",
    "fi",
    "do",
    "done",
    "while",
    "until",
    "for",
    "case",
    "esac",
    "time",
    "{",
    "}",
    "!",
)


@dataclass(frozen=True)
class Part:
    """A piece of a word, quotes removed. `kind`: plain, double (variables in it are replaced), single (as it is)."""

    kind: str
    text: str


@dataclass(frozen=True)
class Word:
    """One word. An array `NAME=( … )` is a word with `items`."""

    parts: tuple[Part, ...]
    name: str = ""
    items: tuple[Word, ...] | None = None
    appends: bool = False

    @property
    def text(self) -> str:
        """Without its quotes, variables as written."""
        return "".join(part.text for part in self.parts)

    def behind(self, count: int) -> Word:
        """The word without its first COUNT characters."""
        kept: list[Part] = []
        for part in self.parts:
            cut = min(count, len(part.text))
            count -= cut
            kept.append(replace(part, text=part.text[cut:]))
        return Word(tuple(kept))


def statements(text: str) -> Iterator[tuple[list[Word], bool]]:
    """The simple commands of a script: words, and whether they lie in a block that runs only on a condition."""
    reader = _Reader(text.replace("\r\n", "\n").replace("\\\n", " "))
    depth = 0
    while not reader.done():
        words = reader.statement()
        while words and words[0].text in _KEYWORDS:
            depth += (words[0].text in _OPENS) - (words[0].text in _CLOSES)
            words = words[1:]
        if words:
            yield words, depth > 0


@dataclass
class _Reader:
    text: str
    at: int = 0

    def done(self) -> bool:
        return self.at >= len(self.text)

    def statement(self) -> list[Word]:
        """Words up to the next separator, which is passed."""
        words: list[Word] = []
        while not self.done():
            self._blank()
            if self._comment():
                continue
            separator = next((sign for sign in _SEPARATORS if self.text.startswith(sign, self.at)), None)
            if separator is not None:
                self.at += len(separator)
                if words:
                    return words
                continue
            heredoc = _HEREDOC.match(self.text, self.at)
            if heredoc is not None and not self.text.startswith("<<<", self.at):
                self._skip_heredoc(heredoc)
                continue
            if self.done():
                break
            words.append(self._word())
        return words

    def _blank(self) -> None:
        while not self.done() and self.text[self.at] in " \t":
            self.at += 1

    def _comment(self) -> bool:
        if self.done() or self.text[self.at] != "#":
            return False
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end
        return True

    def _skip_heredoc(self, matched: re.Match[str]) -> None:
        """Pass over the text of a here-document."""
        self.at = matched.end()
        line = self.text.find("\n", self.at)
        end = re.compile(rf"^\s*{matched[1]}\s*$", re.MULTILINE).search(self.text, line if line >= 0 else self.at)
        rest = self.text[self.at : line] if line >= 0 else ""
        self.text = rest + "\n" + self.text[end.end() if end is not None else len(self.text) :]
        self.at = 0

    def _word(self) -> Word:
        array = _ARRAY.match(self.text, self.at)
        if array is not None:
            self.at = array.end()
            return Word((), array[1], tuple(self._items()), bool(array[2]))
        parts: list[Part] = []
        while not self.done():
            sign = self.text[self.at]
            if sign in " \t\n" or (sign in ";|&()" and not (sign == "&" and self._redirects())):
                break
            parts.append(self._part(sign))
        return Word(tuple(parts))

    def _redirects(self) -> bool:
        return self.text[self.at - 1 : self.at] == ">" or self.text[self.at + 1 : self.at + 2] == ">"

    def _items(self) -> Iterator[Word]:
        while not self.done():
            while not self.done() and self.text[self.at] in " \t\n":
                self.at += 1
            if self._comment():
                continue
            if self.done() or self.text[self.at] == ")":
                self.at += 1
                return
            before = self.at
            yield self._word()
            self.at += self.at == before  # a sign that begins no word

    def _part(self, sign: str) -> Part:
        if sign == "'":
            return self._until_quote()
        if sign == '"':
            return self._double()
        start = self.at
        if sign == "\\":
            self.at += 2
            return Part("single", self.text[start + 1 : self.at])
        while not self.done() and self.text[self.at] not in " \t\n;|&()'\"\\":
            if self.text.startswith(("${", "$("), self.at):
                self.at = _closing(self.text, self.at + 1)
            elif self.text[self.at] == "`":
                self.at = _behind_tick(self.text, self.at)
            else:
                self.at += 1
        if self.at == start:
            self.at += 1
        return Part("plain", self.text[start : self.at])

    def _until_quote(self) -> Part:
        end = self.text.find("'", self.at + 1)
        end = len(self.text) if end < 0 else end
        part = Part("single", self.text[self.at + 1 : end])
        self.at = end + 1
        return part

    def _double(self) -> Part:
        self.at += 1
        found: list[str] = []
        while not self.done() and self.text[self.at] != '"':
            if self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                found.append(self.text[self.at + 1])
                self.at += 2
            elif self.text.startswith(("${", "$("), self.at):
                end = _closing(self.text, self.at + 1)
                found.append(self.text[self.at : end])
                self.at = end
            else:
                found.append(self.text[self.at])
                self.at += 1
        self.at += 1
        return Part("double", "".join(found))


def _behind_tick(text: str, opened: int) -> int:
    """Behind the backtick that closes the one at OPENED."""
    end = text.find("`", opened + 1)
    return len(text) if end < 0 else end + 1


def _closing(text: str, opened: int) -> int:
    """Behind the bracket that closes the one at OPENED."""
    pair = {"{": "}", "(": ")"}[text[opened]]
    depth, at = 0, opened
    while at < len(text):
        depth += {text[opened]: 1, pair: -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            break
    return at


def expand(
    word: Word, values: dict[str, str], arrays: Mapping[str, list[str]], *, split: bool = True
) -> tuple[list[str], list[str]]:
    """WORD with variables replaced: the words that come of it, and names that nothing is known of.

    `$HOME`, `$USER` and `$PWD` are those of this machine; `$@` is what is typed behind the script: nothing here.
    """
    unknown: list[str] = []
    alone = word.text
    matched = re.fullmatch(r"\$\{([A-Za-z_]\w*)\[[@*]\](?:[^}]*)\}", alone)
    if matched is not None and len([part for part in word.parts if part.text]) == 1:
        if matched[1] in arrays:
            return list(arrays[matched[1]]), []
        return ([values[matched[1]]], []) if matched[1] in values else ([], [f"{matched[1]}[@]"])
    pieces = [
        (part.kind, part.text if part.kind == "single" else _replaced(part.text, values, arrays, unknown))
        for part in word.parts
    ]
    text = "".join(piece for _, piece in pieces)
    if _ARGUMENTS.fullmatch(alone):
        return [], []
    bare = all(part.kind == "plain" for part in word.parts)
    if split and bare and word.parts and "$" in alone and "$(" not in text and any(sign in text for sign in " \t\n"):
        return text.split(), unknown
    if split and bare and not text and "$" in alone:
        return [], unknown
    return [text], unknown


def _replaced(text: str, values: dict[str, str], arrays: Mapping[str, list[str]], unknown: list[str]) -> str:
    found: list[str] = []
    at = 0
    while at < len(text):
        if text.startswith("${", at):
            end = _closing(text, at + 1)
            found.append(_braced(text[at + 2 : end - 1], text[at:end], values, arrays, unknown))
            at = end
        elif text.startswith("$(", at):
            end = _closing(text, at + 1)
            found.append(_computed(text[at:end], values, arrays, unknown))
            at = end
        elif text[at] == "`":
            end = _behind_tick(text, at)
            unknown.append(text[at:end])
            found.append(_disarmed(text[at:end]))
            at = end
        elif text[at] == "$" and (name := _NAME.match(text, at + 1)) is not None:
            found.append(_value(name[0], values, unknown))
            at = name.end()
        else:
            found.append(text[at])
            at += 1
    return "".join(found)


def _braced(inner: str, whole: str, values: dict[str, str], arrays: Mapping[str, list[str]], unknown: list[str]) -> str:
    matched = _BRACED.fullmatch(inner)
    if matched is None:
        # `${a.b}` is an interpolation of the config itself.
        if re.fullmatch(r"[\w.]+(?::.*)?", inner, re.DOTALL):
            return whole
        unknown.append(whole.lstrip("$"))
        return _disarmed(whole)
    name, _, operator, default, case = matched.groups()
    if case and name in values:
        return _cased(values[name], case)
    if name in arrays and matched[2]:
        return " ".join(arrays[name])
    is_set = name in values or name in _SHELLS_OWN
    if operator in (":-", "-", ":=", "="):
        if values.get(name) or name in _SHELLS_OWN:
            return _value(name, values, unknown)
        chosen = _replaced(_unquoted(default), values, arrays, unknown)
        if operator.endswith("="):
            values[name] = chosen
        return chosen
    if operator in (":+", "+"):
        return _replaced(_unquoted(default), values, arrays, unknown) if is_set else ""
    return _value(name, values, unknown)


def _cased(text: str, sign: str) -> str:
    """`${NAME,,}` and its like: `,` small, `^` capital; one sign for the first letter, two for all."""
    changed = text.lower() if sign[0] == "," else text.upper()
    return changed if len(sign) > 1 else changed[:1] + text[1:]


def _disarmed(text: str) -> str:
    """What is left to the shell, without the brackets that would make an interpolation of the config of it."""
    return text.replace("${", "$").replace("}", "")


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _computed(whole: str, values: dict[str, str], arrays: Mapping[str, list[str]], unknown: list[str]) -> str:
    """`$((a * 2))` of numbers that are known, names of files; the output of another command is not."""
    inner = whole[3:-2] if whole.startswith("$((") and whole.endswith("))") else None
    if inner is None:
        named = _file_name(whole[2:-1], values, arrays)
        if named is None:
            unknown.append(whole.lstrip("$"))
        return _disarmed(whole) if named is None else named
    named = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: values.get(name[1], name[0]), inner)
    text = _replaced(named, values, arrays, unknown)
    found = total(text)
    if found is None:
        unknown.append(whole.lstrip("$"))
        return _disarmed(whole)
    return str(found)


def _file_name(command: str, values: dict[str, str], arrays: Mapping[str, list[str]]) -> str | None:
    """The output of `pwd`, `basename NAME [END]` and `dirname NAME`; None for any other command."""
    reader, words, unknown = _Reader(command), list[str](), list[str]()
    for word in reader.statement():
        found, lacking = expand(word, values, arrays)
        words += found
        unknown += lacking
    if unknown or not words or not reader.done():
        return None
    if words == ["pwd"]:
        return os.getcwd()
    name = words[1].rstrip("/") if len(words) > 1 else ""
    if words[0] == "dirname" and len(words) == 2:
        return os.path.dirname(name) or "."
    if words[0] == "basename" and len(words) in (2, 3):
        return os.path.basename(name).removesuffix(words[2] if len(words) == 3 else "")
    return None


_SHELLS_OWN = ("HOME", "USER", "PWD")


def _value(name: str, values: dict[str, str], unknown: list[str]) -> str:
    if name in values:
        return values[name]
    if name in _SHELLS_OWN:
        own = {"HOME": os.path.expanduser("~"), "USER": os.environ.get("USER", "$USER"), "PWD": os.getcwd()}
        return own[name]
    if name in ("@", "*"):
        return ""
    unknown.append(name)
    return f"${name}"  # without braces: those would be an interpolation of the config
