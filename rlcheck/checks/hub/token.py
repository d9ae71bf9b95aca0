"""The Hub token: never its content, only whether it is there and who may read it."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.hub.common import hub, is_offline, is_true, variable
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.hub import TokenFile

_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def _in_environment(facts: Facts) -> str:
    """The variable that holds a token, or ""."""
    return next((name for name in _VARIABLES if variable(facts, name)), "")


def _current(facts: Facts) -> TokenFile | None:
    """The token file that the library reads, if there is one."""
    return next((file for file in need(hub(facts).tokens) if file.read_by_library and file.exists), None)


@check("HFC015", "The token file can be read", needs=("hub.tokens", "environ"), playbook="hf-no-token",
       problem="The Hub token file cannot be read")  # fmt: skip
def token_readable(facts: Facts) -> Verdict:
    """Tries the access to the token file that the Hub client makes on every call.

    What it does:
        Looks at HF_TOKEN_PATH, or token below HF_HOME, without reading it. Skipped when a variable holds the token,
        which comes first.

    Why it matters:
        A token file that exists but cannot be read raises PermissionError in every call to the Hub, also for public
        models: only a missing file counts as "not logged in". Shared HF_HOME directories are where it happens.
    """
    name = _in_environment(facts)
    if name:
        return skip(f"{name} is set and comes before the file")
    file = _current(facts)
    if file is None:
        return skip("there is no token file")
    proof = (evidence("hub.tokens", f"mode {file.mode:04o}, uid {file.owner_uid}", file.path),)
    if not file.readable:
        found = f"{file.path} (mode {file.mode:04o}, uid {file.owner_uid}) cannot be read by uid {hub(facts).uid}"
        verdict = warn if is_offline(facts) else fail
        return verdict("a token file that this user can read, or none", found, evidence=proof)
    if file.num_bytes == 0:
        return info(f"{file.path} is empty: calls to the Hub are anonymous", evidence=proof)
    return passed(f"{file.path} can be read")


@check("HFC016", "The token file is private", needs=("hub.tokens",), playbook="hf-token-exposed")
def token_private(facts: Facts) -> Verdict:
    """Reads the permissions of the token files, the old place (~/.huggingface/token) included.

    What it does:
        Reports a file that anybody (warning) or the group (mentioned) may read. A closed directory above protects it.
        Inside a container it is only mentioned: no other user is in there.

    Why it matters:
        Anyone who reads the token is you to the Hub: private and gated models can be downloaded, and with a write token
        repositories changed. On a cluster everybody can read a world-readable file.
    """
    files = [file for file in need(hub(facts).tokens) if file.exists and file.num_bytes]
    if not files:
        return skip("there is no token file")
    for bits, whose in ((0o004, "everybody"), (0o040, "the group")):
        exposed = [file for file in files if file.mode & bits]
        if not exposed:
            continue
        found = ", ".join(f"{file.path} (mode {file.mode:04o})" for file in exposed)
        more = {
            "evidence": tuple(evidence("hub.tokens", f"mode {file.mode:04o}", file.path) for file in exposed),
            "params": {"token_file": exposed[0].path},
        }
        in_container = facts.platform.value is not None and bool(facts.platform.value.container)
        if bits == 0o004 and not in_container:
            return warn("a file that only its owner can read (mode 0600)", f"{found}: readable by {whose}", **more)
        return info(f"readable by {whose}: {found}", **more)
    return passed(f"{len(files)} token files, private")


@check("HFC017", "A Hub token is found", needs=("hub.tokens", "environ"), playbook="hf-no-token",
       problem="There is no Hub token")  # fmt: skip
def token_present(facts: Facts) -> Verdict:
    """Reports whether calls to the Hub will be anonymous.

    What it does:
        Looks for HF_TOKEN, HUGGING_FACE_HUB_TOKEN and the token file, and for the flag that keeps it from being sent.
        The content is never read, so whether the token is valid or its licences are accepted is not judged.

    Why it matters:
        Without a token gated models (Llama, Gemma) answer 401, which reads like a misspelt name, and the limit on
        requests is counted for the whole machine's address: many ranks behind one NAT run into 429.
    """
    name = _in_environment(facts)
    file = _current(facts)
    if is_true(variable(facts, "HF_HUB_DISABLE_IMPLICIT_TOKEN")) and (name or file is not None):
        return info("HF_HUB_DISABLE_IMPLICIT_TOKEN is on: the token is there but not sent when models are downloaded")
    if name:
        return passed(f"{name} is set")
    if file is not None:
        return passed(f"a token file is at {file.path}")
    if is_offline(facts):
        return skip("offline mode is on")
    old = next((file for file in need(hub(facts).tokens) if file.exists and not file.read_by_library), None)
    hint = f"; the file at {old.path} is not read any more" if old is not None else ""
    return info(f"no Hub token: gated models cannot be downloaded{hint}")
