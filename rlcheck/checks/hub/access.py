"""Can this user use the cache: write, lock, link, own."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.hub.common import hub, is_offline, num_models
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.installed import is_absent

_ENOSYS = 38
_WOULD_BLOCK = (11, 13)


@check("HFC001", "The Hub cache can be written", needs=("hub.write_test",), playbook="hf-cache-not-writable",
       problem="The Hub cache cannot be written")  # fmt: skip
def cache_writable(facts: Facts) -> Verdict:
    """Makes, fills and removes a small file where the Hub cache is, or where it would be made.

    What it does:
        Resolves the cache directory as huggingface_hub does (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, home) and
        judges a real write in it, or in its nearest existing parent. The cache itself is never created. A cache that
        can only be read is accepted when offline mode is on and models are in it.

    Why it matters:
        Every download begins with a file in this directory, so a run that needs a model, a tokenizer or a data set from
        the Hub stops with PermissionError, a full quota or a read-only file system. On a cluster it often works on the
        login node and fails in the job, where the home directory is mapped or mounted read-only.
    """
    test = need(hub(facts).write_test)
    if not test.failed_step:
        return passed(f"{test.directory} takes new files", evidence=(evidence("hub.write_test", "ok"),))
    proof = (evidence("hub.write_test.failed_step", f"{test.failed_step}: {test.error}", test.directory),)
    models = num_models(facts)
    if is_offline(facts) and models:
        return passed(f"{test.directory} is read-only, offline mode is on and {models} models are cached")
    more = {"evidence": proof, "params": {"cache_dir": hub(facts).cache_dir, "directory": test.directory}}
    found = f"{test.directory}: {test.error} (step: {test.failed_step})"
    if models or is_offline(facts) or is_absent(facts, "huggingface-hub"):
        return warn("a Hub cache that can be written", found, **more)
    return fail("a Hub cache that can be written", found, **more)


@check("HFC002", "Files in the cache can be locked", needs=("hub.write_test",), playbook="hf-cache-no-locks",
       problem="The cache is on a file system without flock")  # fmt: skip
def locks_work(facts: Facts) -> Verdict:
    """Takes the lock that a download takes (flock) on a file next to the cache.

    What it does:
        Calls flock on the probe file. ENOSYS means that the client falls back to lock files that mean "held" by merely
        existing; any other refusal reaches the download as an error.

    Why it matters:
        Without flock the client uses soft lock files, and one left by a killed job makes every later download of that
        file wait forever. Lustre without the flock mount option and some NFS and FUSE mounts behave so.
    """
    test = need(hub(facts).write_test)
    if test.failed_step in ("create", "write"):
        return skip("no file could be made to try a lock on (HFC001)")
    if test.lock_errno == 0 or test.lock_errno in _WOULD_BLOCK:
        return passed(f"flock works in {test.directory}")
    proof = (evidence("hub.write_test.lock_errno", test.lock_errno, test.directory),)
    found = f"{test.lock_error} (errno {test.lock_errno}) in {test.directory}"
    if test.lock_errno == _ENOSYS or is_offline(facts):
        return warn("a file system with flock under the cache", found, evidence=proof)
    return fail("a file system with flock under the cache", found, evidence=proof)


@check("HFC003", "Snapshots can be symbolic links", needs=("hub.write_test",), playbook="hf-cache-no-locks",
       problem="The cache is on a file system without symbolic links")  # fmt: skip
def symlinks_work(facts: Facts) -> Verdict:
    """Makes a symbolic link next to the cache.

    What it does:
        The cache keeps each file once and links snapshots to it. Without links the client copies or moves the files.

    Why it matters:
        A file system without symbolic links makes the cache keep a copy for each revision, and tools that expect links
        (cache scans, clean-ups, rsync of a cache) go wrong.
    """
    test = need(hub(facts).write_test)
    if test.failed_step in ("create", "write"):
        return skip("no file could be made to try a link on (HFC001)")
    if test.symlink_errno == 0:
        return passed(f"symbolic links work in {test.directory}")
    return warn(
        "symbolic links under the cache",
        f"{test.symlink_error} (errno {test.symlink_errno}) in {test.directory}",
        evidence=(evidence("hub.write_test.symlink_errno", test.symlink_errno, test.directory),),
    )


@check("HFC004", "The cache belongs to this user", needs=("hub.cache",), playbook="hf-foreign-locks",
       problem="The cache belongs to another user")  # fmt: skip
def cache_owner(facts: Facts) -> Verdict:
    """Compares the owner of the cache with the user that runs.

    What it does:
        Reads the owner of the cache directory. Root working in another user's cache is a warning; a cache shared on
        purpose is only mentioned.

    Why it matters:
        What root downloads into a user's cache belongs to root afterwards, and the user's own next run stops with
        PermissionError on lock files and blobs. It happens with sudo, and with containers that map a home directory in.
    """
    section, cache = hub(facts), need(hub(facts).cache)
    if not cache.exists:
        return skip(f"{section.cache_dir} does not exist yet")
    if cache.owner_uid < 0 or section.uid < 0 or cache.owner_uid == section.uid:
        return passed(f"{section.cache_dir} belongs to this user (uid {section.uid})")
    proof = (evidence("hub.cache.owner_uid", cache.owner_uid, section.cache_dir),)
    if section.uid == 0:
        found = f"uid 0 working in {section.cache_dir} of uid {cache.owner_uid}"
        return warn(f"the owner of the cache (uid {cache.owner_uid})", found, evidence=proof)
    text = f"{section.cache_dir} belongs to uid {cache.owner_uid}; this user is uid {section.uid} (a shared cache?)"
    return info(text, evidence=proof)


@check(
    "HFC005",
    "The home directory is usable",
    needs=("hub.home",),
    playbook="home-unusable",
    caused_by=("SYS031",),
    problem="The home directory is not usable",
)
def home_usable(facts: Facts) -> Verdict:
    """Looks at the home directory when the cache is below it for want of any other setting.

    What it does:
        Checks that HOME is set, exists, belongs to this user and is not the root directory. Silent when HF_HOME,
        HF_HUB_CACHE or XDG_CACHE_HOME decide where the cache is.

    Why it matters:
        Containers and batch systems start processes with HOME unset, set to / or mapped from another user, and the
        cache then lands where it cannot be written or where it is lost with the container. The next run downloads
        everything again.
    """
    section, home = hub(facts), need(hub(facts).home)
    if not section.home_decides:
        return skip(f"{section.cache_source} decides where the cache is")
    trouble = ""
    if home.path == "/":
        trouble = "HOME is the root directory"
    elif home.source == "passwd":
        trouble = f"HOME is not set (the account's is {home.path})"
    elif not home.exists:
        trouble = f"{home.path} does not exist"
    elif section.uid > 0 and home.owner_uid not in (-1, section.uid) and not home.writable:
        trouble = f"{home.path} belongs to uid {home.owner_uid} and cannot be written by uid {section.uid}"
    if not trouble:
        return passed(f"{home.path} is this user's")
    return warn(
        "a home directory of this user's, or HF_HOME set",
        trouble,
        evidence=(evidence("hub.home", home.path, home.source),),
        params={"user_home": home.passwd}
        if home.passwd not in ("", "/") and (home.passwd != home.path or home.source == "passwd")
        else {},
    )
