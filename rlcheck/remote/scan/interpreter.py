"""What is known of an interpreter from inside: where it lives, what it is built for, how pip is set up for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from . import files
from .metadata import without_credentials

_IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy", "graalpy": "GraalVM"}
_SYSTEM_PREFIXES = ("/usr", "/usr/local")


def search_path(sys_path: list[str]) -> tuple[str, ...]:
    """`sys.path` as any program of this environment has it: without the directory that belongs to this run alone.

    Python puts one entry in front unless told not to: the script's directory, the current one (`-m`) or "" (`-c`, `-`).
    """
    entries = [entry for entry in sys_path if isinstance(entry, str)]
    is_safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if entries and not is_safe and _is_of_this_run(entries[0]):
        entries = entries[1:]
    here = _current_directory()
    return tuple(dict.fromkeys(os.path.join(here, entry) if here else entry for entry in entries))


def _is_of_this_run(entry: str) -> bool:
    script = sys.argv[0] if sys.argv else ""
    own = {"", _current_directory()}
    if os.sep in script:
        own.update({os.path.dirname(script), os.path.dirname(os.path.realpath(script))})
    return entry in own


def _current_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed below our feet
        return ""


def working_directory(environ: Mapping[str, str]) -> str:
    """The directory that `python -m` and a script there put first on the path; "" where that is switched off."""
    return "" if environ.get("PYTHONSAFEPATH") else _current_directory()


def describe(environ: Mapping[str, str], root: str) -> dict[str, Any]:
    """The fields of the facts document that are about the interpreter itself."""
    import site

    return {
        "executable": sys.executable or "",
        "version": "{}.{}.{}".format(*sys.version_info[:3]) + _pre_release(),
        "implementation": sys.implementation.name,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "kind": kind(),
        "externally_managed": sys.prefix == sys.base_prefix and os.path.exists(_stdlib("EXTERNALLY-MANAGED")),
        "platform_tags_libc": libc(root),
        "user_site": site.getusersitepackages() or "",
        "user_site_enabled": bool(site.ENABLE_USER_SITE),
        "pip_config": pip_config(environ, root),
        "marker_environment": marker_environment(),
        "conda_packages": conda_packages(),
    }


def kind() -> str:
    """venv, conda, system (what the distribution or image put into /usr) or user (anybody's own build)."""
    if sys.prefix != sys.base_prefix:
        return "venv"
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):
        return "conda"
    return "system" if sys.prefix in _SYSTEM_PREFIXES else "user"


def _stdlib(name: str) -> str:
    return os.path.join(os.path.dirname(os.__file__), name)


def _pre_release() -> str:
    level = {"alpha": "a", "beta": "b", "candidate": "rc"}.get(sys.version_info.releaselevel, "")
    return f"{level}{sys.version_info.serial}" if level else ""


def libc(root: str) -> str:
    """The C library and its version: "glibc 2.36", "musl", or "" when it is not known."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        name = None
    if name:
        return name.strip()
    machine = os.uname().machine
    return "musl" if os.path.exists(f"{root}/lib/ld-musl-{machine}.so.1") else ""


def marker_environment() -> dict[str, str]:
    """What environment markers (PEP 508) are evaluated in."""
    system = os.uname()
    full = "{}.{}.{}".format(*sys.version_info[:3]) + _pre_release()
    implementation = sys.implementation.version
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": "{}.{}.{}".format(*implementation[:3]),
        "os_name": os.name,
        "platform_machine": system.machine,
        "platform_python_implementation": _IMPLEMENTATIONS.get(sys.implementation.name, sys.implementation.name),
        "platform_release": system.release,
        "platform_system": system.sysname,
        "platform_version": system.version,
        "python_full_version": full,
        "python_version": "{}.{}".format(*sys.version_info[:2]),
        "sys_platform": sys.platform,
    }


def conda_packages() -> dict[str, str]:
    """The packages that conda put into this prefix: `<name>-<version>-<build>.json` each."""
    try:
        names = sorted(os.listdir(os.path.join(sys.prefix, "conda-meta")))
    except OSError:
        return {}
    parts = [name[: -len(".json")].rsplit("-", 2) for name in names if name.endswith(".json")]
    return {part[0]: part[1] for part in parts if len(part) == 3}


def pip_config(environ: Mapping[str, str], root: str) -> tuple[str, ...]:
    """Every setting of pip for this environment, as `source: key = value`; later ones win, credentials are masked."""
    home = environ.get("HOME", "")
    config_home = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    places = [f"{base}/pip/pip.conf" for base in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if base]
    places.append("/etc/pip.conf")
    places += [f"{home}/.pip/pip.conf"] if home else []
    places += [f"{config_home}/pip/pip.conf"] if config_home else []
    lines = []
    chosen = environ.get("PIP_CONFIG_FILE", "")
    for place in [root + place for place in places] + [f"{sys.prefix}/pip.conf", chosen]:
        if place and chosen != os.devnull:
            lines += [f"{place}: {setting}" for setting in _settings(files.text(place, 1 << 16))]
    lines += [f"{name} = {value}" for name, value in sorted(environ.items()) if name.startswith("PIP_")]
    return tuple(without_credentials(line)[:500] for line in lines)


def _settings(text: str) -> list[str]:
    """`section.key = value` of an INI file; a value over several lines is joined."""
    settings: list[str] = []
    section = ""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if stripped[0] == "[" and stripped[-1] == "]":
            section = stripped[1:-1]
        elif line[0].isspace() and settings:
            settings[-1] += f" {stripped}"
        elif "=" in stripped or ":" in stripped:
            cut = min(place for place in (stripped.find("="), stripped.find(":")) if place >= 0)
            settings.append(f"{section}.{stripped[:cut].strip()} = {stripped[cut + 1 :].strip()}")
    return settings
