"""Where the caches are: settings that do not mean what they seem to, and the file system."""

from __future__ import annotations

from packaging.version import Version

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.hub.common import hub, variable
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.hub import PathSetting
from rlcheck.facts.installed import is_absent, version_of

# Since this release huggingface_hub expands `~` and `$NAME` in all of its paths; before, only `~` in HF_HOME.
_EXPANDS_ALL = Version("0.30.0")
_NEVER_EXPANDED = frozenset({"HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_XET_CACHE", "TRANSFORMERS_CACHE"})
_LEGACY = ("TRANSFORMERS_CACHE", "PYTORCH_TRANSFORMERS_CACHE", "PYTORCH_PRETRAINED_BERT_CACHE")
_IGNORED_SINCE = Version("5.0.0.dev0")


@check("HFC011", "Cache paths are absolute and expanded", needs=("hub",), playbook="hf-variables",
       problem="A cache path is relative or not expanded")  # fmt: skip
def path_settings(facts: Facts) -> Verdict:
    """Reads every variable that names a directory of the Hugging Face libraries.

    What it does:
        Reports paths that are empty or relative, and those with a `~` or a `$NAME` in a variable whose reader takes it
        literally: HF_DATASETS_CACHE, HF_MODULES_CACHE and HF_XET_CACHE always, the others before huggingface_hub 0.30.

    Why it matters:
        A relative path means another directory in each process, since Ray starts workers in directories of their own,
        so every worker downloads its own copy. A literal `~` makes a directory of that name in the working directory.
    """
    settings = hub(facts).settings
    if not settings:
        return skip("no variable names a cache directory")
    version = version_of(facts, "huggingface-hub")
    old_hub = version is not None and version < _EXPANDS_ALL
    bad = [(setting, reason) for setting in settings if (reason := _fault(setting, old_hub))]
    if not bad:
        return passed(f"{len(settings)} path settings are absolute")
    setting = bad[0][0]
    return warn(
        "absolute paths that need no expansion",
        f"{setting.name}={setting.value!r} ({bad[0][1]})" + (f" and {len(bad) - 1} more" if len(bad) > 1 else ""),
        details=tuple(f"{s.name}={s.value!r}: {reason}" for s, reason in bad),
        evidence=tuple(evidence("hub.settings", s.value, s.name) for s, _ in bad),
        params={"variable": setting.name},
    )


def _fault(setting: PathSetting, old_hub: bool) -> str:
    """What is wrong with a setting, or ""."""
    literal = setting.name in _NEVER_EXPANDED or (old_hub and setting.name not in ("HF_HOME", "XDG_CACHE_HOME"))
    if not setting.value:
        return "empty: not the same as unset"
    if setting.has_tilde and literal:
        return "`~` is taken literally"
    if setting.has_variable and (literal or "$" in setting.resolved):
        return "`$` is taken literally"
    return "relative to the working directory of each process" if setting.relative else ""


@check("HFC012", "No outdated cache variable is set", needs=("environ",), playbook="hf-variables",
       problem="An outdated cache variable is set")  # fmt: skip
