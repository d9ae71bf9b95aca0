"""Errors that no playbook knows, explained by the source that raised them: planted packages, many shapes of raises."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from rlcheck.diagnose.model import Answer
from rlcheck.diagnose.source.installed import Environment, environment
from rlcheck.diagnose.source.sites import Source
from rlcheck.report.diagnosis.report import make_report
from tests.diagnose.answers import FORMATS, shown
from tests.diagnose.planted import OWN, THERE, asked, frame, plant, site_of, traceback


class Shape(NamedTuple):
    """A raise, its log line, and what is to be said of it: the innermost condition, and name → kind, value."""

    code: str
    function: str
    raised: str
    condition: str
    settings: dict[str, tuple[str, str]]


HEADS = Shape(
    '''
class ModelConfig:
    """A model.

    Args:
        num_heads (int): Number of attention heads. More follows.
    """
    def __init__(self, num_heads):
        self.num_heads = num_heads

    def verify(self, parallel_config):
        size = parallel_config.tensor_parallel_size
        if self.num_heads % size != 0:
            raise ValueError(  # here
                f"Number of heads ({self.num_heads}) must be divisible"
                " by tensor parallel size "
                f"({size})."
            )
''',
    "verify",
    "ValueError: Number of heads (14) must be divisible by tensor parallel size (4).",
    "self.num_heads % size != 0",
    {"num_heads": ("constructor argument", "14"), "tensor_parallel_size": ("config key", "4")},
)
SHAPES = {
    "f-string": HEADS,
    "percent": Shape(
        "def load(path, mode):\n    if mode not in ('r', 'w'):\n"
        "        message = 'mode %s of %r is not known' % (mode, path)\n"
        "        raise ValueError(message)  # here\n",
        "load", "ValueError: mode x of '/data' is not known", "mode not in ('r', 'w')",
        {"mode": ("argument", "x"), "path": ("argument", "'/data'")},
    ),
    "format": Shape(
        "LIMIT = 64\nTEXT = 'at most {most} workers are allowed, not {}'\ndef start(cfg):\n"
        "    if cfg['num_workers'] > LIMIT:\n"
        "        raise RuntimeError(TEXT.format(cfg['num_workers'], most=LIMIT))  # here\n",
        "start", "RuntimeError: at most 64 workers are allowed, not 65", "cfg['num_workers'] > LIMIT",
        {"num_workers": ("config key", "65"), "LIMIT": ("limit", "64")},
    ),
    "assert": Shape(
        "def step(batch_size, parts):\n    assert batch_size % parts == 0, f'{batch_size=} is not whole'  # here\n",
        "step", "AssertionError: batch_size=5 is not whole", "not (batch_size % parts == 0)",
        {"batch_size": ("argument", "5"), "parts": ("argument", "")},
    ),
    "elif": Shape(
        "def pick(args):\n    if args.kind == 'a':\n        return 1\n    elif args.kind == 'b':\n        return 2\n"
        "    else:\n"
        "        raise NotImplementedError('the kind {} is not there'.format(args.kind))  # here\n",
        "pick", "NotImplementedError: the kind c is not there", "not (args.kind == 'b')", {"kind": ("config key", "c")},
    ),
    "except": Shape(
        "def load(name):\n    try:\n        import acme_kernels\n    except ImportError as why:\n"
        "        raise ImportError('the kernels of acme are needed: ' + str(why)) from why  # here\n",
        "load", "ImportError: the kernels of acme are needed: No module named 'acme_kernels'", "except ImportError", {},
    ),
    "early return": Shape(
        "import os\ndef home(self):\n    if os.environ.get('ACME_HOME'):\n        return 1\n"
        "    raise OSError('ACME_HOME is not set at all')  # here\n",
        "home", "OSError: ACME_HOME is not set at all", "not (os.environ.get('ACME_HOME'))",
        {"ACME_HOME": ("environment variable", "")},
    ),
    "in steps": Shape(
        "from acme import envs\ndef go(options):\n    why = f'port {options.port} is taken'\n    if envs.ACME_PORT:\n"
        "        why += '; ACME_PORT says so'\n        raise ConnectionError(why)  # here\n",
        "go", "ConnectionError: port 80 is taken; ACME_PORT says so", "envs.ACME_PORT",
        {"ACME_PORT": ("environment variable", "")},
    ),
    "several lines": Shape(
        "from textwrap import dedent\ndef go(n):\n    while n > 3:\n        raise ValueError(dedent('''\n"
        "            Too many of them:\n              take fewer\n        '''))  # here\n",
        "go", "ValueError: \nToo many of them:\n  take fewer\n", "n > 3", {"n": ("argument", "")},
    ),
    "key error": Shape(
        "def get(name):\n    if name:\n        raise KeyError(f\"no 'thing' of the name {name} was found\")  # here\n",
        "get", "KeyError: \"no 'thing' of the name x was found\"", "name", {"name": ("argument", "x")},
    ),
    "a field": Shape(
        "class EngineArgs:\n    seats: int = 4\n    '''Seats of the engine. Not more.'''\n    def check(self):\n"
        "        if getattr(self, 'seats') < 2:\n"
        "            raise ValueError(f'too few seats: {self.seats}')  # here\n",
        "check", "ValueError: too few seats: 1", "getattr(self, 'seats') < 2",
        {"seats": ("config key", "1")},
    ),
}  # fmt: skip


def log_of(shape: Shape, shift: int = 0, before: str = "") -> str:
    return traceback(frame(shape.code, shape.function, shift=shift), shape.raised, before)


@pytest.mark.parametrize("shift", [0, 37], ids=["same version", "other version"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_raise_is_found_with_its_condition_and_settings(tmp_path: Path, name: str, shift: int) -> None:
    shape = SHAPES[name]
    answer = asked(plant(tmp_path, shape.code), log_of(shape, shift))
    site = site_of(answer)
    lines = shape.code.split("\n")
    first = next(at for at, line in enumerate(lines, 1) if "raise" in line or "assert" in line)
    assert (site.package, site.version, site.file, site.line) == ("acme", "1.2.4", "acme/engine.py", first)
    assert site.conditions[-1] == shape.condition
    said = {one.name: (one.kind, one.value) for one in site.settings if one.kind != "limit" or one.name == "LIMIT"}
    assert said == shape.settings
    assert site.exact is (shift == 0)
    assert answer.diagnoses[0].confidence == ("medium" if site.exact else "low")


def test_the_report_names_source_version_and_line(tmp_path: Path) -> None:
    where = plant(tmp_path, HEADS.code)
    text = " ".join(shown(make_report(asked(where, log_of(HEADS))), "text").split())
    assert "From the source of acme 1.2.4, acme/engine.py line 14: confidence is medium." in text
    assert '`num_heads`, a constructor argument of ModelConfig, is 14 in the log ("Number of attention heads")' in text
    assert "Change `num_heads` (now 14) or `tensor_parallel_size` (now 4) so that" in text
    assert "rlcheck explain" not in text
    assert "exit code 1: an error that no playbook knows; the source explains it" in text
    moved = " ".join(shown(make_report(asked(where, log_of(HEADS, 37))), "text").split())
    assert "From the source of acme 1.2.4 here, acme/engine.py line 14; the log's line is another" in moved
    for format in FORMATS:
        assert "acme" in shown(make_report(asked(where, log_of(HEADS))), format)


def raised_of(answer: Answer) -> tuple[str, int, str, str, str]:
    """Where an unknown error was raised."""
    assert answer.diagnoses == ()
    assert answer.unknown is not None
    raised = answer.unknown.raised
    assert raised is not None
    return raised.file, raised.line, raised.function, raised.type, raised.package


@pytest.mark.parametrize(
    "raised",
    ["ValueError: quite another message (14) of tensor parallel size (4).", "TypeError" + HEADS.raised[10:],
     "ValueError", HEADS.raised + " And more."],
)  # fmt: skip
def test_what_does_not_fit_is_not_claimed(tmp_path: Path, raised: str) -> None:
    log = traceback(frame(HEADS.code, "verify", shift=3), raised)
    file, line, function, _, package = raised_of(asked(plant(tmp_path, HEADS.code), log))
    assert (file, line, function, package) == (f"{THERE}/acme/engine.py", 17, "verify", "acme")


def test_what_a_class_adds_to_its_message_does_not_hide_the_raise(tmp_path: Path) -> None:
    where = plant(tmp_path, HEADS.code)
    for added, shifts in ((" (parameter=heads, value=14)", (0, 37)), (" And more.", (0,))):
        for shift in shifts:
            shape = HEADS._replace(raised=HEADS.raised + added)
            site = site_of(asked(where, log_of(shape, shift)))
            assert {one.name: one.value for one in site.settings} == {"num_heads": "14", "tensor_parallel_size": "4"}


def test_two_raises_with_one_message_are_not_guessed_between(tmp_path: Path) -> None:
    code = (
        "def go(a, b):\n    if a:\n        raise ValueError('this cannot be done here')\n"
        "    if b:\n        raise ValueError('this cannot be done here')  # here\n"
    )
    log = traceback(frame(code, "go", shift=9), "ValueError: this cannot be done here")
    assert raised_of(asked(plant(tmp_path, code), log))[3] == "ValueError"
    exact = traceback(frame(code, "go"), "ValueError: this cannot be done here")
    assert site_of(asked(plant(tmp_path, code), exact)).conditions == ("b",)


def test_an_exception_of_the_users_own_code_stays_unknown(tmp_path: Path) -> None:
    where = plant(tmp_path, HEADS.code)
    answer = asked(where, traceback("", "KeyError: 'hamster'"))
    assert raised_of(answer) == ("/home/kim/rl/train.py", 9, "main", "KeyError", "")
    report = make_report(answer)
    assert report.exit_code == 1
    assert "raised    KeyError at /home/kim/rl/train.py line 9 in main; your own code" in shown(report, "text")
    # What follows from it in a library is not the cause.
    both = traceback("", "KeyError: 'hamster'") + "\nDuring handling of the above exception, another exception "
    both += f"occurred:\n\n{log_of(HEADS)}"
    assert raised_of(asked(where, both))[3] == "KeyError"


def test_what_python_itself_raises_is_explained_by_the_library_that_called_it(tmp_path: Path) -> None:
    code = "import json\ndef read(text, strict):\n    if strict:\n        return json.loads(text)  # here\n"
    decoder = '  File "/usr/lib/python3.12/json/decoder.py", line 355, in raw_decode\n    raise JSONDecodeError("x")\n'
    raised = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    where = plant(tmp_path, code)
    site = site_of(asked(where, traceback(frame(code, "read") + decoder, raised)))
    assert (site.line, site.conditions) == (4, ("strict",))
    assert raised_of(asked(where, traceback(decoder, raised)))[:2] == ("/home/kim/rl/train.py", 9)
    # Of another version of the library, the line that called is not known.
    assert raised_of(asked(where, traceback(frame(code, "read", shift=1) + decoder, raised)))[4] == "acme"


def test_values_come_from_the_printed_config_and_from_config_only_if_they_agree(tmp_path: Path) -> None:
    code = (
        "def go(engine_args):\n    if engine_args.max_model_len < 9:\n"
        "        raise ValueError('the engine cannot be started so')  # here\n"
    )
    shape = Shape(code, "go", "ValueError: the engine cannot be started so", "", {})
    where = plant(tmp_path, code)

    def value(before: str, config: dict[str, str] | None = None) -> tuple[str, str]:
        given = msgspec.structs.replace(where, config=config or {})
        one = site_of(asked(given, log_of(shape, before=before))).settings[0]
        return one.value, one.origin

    assert value("INFO args: {'max_model_len': 8, 'x': 1}\n") == ("8", "log")
    assert value("+ vllm serve --max-model-len 8 --port 1\n") == ("8", "log")
    assert value("args: max_model_len=8, a\nargs: max_model_len=7, a\n") == ("", "")
    assert value("server_args=ServerArgs(model_path='x', max_model_len=8, tp_size=1)\n") == ("8", "log")
    assert value("+ HF_HOME=/x python3 -m acme.serve --max-model-len 8 2>&1 | tee log\n") == ("8", "log")
    # What is not a dump or a command line may speak of anything.
    for prose in ("KV cache is full (max_model_len=8)", "retrying with max_model_len=8, seats=2", "max_model_len: 8",
                  "Invalid config: max_model_len=8 is too small", "Try these args: max_model_len=8, seats=2",
                  "the example vllm serve --max-model-len 8", "last run had --max-model-len 8"):  # fmt: skip
        assert value(f"{prose}\n") == ("", ""), prose
    # A line of code in a traceback is no value, and a config of the run is.
    quoted = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g(max_model_len=8)\nKeyError: 1\n'
    assert value(f"{quoted}step:1 - loss:1\n") == ("", "")
    assert value("", {"rollout.max_model_len": "6"}) == ("6", "config")


@pytest.mark.parametrize(
    ("body", "goal"),
    [
        (
            "if kind == 'a':\n  return 1\n elif kind == 'b':\n  return 2\n else:\n  R",
            "`kind == 'a'` or `kind == 'b'` is true",
        ),
        ("if kind:\n  if kind == 'b':\n   return 1\n  else:\n   R", "`kind == 'b'` is true"),
        ("if not kind:\n  R", "`not kind` is no longer true"),
        ("assert not kind, M", "`not kind` is true"),
        ("if kind < 0:\n  raise OSError\n if kind == 1:\n  return 1\n R", "`kind == 1` is true"),
        # Nothing is better than what leads to another error, or runs for ever.
        ("if kind < 0:\n  raise OSError\n R", ""),
        ("if kind < 0:\n  raise OSError\n else:\n  R", ""),
        ("if kind:\n  for one in kind:\n   if one: break\n  else:\n   R", ""),
        ("while kind:\n  kind = go()\n else:\n  R", ""),
        ("if kind:\n  try:\n   go()\n  except OSError:\n   pass\n  else:\n   R", ""),
    ],
)
def test_advice_never_turns_into_its_opposite(tmp_path: Path, body: str, goal: str) -> None:
    message = "'the kind is not one of those'"
    body = body.replace("M", f"{message}  # here").replace("R", f"raise ValueError({message})  # here")
    code = f"def pick(kind):\n {body}\n"
    kind = "AssertionError" if "assert" in body else "ValueError"
    answer = asked(plant(tmp_path, code), traceback(frame(code, "pick"), f"{kind}: {message[1:-1]}"))
    assert site_of(answer).exact
    assert [fix.title for fix in answer.diagnoses[0].fixes] == ([f"Change `kind` so that {goal}"] if goal else [])


def test_a_setting_of_no_known_value_is_a_whole_sentence(tmp_path: Path) -> None:
    code = HEADS.code.replace("({self.num_heads}) must", "must")
    shape = HEADS._replace(code=code, raised=HEADS.raised.replace("(14) ", ""))
    told = asked(plant(tmp_path, code), log_of(shape)).diagnoses[0].cause
    assert '`num_heads` is a constructor argument of ModelConfig ("Number of attention heads").' in told


def test_a_file_that_has_moved_is_found_by_its_name(tmp_path: Path) -> None:
    where = plant(tmp_path, HEADS.code, file="acme/v1/engine.py")
    site = site_of(asked(where, log_of(HEADS)))
    assert (site.file, site.exact) == ("acme/v1/engine.py", False)
    checkout = log_of(HEADS).replace(THERE, "/workspace/acme")
    assert site_of(asked(plant(tmp_path / "b", HEADS.code), checkout)).file == "acme/engine.py"


@pytest.mark.parametrize(
    ("line", "name", "words"),
    [
        ("OSError: [Errno 113] No route to host", "EHOSTUNREACH", "no way to the host"),
        ("RuntimeError: worker ended with exit code 137", "137", "SIGKILL"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_BAD_PARAM", "CUDNN_STATUS_BAD_PARAM", "an argument of the call"),
        ("RuntimeError: HIP error: hipErrorIllegalAddress", "hipErrorIllegalAddress", "outside of its memory"),
    ],
)
def test_numbers_without_a_place_in_a_source_are_read_from_a_table(line: str, name: str, words: str) -> None:
    found = asked(Environment(sites=()), line).diagnoses[0]
    assert (found.basis, found.site, found.confidence) == ("source", None, "low")
    assert name in found.cause
    assert "From the table of " in found.cause
    assert words in found.cause


def test_of_a_large_file_only_what_may_be_of_the_function_is_parsed(tmp_path: Path) -> None:
    table = "TABLE = {\n" + "".join(f"    {number}: ({number}, 'x', {{}}),\n" for number in range(12_000)) + "}\n"
    decorated = "import functools\n@functools.cache\ndef other():\n    return 1\nSMALL = 3\n"
    code = decorated + table + HEADS.code
    shape = HEADS._replace(code=code)
    site = site_of(asked(plant(tmp_path, code), log_of(shape)))
    line = next(at for at, line in enumerate(code.split("\n"), 1) if "# here" in line)
    assert (site.exact, site.line, site.conditions[-1]) == (True, line, HEADS.condition)
    assert "TABLE" not in Source(code.encode(), "verify").constants
    assert {"TABLE", "SMALL"} <= set(Source(code.encode(), "gone").constants)
    # A text that looks like code cuts a function in two: then all is parsed.
    torn = decorated + 'def doc():\n    """\nx = 1\n    """\n' + code
    assert site_of(asked(plant(tmp_path, torn), log_of(HEADS._replace(code=torn)))).exact


def test_hostile_files_and_paths_are_never_opened_or_followed(tmp_path: Path) -> None:
    where = plant(tmp_path, HEADS.code)
    site = Path(where.sites[0])
    (tmp_path / "outside.py").write_text(HEADS.code)
    (site / "acme" / "link.py").symlink_to(tmp_path / "outside.py")
    (site / "acme" / "loop.py").symlink_to(site / "acme" / "loop.py")
    os.mkfifo(site / "acme" / "pipe.py")
    (site / "acme" / "huge.py").write_text(HEADS.code + "#" * (2 << 20))
    (site / "acme" / "deep.py").write_text("x = " + "(" * 5000)
    (site / "acme" / "nested.py").write_text("x = " + "-" * 100_000 + "1\n" + HEADS.code)
    (site / "acme" / "binary.py").write_bytes(b"\0\xff\xfe" + HEADS.code.encode())
    (site / "acme" / "new.py").write_text("match x:\n  def\n" + HEADS.code)
    (site / "acme" / "dir.py").mkdir()
    names = [
        "link",
        "loop",
        "pipe",
        "huge",
        "deep",
        "nested",
        "binary",
        "new",
        "dir",
        "gone",
        "x\0y",
        "../../../../outside",
    ]
    for name in [*(f"acme/{name}.py" for name in names), "../../../outside.py", "/outside.py", "acme/./a.py", ""]:
        log = log_of(HEADS).replace("acme/engine.py", name)
        assert asked(where, log).diagnoses == (), name
    for path in (
        f"{tmp_path}/outside.py",
        "<string>",
        "<frozen os>",
        "C:\\x\\engine.py",
        "a" * 399,
        "\udcff/engine.py",
    ):
        assert asked(where, log_of(HEADS).replace(f"{THERE}/acme/engine.py", path)).diagnoses == (), path
    assert site_of(asked(where, log_of(HEADS).replace("/", "\\").replace("n\\a", "n\\a"))).line == 14


def test_the_environment_of_another_python_is_read_and_not_run(tmp_path: Path) -> None:
    where = plant(tmp_path, HEADS.code)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\ntouch ran\n")
    assert environment(str(tmp_path)).sites == environment(str(python)).sites == where.sites
    assert site_of(asked(environment(str(python)), log_of(HEADS))).version == "1.2.4"
    assert OWN in log_of(HEADS)
    assert not list(tmp_path.rglob("ran"))
