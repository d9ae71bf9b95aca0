"""Write rlcheck/data/verl_*.json from verl's wheels: keys, defaults, how they differ between versions.

`trainer/rltrain/config/verl_sft_keys.json` holds keys and defaults of the newest version's SFT trainer.

Run with the wheels of every version, the newest first:

    python -m tests.tools.verl_keys verl-0.9.1-py3-none-any.whl verl-0.9.0-py3-none-any.whl …

`verl_keys.json` holds the keys and defaults of the newest version's `ppo_trainer`, flattened. `verl_versions.json`
holds every other layout (a version with a model engine) as the difference to one that is near it, the fields that
verl's own classes take beyond those of its YAML files, and the names that its code asks sections for.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.tools.lines import text_of

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "rlcheck" / "data"
SFT_PARTS = {"model": "model/hf_model", "engine": "engine/fsdp", "optim": "optim/fsdp", "": "sft_trainer_engine"}
ENGINES = {"dp": "", "megatron": "megatron_", "torchtitan": "torchtitan_", "veomni": "veomni_"}
_GENERATED = "verl/trainer/config/_generated_ppo_{}trainer.yaml"
_ASKED = re.compile(r"""(?:\.get|\.pop|getattr|hasattr)\((?:[\w.]+, *)?["']([A-Za-z_]\w*)["']""")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; an empty mapping is a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _layouts(wheel: zipfile.ZipFile) -> dict[str, dict[str, Any]]:
    return {
        engine: dict(flatten(yaml.safe_load(wheel.read(_GENERATED.format(infix))))) for engine, infix in ENGINES.items()
    }


def sft_keys(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """Keys and defaults of verl's SFT trainer, put together as its list of defaults says."""
    found: dict[str, Any] = {}
    for section, file in SFT_PARTS.items():
        tree = yaml.safe_load(wheel.read(f"verl/trainer/config/{file}.yaml"))
        found |= dict(flatten(tree, f"{section}." if section else ""))
    return {key: value for key, value in found.items() if key != "defaults" and not key.endswith("_target_")}


def write_sft_keys(path: Path) -> None:
    """Write the keys of the SFT trainer of the wheel at PATH."""
    source = (
        f"verl {path.name.split('-')[1]}, verl/trainer/config/sft_trainer_engine.yaml and its defaults (Apache-2.0)"
    )
    with zipfile.ZipFile(path) as wheel:
        content = text_of({"source": source, "keys": sft_keys(wheel)})
    (ROOT / "trainer/rltrain/config/verl_sft_keys.json").write_text(content, encoding="utf-8")


def _choices(wheel: zipfile.ZipFile) -> list[str]:
    """What `model_engine=` may name."""
    folder = "verl/trainer/config/model_engine/"
    return sorted(Path(name).stem for name in wheel.namelist() if name.startswith(folder) and name.endswith(".yaml"))


def _difference(layout: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    gone = [key for key in base if key not in layout]
    sections = {key.rsplit(".", depth)[0] for key in gone for depth in range(1, key.count(".") + 1)}
    empty = sorted(section for section in sections if not any(key.startswith(f"{section}.") for key in layout))
    whole = [s for s in empty if not any(s.startswith(f"{other}.") for other in empty)]
    return {
        "set": {key: value for key, value in layout.items() if key not in base or base[key] != value},
        "drop": [*(f"{s}." for s in whole), *(k for k in gone if not any(k.startswith(f"{s}.") for s in whole))],
    }


def _fields(wheel: zipfile.ZipFile) -> dict[str, list[str]]:
    """Class name to the fields of a dataclass, those of its bases included."""
    own: dict[str, tuple[list[str], list[str]]] = {}
    for name in wheel.namelist():
        if not name.endswith(".py") or ("/config" not in name and "profiler" not in name and "skip" not in name):
            continue
        for node in ast.walk(ast.parse(wheel.read(name))):
            if isinstance(node, ast.ClassDef):
                names = [
                    part.target.id
                    for part in node.body
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
                ]
                own[node.name] = ([base.id for base in node.bases if isinstance(base, ast.Name)], names)

    def of(name: str) -> list[str]:
        bases, names = own.get(name, ([], []))
        return [*(field for base in bases for field in of(base)), *names]

    return {name: sorted(set(of(name))) for name in own}


def _extra(layouts: Mapping[str, Mapping[str, Any]], fields: Mapping[str, list[str]]) -> list[str]:
    """Keys that no YAML file has, but that the class of their section takes."""
    known = {key for layout in layouts.values() for key in layout}
    sections = {".".join(key.split(".")[:depth]) for key in known for depth in range(1, key.count(".") + 1)}
    found: set[str] = set()
    for layout in layouts.values():
        for key, value in layout.items():
            if key.endswith("._target_"):
                section = key.rpartition(".")[0]
                found |= {f"{section}.{name}" for name in fields.get(str(value).rpartition(".")[2], [])}
    return sorted(
        key for key in found if key not in known and key not in sections and not key.endswith("._mutable_fields")
    )


def _asked(wheel: zipfile.ZipFile) -> set[str]:
    names = (name for name in wheel.namelist() if name.endswith(".py"))
    return {word for name in names for word in _ASKED.findall(wheel.read(name).decode("utf-8"))}


def write(wheels: list[Path]) -> None:
    """Write both files from WHEELS, the newest first."""
    versions = [path.name.split("-")[1] for path in wheels]
    opened = [zipfile.ZipFile(path) for path in wheels]
    layouts = {version: _layouts(wheel) for version, wheel in zip(versions, opened, strict=True)}
    newest = versions[0]
    differences: list[dict[str, Any]] = []
    for number, version in enumerate(versions):
        for engine, layout in layouts[version].items():
            if (version, engine) == (newest, "dp"):
                continue
            over = (newest, "dp") if number == 0 else (versions[number - 1], engine)
            base = layouts[over[0]][over[1]]
            differences.append({"version": version, "engine": engine, "over": list(over), **_difference(layout, base)})
    last = {word for word in set().union(*(_asked(wheel) for wheel in opened)) if not word.startswith("__")}
    write_sft_keys(wheels[0])
    source = "_generated_ppo_trainer.yaml (Apache-2.0), flattened: dotted key to default"
    _dump("verl_keys.json", {"source": f"verl {newest}, verl/trainer/config/{source}", "keys": layouts[newest]["dp"]})
    _dump(
        "verl_versions.json",
        {
            "source": f"verl {', '.join(versions)}, verl/trainer/config/_generated_ppo_*trainer.yaml (Apache-2.0)",
            "versions": versions,
            "model_engines": {v: _choices(w) for v, w in zip(versions, opened, strict=True)},
            "extra": sorted(
                set().union(*(_extra(layouts[v], _fields(w)) for v, w in zip(versions, opened, strict=True)))
            ),
            "asked": sorted(last),
            "layouts": differences,
        },
    )


def _dump(name: str, content: dict[str, Any]) -> None:
    (DATA / name).write_text(text_of(content), encoding="utf-8")


if __name__ == "__main__":
    write([Path(argument) for argument in sys.argv[1:]])
