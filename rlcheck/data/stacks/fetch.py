"""Install packages into the environment of the Python that runs this: with uv, or with pip where uv cannot.

install.sh runs `fetch.py STACK OFFLINE ARGUMENT…`: the stack, whose build of PyTorch may need an index of its own; a
directory that holds every package, or ""; arguments of `pip install`. The stack `build` stands for the project itself.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

STACKS = Path(__file__).resolve().parent
HOME = Path(sys.prefix)
STATE = HOME / ".rlcheck"
PIP = [sys.executable, "-I", "-m", "pip"]
PIP_INSTALL = [*PIP, "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "3"]
# A pip.conf may send packages elsewhere.
UNSET = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")

# What uv has in place of pip's settings, and the settings that it has nothing for.
UV_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
    "constraint": "--constraint",
}
NOT_IN_UV = {"client-cert", "keyring-provider", "no-binary", "no-index", "proxy", "require-hashes"}

DISK_FULL = "No space left on device|Disk quota exceeded"
FAILURES = {
    DISK_FULL: "the disk filled up. Free some space, or put the environment on another disk: --venv DIR.",
    "CERTIFICATE_VERIFY_FAILED|SSLError": "the package registry's TLS certificate is not trusted here. "
    "Give pip your network's: PIP_CERT=FILE.",
    "ProxyError|407 Proxy": "the proxy between here and the package registry refused. "
    "Look at HTTPS_PROXY and NO_PROXY.",
    "40[13] Client Error": "the package registry refused access. "
    "Look at the credentials in pip's configuration (pip config list).",
}
UNREACHABLE = r"Retrying \(|ConnectionError|ConnectTimeout|ReadTimeout|name resolution"


class Failed(Exception):
    """An installation failed; the text is its log."""


def main() -> None:
    """Install, or end with the reason in one line."""
    stack, offline, *arguments = sys.argv[1:]
    found = re.search(r"^#: index (\S+) (\S+)$", (STACKS / f"{stack}.txt").read_text(encoding="utf-8"), re.MULTILINE)
    build, index = found.groups() if found and not offline else ("", "")
    try:
        install(arguments, offline, build, index)
    except Failed as failure:
        log = str(failure)
        # Everything is fetched before anything is changed: what was complete still is.
        if (STATE / "base.txt").exists() and not re.search("^(Installing collected|Prepared) ", log, re.MULTILINE):
            (STATE / "state").write_text("ready\n", encoding="utf-8")
        last = [line for line in log.splitlines() if line.lower().startswith("error")] or log.splitlines()[-1:]
        words = "".join(f"  {line[:150]}\n" for line in last[-3:])
        sys.exit(f"{words}install.sh: {explain(log, offline, build, index)} (log: {STATE / 'install.log'})")
    except KeyboardInterrupt:
        sys.exit(130)


def install(arguments: list[str], offline: str, build: str, index: str) -> None:
    """Install with uv, which pip brings, and with pip alone once uv has failed."""
    sources = ["--no-deps", *(["--no-index", "--find-links", offline] if offline else [])]
    uv_log = STATE / "uv.log"
    if not uv_log.exists():
        try:
            if not (HOME / "bin" / "uv").exists():
                run([*PIP_INSTALL, *sources, "--only-binary", ":all:", "--constraint", "build.txt", "uv"])
            return fetch([*uv_install(offline), *sources, *arguments], build, index)
        except Failed as failure:
            if re.search(DISK_FULL, str(failure)):
                raise
            uv_log.write_text(str(failure), encoding="utf-8")
            say(f"Note: uv does not install here (log: {uv_log}). pip does, which takes some minutes longer.")
    return fetch([*PIP_INSTALL, *sources, *arguments], build, index)


def fetch(command: list[str], build: str, index: str) -> None:
    """Install from the user's own package sources, and from a build's own index only after they have failed."""
    try:
        run(command)
    except Failed as failure:
        missing = (f"No matching distribution found for {build}", f"you require {build}")
        if not build or not any(words in str(failure) for words in missing):
            raise
        say(f"{build} is in none of the configured package sources: trying {index}")
        run([*command, "--extra-index-url", index])


def uv_install(offline: str) -> list[str]:
    """Return uv's command with the package sources that pip is configured for."""
    command = [str(HOME / "bin" / "uv"), "pip", "install", "--python", sys.executable]
    config = {} if offline else pip_config()
    if refused := sorted(NOT_IN_UV & config.keys()):
        raise Failed(f"pip is configured with {', '.join(refused)}, which uv does not have")
    if "cert" in config:
        os.environ["SSL_CERT_FILE"] = config["cert"]
    words = [
        word
        for name, option in UV_OPTIONS.items()
        for value in config.get(name, "").split()
        for word in (option, value)
    ]
    return [*command, "--index-strategy", "unsafe-best-match", *words]  # as for pip, all sources are equal


def pip_config() -> dict[str, str]:
    """Return pip's settings for an installation; what is set later in this order counts."""
    listed = subprocess.run(
        [*PIP, "config", "list"], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.splitlines()
    config: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in listed:
            name, _, value = line.removeprefix(section).partition("=")
            if line.startswith(section):
                config[name] = ast.literal_eval(value)
    return config


def run(command: list[str]) -> None:
    """Run one installation, its words into the log; raise `Failed` with them."""
    scratch = STATE / "tmp"  # wheels are unpacked beside the environment: /tmp is often small, or memory
    scratch.mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if name not in UNSET}
    environ |= {"TMPDIR": str(scratch), "PIP_NO_CACHE_DIR": "1"}
    if "UV_CACHE_DIR" not in environ:
        environ["UV_NO_CACHE"] = "1"
    # Pins of the build back-end; pip before 25.3 reads the first name. Relative, as the values are split at blanks.
    if sys.argv[1] == "build":
        environ |= dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_BUILD_CONSTRAINT"), "build.txt")
    log = STATE / "install.log"
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(command, cwd=STACKS, env=environ, stdout=out, stderr=out, check=False)
    shutil.rmtree(scratch, ignore_errors=True)
    if done.returncode:
        raise Failed(log.read_text(encoding="utf-8", errors="replace"))


def explain(log: str, offline: str, build: str, index: str) -> str:
    """Return what is wrong and how to fix it."""
    for pattern, words in FAILURES.items():
        if re.search(pattern, log):
            return words
    missing = (re.findall(r"No matching distribution found for (\S+)", log) or [""])[-1]
    if missing and offline:
        return f"{offline} holds no wheel of {missing} for this Python. ./install.sh --help says how to fill it."
    if missing and missing == build:
        return (
            f"{build} is in none of the configured package sources, and {index} is out of reach or has none for this "
            "Python. Name a directory that holds its wheel (PIP_FIND_LINKS=DIR), or leave PyTorch out (--doctor-only)."
        )
    if re.search(UNREACHABLE, log):
        found = f" ({missing} was not found)" if missing else ""
        return (
            f"a package registry is out of reach{found}. Check the network and HTTPS_PROXY, name a mirror "
            "(pip config set global.index-url URL), or use --offline DIR."
        )
    if missing:
        return (
            f"no configured package source has {missing} for this Python and platform. Add one that has "
            "(pip config set global.extra-index-url URL), or use --offline DIR."
        )
    return "pip failed."


def say(words: str) -> None:
    """Print a line at once."""
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