def legacy_variables(facts: Facts) -> Verdict:
    """Looks for the cache variables of the past.

    What it does:
        TRANSFORMERS_CACHE and its two PYTORCH_ forerunners against the version of transformers: 5.0 and later do not
        read them. HUGGINGFACE_HUB_CACHE still works but loses against HF_HUB_CACHE.

    Why it matters:
        After the step to transformers 5 the variable is ignored in silence, and every model is downloaded again into
        the home directory, which is where the quota is smallest.
    """
    present = [name for name in _LEGACY if variable(facts, name)]
    new, old = variable(facts, "HF_HUB_CACHE"), variable(facts, "HUGGINGFACE_HUB_CACHE")
    if new and old and new != old:
        found = f"HUGGINGFACE_HUB_CACHE={old} and HF_HUB_CACHE={new}; the second counts"
        return warn("one cache directory", found, params={"variable": "HUGGINGFACE_HUB_CACHE"})
    if not present:
        if old and not new:
            return info("HUGGINGFACE_HUB_CACHE is outdated; HF_HUB_CACHE is its new name",
                        params={"variable": "HUGGINGFACE_HUB_CACHE", "value": old})  # fmt: skip
        return passed("none is set")
    name = present[0]
    value = variable(facts, name) or ""
    section = facts.hub.value
    if section is not None and value.rstrip("/") == section.cache_dir.rstrip("/"):
        return info(f"{name} is outdated, but names the directory that is used anyway", params={"variable": name})
    more = {"evidence": (evidence(f"environ.{name}", value),), "params": {"variable": name, "value": value}}
    version = version_of(facts, "transformers")
    if version is None:
        state = "is not installed here" if is_absent(facts, "transformers") else "of unknown version"
        return info(f"{name}={value} is read by transformers 4 only, and transformers {state}", **more)
    if version < _IGNORED_SINCE:
        return info(f"{name}={value} works with transformers {version}, and is ignored from 5.0 on", **more)
    used = f"; the cache is {section.cache_dir}" if section is not None else ""
    if new or old or variable(facts, "HF_HOME"):  # somebody has chosen a place: it must not be overruled by the old one
        more["params"] = {"variable": name}
    return warn(
        f"no {name}, which transformers {version} does not read",
        f"{name}={value}{used}",
        **more,
    )


@check("HFC013", "The cache is on a local file system", needs=("hub.fs_type",), playbook="hf-cache-on-network-fs",
       caused_by=("HFC002",))  # fmt: skip
def network_file_system(facts: Facts) -> Verdict:
    """Finds out from the mount table whether the cache is on another machine.

    What it does:
        Names the file system under the cache (NFS, Lustre, CIFS, GPFS, Ceph, FUSE, …). Nothing is wrong with a shared
        cache that locks; it is worth knowing when loading is slow.

    Why it matters:
        All ranks of all nodes read the same tens of gigabytes at the start, and a file server that is busy makes the
        start take minutes and looks like a hang of NCCL or of the engine.
    """
    section = hub(facts)
    fs_type = need(section.fs_type)
    if not section.fs_is_network:
        return passed(f"{section.cache_dir} is on {fs_type}")
    return info(
        f"the Hub cache {section.cache_dir} is on {fs_type} ({section.fs_point}): all nodes read it over the network",
        evidence=(evidence("hub.fs_type", fs_type, "/proc/self/mounts"),),
        params={"cache_dir": section.cache_dir},
    )


@check(
    "HFC014",
    "The datasets cache can be written",
    needs=("hub.datasets",),
    playbook="hf-cache-not-writable",
    problem="The cache of the datasets library cannot be written",
)
def datasets_cache(facts: Facts) -> Verdict:
    """Looks at the directory in which the datasets library keeps what it has prepared.

    What it does:
        Judges HF_DATASETS_CACHE when it is set and names a place apart from the rest of the cache; otherwise HFC001
        has said all there is.

    Why it matters:
        load_dataset writes prepared Arrow files and locks even for data that is already on disk, so a directory that
        cannot be written stops the run when it reads its prompts.
    """
    section, directory = hub(facts), need(hub(facts).datasets)
    if section.datasets_source != "HF_DATASETS_CACHE":
        return skip("HF_DATASETS_CACHE is not set; the data sets are below the Hub cache's parent")
    if directory.writable and directory.is_directory:
        return passed(f"{section.datasets_dir} can be written")
    what = "cannot be written" if directory.is_directory else "is not a directory"
    return warn(
        "a data set cache that can be written",
        f"HF_DATASETS_CACHE={section.datasets_dir}: {directory.nearest} {what}",
        evidence=(evidence("hub.datasets.writable", directory.writable, directory.nearest),),
    )
