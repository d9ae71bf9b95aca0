"""The walks of CONTRIBUTING, each with a made-up thing: the files that a person writes or edits, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Walk:
    """How one thing is added.

    bar: files by hand, at most.
    new: the text of each new file, by path.
    rows: for each file that is edited, pairs of a text that is there and what is put in front of it.
    """

    bar: int
    new: dict[str, str] = field(default_factory=dict[str, str])
    rows: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict[str, tuple[tuple[str, str], ...]])

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all that is written or edited."""
        return (*self.new, *self.rows)

    def write(self, root: Path) -> None:
        """Do the walk below ROOT."""
        for name, text in self.new.items():
            path = root / name
            assert not path.exists(), f"{name} is there already"
            path.parent.mkdir(exist_ok=True)  # a package of tests may be new, no folder above it
            path.write_text(text, encoding="utf-8")
        for name, rows in self.rows.items():
            text = (root / name).read_text(encoding="utf-8")
            for anchor, row in rows:
                assert text.count(anchor) == 1, f"{name}: {anchor!r} is there {text.count(anchor)} times"
                text = text.replace(anchor, row + anchor)
            (root / name).write_text(text, encoding="utf-8")


def playbook(id: str, family: str, more: str) -> str:
    """Return a playbook with MORE in its front matter."""
    return f"""---
id: {id}
title: "The walk of {id} leads here"
families: [{family}]
{more}
cause: "Somebody walked."
fixes:
  - {{title: "Walk back to {id}", kind: advice}}
sources:
  - {{url: "https://example.org/walk", what: "the way"}}
verified: 2026-11-22
---
## What happens

It walks.
"""


_CHECK = '''"""{about}"""

from __future__ import annotations

from rlcheck.check import Verdict, check, passed, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts


@check("{id}", "{title}", needs=("{section}",), playbook="{playbook}")
def walked(facts: Facts) -> Verdict:
    """Looks whether it is there.

    What it does:
        Reads the {section} section.

    Why it matters:
        {title}, or a walk ends early.
    """
    found = need(facts.{section}).{field}
    return passed(f"found {{found}}") if found != "{bad}" else warn("another one", found)
'''

CHECK = Walk(
    bar=3,
    new={
        "rlcheck/checks/system/walked.py": _CHECK.format(
            about="A check that a test walks in.", id="SYS099", title="The kernel is a walked one", section="platform",
            playbook="kernel-not-walked", field="kernel", bad="0.0.1",
        ),
        "playbooks/kernel-not-walked.md": playbook("kernel-not-walked", "SYS", "checks: [SYS099]"),
    },
    rows={
        "tests/checks/system/cases.py": ((
            '    "SYS034": (machine(process=',
            '    "SYS099": (Facts(platform=known(PlatformFacts(kernel="0.0.1"))), '
            'Facts(platform=known(PlatformFacts(kernel="6.1")))),\n',
        ), ("from rlcheck.facts.system import", "from rlcheck.facts.platform import PlatformFacts\n")),
    },
)  # fmt: skip

LOG_LINE = "RuntimeError: the walker has left the path after 17 steps"
PLAYBOOK = Walk(
    bar=2,
    new={
        "playbooks/walker-left-path.md": playbook(
            "walker-left-path", "CFG",
            "signatures:\n"
            "  - pattern: 'the walker has left the path after (?P<steps>\\d{1,9}) steps'\n"
            "    literal: 'the walker has left the path'\n"
            "    specificity: 3",
        ),
        "tests/fixtures/diagnose/walker-left-path.txt": f"%% fills: steps=17\n{LOG_LINE}\n",
    },
)  # fmt: skip

_FORMULA = '''"""Rewards as they are."""

from __future__ import annotations

from torch import Tensor

from rltrain.algos.advantages.inputs import AdvantageInputs


def walked(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Advantages `[B, R]`: the reward itself; returns are the same tensor."""
    spread = inputs.spread(inputs.scores)
    return spread, spread
'''
_REFERENCE = '''def walked(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The reward itself."""
    both = per_response(case, lambda row: score(case, row))
    return both, both


'''
ESTIMATOR = Walk(
    bar=5,
    new={"trainer/rltrain/algos/advantages/walked.py": _FORMULA},
    rows={
        "trainer/rltrain/config/estimators.py": (("))  # fmt: skip", '    _row("walked", scale="raw"),\n'),),
        "docs/trainer/algorithms.md": (("| `remax` |", "| `walked` | r | nothing | none |\n"),),
        "tests/trainer/algos/reference.py": (("def reinforce_plus_plus(case", _REFERENCE),),
    },
)

