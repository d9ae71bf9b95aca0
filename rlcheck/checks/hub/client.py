"""How the Hub client is set: offline flags, endpoint, transfer, numbers."""

from __future__ import annotations

from urllib.parse import urlsplit

from packaging.version import Version

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.hub.common import FALSE, TRUE, hub, is_offline, is_true, num_models, variable
from rlcheck.facts.document import Facts
from rlcheck.facts.installed import is_absent, version_of

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_WHOLE_NUMBERS = ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FIRST_RETRYING_XET = Version("1.1.2")
_FIRST_STEADY_XET = Version("1.5.2")


@check("HFC018", "Offline mode has models to serve", needs=("hub.cache", "environ"), playbook="hf-offline-empty-cache")
def offline_and_empty(facts: Facts) -> Verdict:
    """Compares offline mode with what is in the cache.

    What it does:
        With HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) on, looks whether the cache holds any model at all.

    Why it matters:
        Offline, every model or data set that is given by its Hub name must be in this cache, or the run stops with
        LocalEntryNotFoundError. Often the cache was filled as another user or under another HF_HOME.
    """
    if not is_offline(facts):
        return skip("offline mode is off")
    section = hub(facts)
    models = num_models(facts)
    if models:
        return passed(f"offline mode is on and {models} models are in {section.cache_dir}")
    exists = section.cache.value is not None and section.cache.value.exists
    if exists and section.contents.value is None:
        return skip(f"offline mode is on, but it was not possible to look into {section.cache_dir}")
    if section.contents.value is not None and not section.contents.value.complete:
        return skip(f"offline mode is on; of {section.cache_dir} only a part was looked at")
    return warn(
        "cached models, since offline mode is on",
        f"none in {section.cache_dir}" + ("" if exists else ", which does not exist"),
        evidence=(evidence("hub.contents.num_models", 0, section.cache_dir),),
    )


@check("HFC019", "Offline flags agree", needs=("environ",), playbook="hf-variables",
       problem="The offline flags contradict each other")  # fmt: skip
def offline_flags(facts: Facts) -> Verdict:
    """Reads the three offline flags as the libraries do.

    What it does:
        HF_HUB_OFFLINE decides for the Hub client and transformers; TRANSFORMERS_OFFLINE counts only when it is unset or
        empty; HF_DATASETS_OFFLINE, when set, decides for data sets alone. Only 1, ON, YES and TRUE mean yes.

    Why it matters:
        With flags that contradict each other one library works offline while the other waits for a network that the
        compute node does not have, and a word such as "y" switches nothing on.
    """
    flags = {name: value for name in _OFFLINE if (value := variable(facts, name)) is not None}
    if not flags:
        return passed("none is set")
    proof = tuple(evidence(f"environ.{name}", value) for name, value in flags.items())
    shown = ", ".join(f"{name}={value}" for name, value in flags.items())
    odd = [name for name, value in flags.items() if value.upper() not in TRUE | FALSE]
    if odd:
        return warn("1 or 0 in the offline flags", f"{shown}: {odd[0]} counts as off", evidence=proof,
                    params={"variable": odd[0]})  # fmt: skip
    offline = is_offline(facts)
    lost = is_true(flags.get("TRANSFORMERS_OFFLINE")) and not offline
    datasets = flags.get("HF_DATASETS_OFFLINE")
    if lost or (datasets is not None and is_true(datasets) != offline):
        loser = "TRANSFORMERS_OFFLINE" if lost else "HF_DATASETS_OFFLINE"
        state = "offline" if offline else "online"
        return warn("offline flags that agree", f"{shown}: the Hub client is {state}", evidence=proof,
                    params={"variable": loser})  # fmt: skip
    return passed(shown)


@check("HFC020", "HF_ENDPOINT is a usable address", needs=("environ",), playbook="hf-variables",
       problem="HF_ENDPOINT is not a usable address")  # fmt: skip
def endpoint(facts: Facts) -> Verdict:
    """Judges the address of the Hub or of its mirror.

    What it does:
        The value must be a URL with https (or http) and a host. Plain http to another machine is a warning, another
        host than huggingface.co is mentioned. Nothing is sent to it.

    Why it matters:
        Every request is made of this text, so an empty value or one without https:// makes all downloads fail with an
        error about the URL. Over plain http the token can be read on the way.
    """
    value = variable(facts, "HF_ENDPOINT")
    if value is None:
        return passed("huggingface.co (HF_ENDPOINT is not set)")
    proof = (evidence("environ.HF_ENDPOINT", value),)
    host = _host(value)
    if not host:
        verdict = warn if is_offline(facts) else fail
        return verdict("https:// and a host in HF_ENDPOINT", repr(value), evidence=proof)
    if value.lower().startswith("http:") and host not in _LOOPBACK:
        return warn("https in HF_ENDPOINT", f"{value}: token and files travel in clear text", evidence=proof)
    if host == "huggingface.co":
        return passed(value)
    return info(f"models come from {host}, not from huggingface.co (HF_ENDPOINT)", evidence=proof)


