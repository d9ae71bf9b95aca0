"""The links of a step of verl: from a rollout dump, or from the batch before its update."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from rlcheck.facts.step import LINKS, Link
from rltrain.proof import links_advantages, links_forward, links_rewards
from rltrain.proof.compare import Unknown, differs, row_name, same
from rltrain.proof.reference import Reference


def prompts(ref: Reference) -> Link:
    """Each prompt has `rollout.n` answers and one ground truth; not which rows of the data set."""
    rows, n = ref.case.rows, ref.case.config("actor_rollout_ref.rollout.n")
    first = {row.uid: row for row in reversed(rows)}
    odd = [at for at, row in enumerate(rows) if (row.prompt_ids, row.prompt_text, row.ground_truth)
           != (first[row.uid].prompt_ids, first[row.uid].prompt_text, first[row.uid].ground_truth)]  # fmt: skip
    if odd:
        said = f"{len(odd)} rows have another prompt or ground truth than the first of their group"
        return differs("prompts", said, len(rows), [row_name(rows[at], at) for at in odd])
    counts = Counter(row.uid for row in rows)
    # Equal prompts of a dump are one group there: a multiple of n.
    if n is not None and (bad := [uid for uid, count in counts.items() if count % int(n)]):
        said = f"{len(bad)} of {len(counts)} prompts do not have rollout.n={n} answers"
        return differs("prompts", said, len(rows), [f"prompt {uid}: {counts[uid]} answers" for uid in bad])
    return same("prompts", len(rows), "which rows of the data set these are was not recomputed")


def _with_tokens(link: Callable[[Reference], Link], field: str = "input_ids") -> Callable[[Reference], Link]:
    def judged(ref: Reference) -> Link:
        if not ref.case.mask.shape[1]:
            raise Unknown("a rollout dump of verl has texts and scores alone; keep the batch for the rest")
        if field not in ref.case.batch:
            raise Unknown(f"the batch has no {field}")
        return link(ref)

    return judged


def _advantages(ref: Reference) -> Link:
    counts = Counter(row.uid for row in ref.case.rows)
    if 1 in counts.values() and ref.case.config("algorithm.adv_estimator") == "grpo":
        raise Unknown("verl keeps the reward of a group of one; that is not recomputed")
    return links_advantages.advantages(ref)


def _missing(name: str) -> Callable[[Reference], Link]:
    def judged(ref: Reference) -> Link:
        raise Unknown(f"a capsule of verl does not have what '{name}' is recomputed from")

    return judged


PROOFS: Mapping[str, Callable[[Reference], Link]] = {
    **{name: _missing(name) for name in LINKS},
    "prompts": prompts,
    "old-log-probs": _with_tokens(links_forward.old_log_probs, "old_log_probs"),
    "rewards": links_rewards.rewards,
    "advantages": _with_tokens(_advantages, "advantages"),
}
"""Links that are judged, of a dump and of a batch; the rest is unknown."""