_ENGINE = '''"""The `walked` engine: that of transformers under another name."""

from __future__ import annotations

from rltrain.workers.rollout.hf import HfEngine


class WalkedEngine(HfEngine):
    """See `RolloutEngine`."""
'''
ENGINE = Walk(
    bar=4,
    new={"trainer/rltrain/workers/rollout/walked.py": _ENGINE},
    rows={
        "trainer/rltrain/config/engines.py": ((
            ")  # fmt: skip\nENGINES",
            '    Engine("walked", "rltrain.workers.rollout.walked:WalkedEngine", ("transformers",), 490_000_000,\n'
            "           sleeps=False, has_kv_cache=False, is_parallel=False, takes_arguments=False),\n",
        ),),
        "tests/trainer/workers/rollout/conftest.py": (('"vllm-qwen2", ', '"walked-qwen2", '),),
        "docs/trainer/quickstart.md": ((", never by fallback", ", or a walk (`walked`)"),),
    },
)  # fmt: skip

READER = Walk(
    bar=2,
    rows={
        "rlcheck/data/metric_names.json": ((
            ' "trl": {\n',
            ' "walker": {"sources": ["https://example.org/walker/metrics.py"], "signs": ["w/gain", "w/words"],\n'
            '  "names": {"w/gain": "critic/score/mean", "w/words": "response_length/mean"}},\n',
        ),),
        "tests/measure/run/test_names.py": (('"nemo-rl"} ==', '"walker", '),),
    },
)  # fmt: skip

_FACTS = '''"""Where a walk goes."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class PathFacts(Struct, frozen=True):
    """`surface` is gravel or mud."""

    surface: str = ""
'''
_PROBE = '''"""Where a walk goes."""

from __future__ import annotations

from rlcheck.facts.walk import PathFacts
from rlcheck.measure.machine.context import ProbeContext


def collect(ctx: ProbeContext) -> PathFacts:
    """Return what WALK_SURFACE says."""
    return PathFacts(surface=ctx.environ.get("WALK_SURFACE", "gravel"))
'''
_CASES = '''"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.walk import PathFacts

CASES = {"WLK001": (Facts(path=known(PathFacts(surface="mud"))), Facts(path=known(PathFacts(surface="gravel"))))}
'''
FAMILY = Walk(
    bar=5,
    new={
        "rlcheck/facts/walk.py": _FACTS,
        "rlcheck/measure/machine/path.py": _PROBE,
        "rlcheck/checks/walk.py": _CHECK.format(
            about="Checks of family WLK: walks.", id="WLK001", title="The path is dry", section="path",
            playbook="muddy-path", field="surface", bad="mud",
        ),
    },
    rows={
        "rlcheck/families.py": ((
            '    Family("CFG"', '    Family("WLK", "walk", "Walks", "machine", (Section("path"),)),\n',
        ),),
        "rlcheck/facts/document.py": (
            ("\nSCHEMA_VERSION", "from rlcheck.facts.walk import PathFacts\n"),
            ("    plugins: dict", "    path: Fact[PathFacts] = Fact()\n"),
        ),
    },
)  # fmt: skip

_TRAINER = '''"""Walker."""

from __future__ import annotations

import re
from typing import Any

from rlcheck.measure.config.config import Config
from rlcheck.measure.config.trainer import Trainer


def _derive(config: Config) -> dict[str, Any]:
    return {"nodes": 1, "device": "cuda", "ref": False, "critic": False, "reward_model": False}


TRAINER = Trainer(
    name="walker",
    title="Walker",
    command=re.compile(r"walker\\.train"),
    signs=("walker.train",),
    kind="walk",
    fields={"gpus_per_node": "num_gpus", "rollout.n": "num_samples", "actor.optim.lr": "rate"},
    derive=_derive,
)
'''
_TRAINER_CASES = '''"""Walker: a line, and no mistakes yet."""

from tests.measure.config.trainers.planted import Cases

CASES = Cases(configs={"run.sh": "python -m walker.train --rate 1e-6\\n"}, means={"run.sh": {"actor.optim.lr": 1e-6}},
              mistakes=())
'''
_RECIPE = """def _walker(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    return {"train": arguments(source.text("walker/train.py") or "")}, {"walk": ["train"]}


"""
TRAINER = Walk(
    bar=4,
    new={
        "rlcheck/measure/config/trainers/walker.py": _TRAINER,
        "tests/measure/config/trainers/walker.py": _TRAINER_CASES,
    },
    rows={
        "tests/tools/trainer_keys/recipes.py": (
            ("RECIPES: Mapping", _RECIPE), ('    "trl": Recipe(', '    "walker": Recipe("example/walker", _walker),\n'),
        ),
        "docs/trainers.md": (("| TRL (GRPO", "| Walker | 0.1 | command line | yes | no | no | no | none |\n"),),
    },
)  # fmt: skip

FIRST_CHECK = Walk(
    bar=2,
    new={
        "playbooks/muddy-path.md": playbook("muddy-path", "WLK", "checks: [WLK001]"),
        "tests/checks/walk/cases.py": _CASES,
    },
)
"""The rest of the walk of a check, whose function the walk of a family has written already."""

WALKS = {
    "A check": CHECK,
    "A log playbook": PLAYBOOK,
    "An advantage estimator": ESTIMATOR,
    "An engine": ENGINE,
    "A metrics reader": READER,
    "A family": FAMILY,
    "A trainer's configs": TRAINER,
}
"""By their headings in CONTRIBUTING."""
