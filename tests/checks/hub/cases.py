"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.hub import (
    CacheContents,
    Directory,
    HomeDirectory,
    HubFacts,
    Leftovers,
    PathSetting,
    TokenFile,
    WriteTest,
)
from rlcheck.facts.python import Distribution, PythonFacts

GIB = 1 << 30
CACHE = "/home/bob/.cache/huggingface/hub"
LOCKS = Leftovers(num=3, num_bytes=0, oldest_s=90_000, first=(".locks/models--a--b/x.lock",))


def python(**versions: str) -> Fact[PythonFacts]:
    """An environment with these distributions; underscores stand for hyphens."""
    found = tuple(
        Distribution(name=n.replace("_", "-"), version=v, location="/site-packages") for n, v in versions.items()
    )
    return known(PythonFacts(version="3.12.3", distributions=found))


def directory(**changes) -> Directory:
    usual = {
        "path": CACHE, "exists": True, "nearest": CACHE, "real_path": CACHE, "owner_uid": 1000, "mode": 0o755,
        "writable": True, "total_bytes": 1000 * GIB, "free_bytes": 500 * GIB, "free_inodes": 10**7,
    }  # fmt: skip
    return Directory(**{**usual, **changes})


def hub_section(**changes) -> HubFacts:
    """A healthy cache with one model, owned by user 1000."""
    usual = {
        "uid": 1000,
        "cache_dir": CACHE,
        "cache_source": "default",
        "datasets_dir": "/home/bob/.cache/huggingface/datasets",
        "datasets_source": "default",
        "home_decides": True,
        "home": known(
            HomeDirectory(
                path="/home/bob", source="HOME", passwd="/home/bob", exists=True, owner_uid=1000, writable=True
            )
        ),
        "cache": known(directory()),
        "datasets": known(directory(path="/data")),
        "write_test": known(WriteTest(directory=CACHE)),
        "contents": known(CacheContents(num_models=1, models=("a/b",), num_entries=20)),
        "tokens": known((TokenFile(path="/home/bob/.cache/huggingface/token"),)),
        "fs_type": known("ext4"),
        "fs_point": "/",
    }
    return HubFacts(**{**usual, **changes})


def machine(environ: dict[str, str] | None = None, packages: Fact[PythonFacts] | None = None, **changes) -> Facts:
    return Facts(
        environ=known(environ or {}),
        python=python(huggingface_hub="2.4.0") if packages is None else packages,
        hub=known(hub_section(**changes)),
    )


def contents(**changes) -> Fact[CacheContents]:
    return known(CacheContents(**{"num_models": 1, "models": ("a/b",), **changes}))


def write_test(**changes) -> Fact[WriteTest]:
    return known(WriteTest(directory=CACHE, **changes))


def token(**changes) -> Fact[tuple[TokenFile, ...]]:
    usual = {"path": "/home/bob/.cache/huggingface/token", "exists": True, "readable": True, "owner_uid": 1000,
             "mode": 0o600, "num_bytes": 37}  # fmt: skip
    return known((TokenFile(**{**usual, **changes}),))


HEALTHY = machine()
EMPTY_CACHE = {
    "cache": known(directory(exists=False, nearest="/home/bob/.cache", real_path="/home/bob/.cache")),
    "contents": absent(f"{CACHE} does not exist yet"),
}
NO_ENTRY = write_test(failed_step="create", error="Permission denied")

CASES: dict[str, tuple[Facts, Facts]] = {
    "HFC001": (machine(write_test=NO_ENTRY, **EMPTY_CACHE), HEALTHY),
    "HFC002": (machine(write_test=write_test(lock_errno=37, lock_error="No locks available")), HEALTHY),
    "HFC003": (machine(write_test=write_test(symlink_errno=95, symlink_error="Operation not supported")), HEALTHY),
    "HFC004": (machine(uid=0), HEALTHY),
    "HFC005": (
        machine(home=known(HomeDirectory(path="/", source="HOME", passwd="/home/bob", exists=True, owner_uid=0))),
        HEALTHY,
    ),
    "HFC006": (machine(contents=contents(locks=LOCKS, foreign_locks=LOCKS, foreign_lock_uids=(1234,))), HEALTHY),
    "HFC007": (
        machine(contents=contents(locks=LOCKS), write_test=write_test(lock_errno=38, lock_error="not implemented")),
        machine(contents=contents(locks=LOCKS)),
    ),
    "HFC008": (
        machine(contents=contents(incomplete=Leftovers(num=4, num_bytes=30 * GIB, oldest_s=9 * 86400, first=("x",)))),
        machine(contents=contents(incomplete_recent=Leftovers(num=1, num_bytes=GIB))),
    ),
    "HFC009": (
        machine(
            contents=contents(dangling=Leftovers(num=2, first=("models--org--tiny/snapshots/1/model.safetensors",)))
        ),
        machine(contents=contents(lost_refs=Leftovers(num=1, first=("models--a--b/refs/main",)))),
    ),
    "HFC010": (machine(cache=known(directory(free_bytes=GIB, exists=False)), contents=absent("none")), HEALTHY),
    "HFC011": (
        machine(
            settings=(
                PathSetting(name="HF_DATASETS_CACHE", value="~/d", resolved="~/d", relative=True, has_tilde=True),
            )
        ),
        machine(settings=(PathSetting(name="HF_HOME", value="~/hf", resolved="/home/bob/hf", has_tilde=True),)),
    ),
    "HFC012": (
        machine({"TRANSFORMERS_CACHE": "/scratch/tf"}, python(transformers="5.19.0")),
        machine({"HF_HOME": "/scratch/hf"}, python(transformers="5.19.0")),
    ),
    "HFC013": (machine(fs_type=known("nfs4"), fs_point="/home", fs_is_network=True), HEALTHY),
    "HFC014": (
        machine(
            datasets_source="HF_DATASETS_CACHE",
            datasets_dir="/data/ds",
            datasets=known(directory(path="/data/ds", exists=False, nearest="/data", writable=False)),
        ),
        machine(datasets_source="HF_DATASETS_CACHE", datasets_dir="/data/ds"),
    ),
    "HFC015": (machine(tokens=token(readable=False, mode=0o600, owner_uid=0)), machine(tokens=token())),
    "HFC016": (machine(tokens=token(mode=0o644)), machine(tokens=token())),
    "HFC017": (machine(), machine({"HF_TOKEN": "<set>"})),
    "HFC018": (machine({"HF_HUB_OFFLINE": "1"}, **EMPTY_CACHE), machine({"HF_HUB_OFFLINE": "1"})),
    "HFC019": (machine({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"}), machine({"HF_HUB_OFFLINE": "1"})),
    "HFC020": (machine({"HF_ENDPOINT": "mirror.example.org"}), machine({"HF_ENDPOINT": "https://huggingface.co"})),
    "HFC021": (
        machine({"HF_HUB_ENABLE_HF_TRANSFER": "1"}, python(huggingface_hub="0.34.1")),
        machine({"HF_HUB_ENABLE_HF_TRANSFER": "1"}, python(huggingface_hub="0.34.1", hf_transfer="0.1.9")),
    ),
    "HFC022": (machine({"HF_HUB_DOWNLOAD_TIMEOUT": "30s"}), machine({"HF_HUB_DOWNLOAD_TIMEOUT": "30"})),
    "HFC023": (machine(packages=python(hf_xet="1.0.3")), machine(packages=python(hf_xet="1.8.0"))),
}