def _host(value: str) -> str:
    """The host of an http(s) URL, or "" when it is none."""
    try:
        parts = urlsplit(value)
        return (parts.hostname or "") if parts.scheme in ("http", "https") and not set(value) & set(" \t\n\"'") else ""
    except ValueError:
        return ""


@check("HFC021", "HF_HUB_ENABLE_HF_TRANSFER has its package", needs=("environ", "python"), playbook="hf-transfer",
       problem="HF_HUB_ENABLE_HF_TRANSFER is set without hf_transfer")  # fmt: skip
def hf_transfer(facts: Facts) -> Verdict:
    """Compares the hf_transfer switch with the installed client.

    What it does:
        huggingface_hub 1.0 and later have no hf_transfer; before, the switch needs the package of that name.

    Why it matters:
        With huggingface_hub 0.x and without the package every download stops with a ValueError. With 1.x the switch
        does nothing, and people wait for a speed that does not come.
    """
    if not is_true(variable(facts, "HF_HUB_ENABLE_HF_TRANSFER")):
        return passed("is not set")
    version = version_of(facts, "huggingface-hub")
    if version is None:
        return skip("huggingface_hub is not installed in the examined environment")
    proof = (evidence("environ.HF_HUB_ENABLE_HF_TRANSFER", "1"), evidence("python.distributions", str(version)))
    if version >= Version("1.0"):
        return info(f"HF_HUB_ENABLE_HF_TRANSFER does nothing with huggingface_hub {version}", evidence=proof)
    if is_absent(facts, "hf-transfer"):
        verdict = warn if is_offline(facts) else fail
        found = f"HF_HUB_ENABLE_HF_TRANSFER=1 with huggingface_hub {version} and no hf_transfer"
        return verdict("the package hf_transfer, or no switch", found, evidence=proof)
    return passed(f"hf_transfer is installed (huggingface_hub {version})")


@check("HFC022", "Timeouts of the Hub client are numbers", needs=("environ",), playbook="hf-variables",
       problem="A timeout of the Hub client is not a number")  # fmt: skip
def whole_numbers(facts: Facts) -> Verdict:
    """Tries the settings that the Hub client turns into integers when it is imported.

    What it does:
        HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT must be whole numbers of seconds.

    Why it matters:
        `import huggingface_hub` fails with a ValueError on anything else ("30s", "1.5", an empty text), and with it
        transformers, vLLM and every trainer, with a traceback that does not name the variable.
    """
    values = {name: value for name in _WHOLE_NUMBERS if (value := variable(facts, name)) is not None}
    bad = {name: value for name, value in values.items() if not _is_whole(value)}
    if not bad:
        return passed(", ".join(f"{name}={value}" for name, value in values.items()) or "none is set")
    name, value = next(iter(bad.items()))
    return fail(
        f"a whole number of seconds in {name}",
        repr(value),
        evidence=tuple(evidence(f"environ.{key}", text) for key, text in bad.items()),
        params={"variable": name},
    )


def _is_whole(value: str) -> bool:
    try:
        int(value[:100])
    except ValueError:
        return False
    return True


@check("HFC023", "hf-xet retries failed downloads", needs=("python",), playbook="hf-xet-stalls",
       problem="This hf-xet does not retry failed downloads")  # fmt: skip
def xet_version(facts: Facts) -> Verdict:
    """Looks at the version of hf-xet, which carries most downloads today.

    What it does:
        Warns of versions before 1.1.2 and mentions those before 1.5.2, unless HF_HUB_DISABLE_XET switches it off.

    Why it matters:
        Versions before 1.1.2 do not try again after a connection breaks, and up to 1.5.1 downloads were reported to
        stand still on a poor network. There is no error: it looks as if the engine were slow to start.
    """
    version = version_of(facts, "hf-xet")
    if version is None:
        return skip("hf-xet is not installed in the examined environment")
    if is_true(variable(facts, "HF_HUB_DISABLE_XET")):
        return skip("HF_HUB_DISABLE_XET is on")
    if version >= _FIRST_STEADY_XET:
        return passed(f"hf-xet {version}")
    proof = (evidence("python.distributions", f"hf-xet {version}"),)
    if version >= _FIRST_RETRYING_XET:
        return info(f"hf-xet {version}: downloads that stand still were fixed in {_FIRST_STEADY_XET}", evidence=proof)
    return warn(f"hf-xet {_FIRST_RETRYING_XET} or later", str(version), evidence=proof)
