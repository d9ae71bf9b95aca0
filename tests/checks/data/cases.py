"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

import msgspec

from rlcheck.facts.data import Column
from rlcheck.facts.document import Facts
from tests.checks.data.build import COLUMN, RLTRAIN, VERL, file, lengths, section

HEALTHY = section(lengths=lengths(longest=40))
TURNS = msgspec.structs.replace(RLTRAIN, multi_turn=True)
VAL = (file(), file(path="/data/val.jsonl", split="val"))
REWRITES = {"plain": "", "thinking": "'<think>' becomes ''"}

CASES: dict[str, tuple[Facts, Facts]] = {
    "DAT001": (section(files=(file(problem="the file ends in the middle"),)), HEALTHY),
    "DAT002": (section(files=(file(lacking="pyarrow cannot be imported", num_rows=0),)), HEALTHY),
    "DAT003": (section(files=(file(num_rows=0, num_lines=3),)), HEALTHY),
    "DAT004": (section(asked=VERL, files=(file(path="/data/a.jsonl.gz", format="gz"),)), section(asked=VERL)),
    "DAT005": (section("json"), section("utf8")),
    "DAT006": (section("utf8"), section("json")),
    "DAT007": (section("bom", files=(file(num_crlf=4),)), section(files=(file(num_crlf=100),))),
    "DAT008": (section("half_pair"), section("control")),
    "DAT009": (section("replaced"), HEALTHY),
    "DAT010": (section("not_finite_used"), HEALTHY),
    "DAT011": (
        section(files=(file(columns=(COLUMN,)),)),
        section(files=(file(columns=(Column(name="answer", kinds={"number": 1, "integer": 98, "null": 1}),)),)),
    ),
    "DAT012": (section("prompt_empty"), HEALTHY),
    "DAT013": (section("message_role"), HEALTHY),
    "DAT014": (section("role_order"), HEALTHY),
    "DAT015": (section("source_missing"), HEALTHY),
    "DAT016": (section("source_unscored", asked=VERL), section(asked=VERL)),
    "DAT017": (section("truth_missing"), HEALTHY),
    "DAT018": (section("truth_unusable"), HEALTHY),
    "DAT019": (section("too_long", lengths=lengths(num_too_long=3)), HEALTHY),
    "DAT020": (section("template", lengths=lengths()), HEALTHY),
    "DAT021": (section(asked=TURNS, lengths=lengths(append=REWRITES)), section(lengths=lengths(append=REWRITES))),
    "DAT022": (section(files=(file(num_rows=5),)), HEALTHY),
    "DAT023": (section("repeated"), HEALTHY),
    "DAT024": (section("contradicts"), section("repeated")),
    "DAT025": (section("leak", files=VAL), section(files=VAL)),
    "DAT026": (section(sources={"train": {"a": 999, "b": 1}}), section(sources={"train": {"a": 1, "b": 1}})),
    "DAT027": (section("media_count", asked=VERL), HEALTHY),
}

FEW = (file(num_rows=3),)
AGAIN = {"path": "/data/again.jsonl", "same_as": "/data/train.jsonl"}
OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "DAT005": (section("json"),),
    "DAT006": (section("wide"),),
    "DAT012": (section("prompt_missing", files=FEW),),
    "DAT015": (section("source_missing", files=FEW),),
    "DAT023": (section(files=(file(), file(**AGAIN))),),
    "DAT025": (section(files=(file(), file(**AGAIN, split="val"))),),
}
