"""STP001-STP020: a training step did what its config says, link by link, recomputed from its capsule."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, unknown
from rlcheck.checks.rollout.start import details_of
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.step import CapsuleProof, Link
from rlcheck.text import listed

_SHOWN = 4
_LINKS = (2, 3, 4, 20, *range(5, 20))
"""Numbers of the checks of links, in the order of the chain."""
_ORDER = ("STP001", *(f"STP{number:03d}" for number in _LINKS))


def _before(id: str) -> tuple[str, ...]:
    """The links before: what differs there goes on through all that follow."""
    return _ORDER[: _ORDER.index(id)]


def _judged(facts: Facts, name: str, expected: str, when: str = "") -> Verdict:
    """The link NAME of all capsules: the first that differs counts."""
    found = [(proof, link) for proof in need(facts.step).capsules for link in proof.links if link.name == name]
    if not found:
        return skip("no step has this link")
    wrong = [(proof, link) for proof, link in found if link.status == "differs"]
    if wrong:
        params = {"when": f"{when} step {wrong[0][0].step}"} if when else {}
        return _different(*wrong[0], expected, tuple(proof for proof, _ in wrong[1:]), params)
    judged = [link for _, link in found if link.status == "same"]
    if all(link.status == "absent" for _, link in found):
        return skip(found[0][1].said or "no step has this link")
    if not judged:
        return unknown(next(link.said for _, link in found if link.status == "unknown"))
    open_ones = [proof for proof, link in found if link.status == "unknown"]
    count = sum(link.compared for link in judged)
    words = f"{count} numbers of {len(judged)} steps are the same" if len(judged) > 1 else f"{count} are the same"
    notes = dict.fromkeys(link.said for link in judged if link.said)
    left = [f"not judged: {_steps(open_ones)}"] if open_ones else []
    return passed("; ".join((words, *notes, *left)))


def _different(
    proof: CapsuleProof, link: Link, expected: str, others: tuple[CapsuleProof, ...], params: dict[str, str]
) -> Verdict:
    also = f"; also in {_steps(others)}" if others else ""
    details = [f"where: {listed(link.where, _SHOWN)}"] if link.where else []
    details += [f"explained by: {cause}" for cause in link.causes]
    if link.largest is not None:
        unit = f" {link.unit}" if link.unit else ""
        bound = "" if link.bound is None else f"; rounding explains {link.bound:.2g}"
        details.append(f"largest difference: {link.largest:.3g}{unit}{bound}")
    return fail(
        expected,
        f"step {proof.step}: {link.said}{also}",
        details=tuple(details),
        evidence=(evidence(f"step.{link.name}", f"{link.compared} compared", f"recomputed from {proof.path}"),),
        params=params,
    )


def _steps(proofs: list[CapsuleProof] | tuple[CapsuleProof, ...]) -> str:
    return "step" + "s" * (len(proofs) > 1) + " " + ", ".join(str(proof.step) for proof in proofs)


@check("STP001", "The step can be recomputed", needs=("step",), playbook="step-not-recomputed",
       problem="The step could be neither recomputed nor run again")  # fmt: skip
def recomputed(facts: Facts) -> Verdict:
    """Reads the capsule and recomputes the step by a reference of its own.

    What it does:
        One process, float32 and float64, rows one by one, plain formulas of the papers; no line of the trainer.

    Why it matters:
        Curves show only faults that were seen before. What is recomputed shows any.
    """
    step = need(facts.step)
    if step.failure is not None:
        return fail("the step again", step.failure.root or step.failure.line, details=details_of(step.failure))
    if step.replays:
        return skip("the step was run again, not recomputed")
    if not step.capsules:
        return unknown("no capsule was read")
    open_links = {link.name for proof in step.capsules for link in proof.links if link.status == "unknown"}
    links = sum(len(proof.links) for proof in step.capsules)
    words = f"{links} links of {_steps(step.capsules)} in {step.seconds:.0f} s"
    return passed(f"{words}; not judged: {', '.join(sorted(open_links))}" if open_links else words)


@check("STP002", "The step takes the prompts that are its turn",
       needs=("step",), playbook="step-other-prompts", caused_by=_before("STP002"),
       problem="The step takes other prompts than its turn")  # fmt: skip
def takes_its_prompts(facts: Facts) -> Verdict:
    """Compares the step's prompts with those that data, seed and order give it.

    What it does:
        Computes the order of the data from the seed, and reads off which rows this step takes.

    Why it matters:
        Prompts that come again at each step, or never, train on a part of the data, and no curve says so.
    """
    return _judged(facts, "prompts", "the rows that the data's order gives this step")


@check("STP003", "Prompts become the tokens that the template gives",
       needs=("step",), playbook="step-other-prompts", caused_by=_before("STP003"),
       problem="Prompts become other tokens than the template gives")  # fmt: skip
def prompt_tokens(facts: Facts) -> Verdict:
    """Renders each prompt again and compares its tokens with those that the engine and training read.

    What it does:
        Applies the chat template of the kept tokenizer to the messages. Compares with what the engine says it read.

    Why it matters:
        A token more or less makes two policies of one: what was sampled is not what is trained.
    """
    return _judged(facts, "prompt-ids", "the tokens of each prompt, in the engine and in training")


@check("STP004", "Engines are asked to sample as configured",
       needs=("step",), playbook="step-other-prompts", caused_by=_before("STP004"),
       problem="Engines are asked to sample otherwise than configured")  # fmt: skip
def sampled_as_configured(facts: Facts) -> Verdict:
    """Compares what the engines were asked for with the config.

    What it does:
        Looks at temperature, top-p, top-k, lengths, stops, and at the seed of each request.

    Why it matters:
        Equal seeds give equal answers; another temperature is another policy.
    """
    return _judged(facts, "sampling", "temperature, limits and seeds of the config")


@check("STP020", "A step begins with the weights of the model's files, or of the step before",
       needs=("step",), playbook="step-other-log-probs", caused_by=_before("STP020"),
       problem="The step begins with other weights than the model's files hold, or the step before left")  # fmt: skip
def begins_with_its_files(facts: Facts) -> Verdict:
    """Compares the actor and the critic with the model's files, the checkpoint resumed from, or the step before.

    What it does:
        Reads the safetensors where they are, else compares with their checksums, which the trainer's controller took.
        In a later step: with weights and moments in the capsule of the step before, where it is beside this one.

    Why it matters:
        A tensor that was loaded wrongly is wrong everywhere alike: nothing else in the step differs.
    """
    return _judged(facts, "start-weights", "the weights of the model's files, of the checkpoint, or of the step before")


@check("STP005", "Engines hold the actor's weights when they sample",
       needs=("step",), playbook="drift-weights-not-taken", caused_by=_before("STP005"),
       problem="Engines hold other weights than the actor when they sample")  # fmt: skip
def engine_weights(facts: Facts) -> Verdict:
    """Compares the engine's weights, read back before it sampled, with the actor's own parameters.

    What it does:
        Compares checksums of whole tensors; the actor's are taken from its parameters, not from what was sent.

    Why it matters:
        An engine with other weights samples from another policy.
    """
    return _judged(facts, "engine-weights", "the actor's weights in each engine", "before")


@check("STP006", "Answers are scored and trained as they were sampled",
       needs=("step",), playbook="step-other-prompts", caused_by=_before("STP006"),
       problem="Answers change between sampling, scoring and training")  # fmt: skip
def answers_as_sampled(facts: Facts) -> Verdict:
    """Compares the engine's tokens with those that are trained on, and their text with what was scored.

    What it does:
        Decodes the tokens, and looks at masks, lengths and ends.

    Why it matters:
        A token lost on the way is neither scored nor learnt; one added is learnt though it was never sampled.
    """
    return _judged(facts, "answers", "the engine's tokens, and their text")


@check("STP007", "The engine's log-probabilities are those of its weights",
       needs=("step",), playbook="step-other-log-probs", caused_by=_before("STP007"),
       problem="The engine's log-probabilities are not those of its weights")  # fmt: skip
def engine_log_probs(facts: Facts) -> Verdict:
    """Recomputes the engine's log-probabilities by a plain forward pass.

    What it does:
        Reads each row alone, without packing, cache or kernels of the engine, at the configured temperature.

    Why it matters:
        Importance weights and bypass divide by them.
    """
    return _judged(facts, "engine-log-probs", "log-probabilities of the weights that sampled")


@check("STP008", "Old log-probabilities are those of the actor's weights",
       needs=("step",), playbook="step-other-log-probs", caused_by=_before("STP008"),
       problem="Old log-probabilities are not those of the actor's weights")  # fmt: skip
def old_log_probs(facts: Facts) -> Verdict:
    """Recomputes the old log-probabilities by a plain forward pass.

    What it does:
        Reads each row alone: what packing, masks, positions, dropout or sharding changed shows as a difference.

    Why it matters:
        The ratio of PPO starts from them.
    """
    return _judged(facts, "old-log-probs", "log-probabilities of the weights before the update")


@check("STP009", "The reference's log-probabilities are those of its weights",
       needs=("step",), playbook="step-other-log-probs", caused_by=_before("STP009"),
       problem="The reference's log-probabilities are not those of its weights")  # fmt: skip
def reference_log_probs(facts: Facts) -> Verdict:
    """Recomputes the reference's log-probabilities.

    What it does:
        Reads each row alone with the reference's weights, which before the first update are the actor's.

    Why it matters:
        The KL pulls the policy to this model, right or wrong.
    """
    return _judged(facts, "reference-log-probs", "log-probabilities of the model that the run began with")


@check("STP010", "Values are those of the critic's weights",
       needs=("step",), playbook="step-other-log-probs", caused_by=_before("STP010"),
       problem="Values are not those of the critic's weights")  # fmt: skip
def critic_values(facts: Facts) -> Verdict:
    """Recomputes the critic's values.

    What it does:
        Reads each row alone: backbone, then a linear head in float32.

    Why it matters:
        Advantages are differences of values: what is shifted by a token or a row teaches the wrong one.
    """
    return _judged(facts, "values", "values of the critic's weights")


@check("STP011", "Rewards are those of the config's rules",
       needs=("step",), playbook="step-other-rewards", caused_by=_before("STP011"),
       problem="Rewards are not those of the config's rules")  # fmt: skip
def rewards_by_rules(facts: Facts) -> Verdict:
    """Scores the answers again by the config's rules.

    What it does:
        Recomputes each part and its weight, the sum, and the token that it is put on. A user's own function is run
        with `--score FILE` alone.

    Why it matters:
        Everything that is learnt is learnt from them.
    """
    return _judged(facts, "rewards", "scores by the config's rules and weights")


@check("STP012", "Advantages follow from the rewards as the estimator says",
       needs=("step",), playbook="step-other-rewards", caused_by=_before("STP012"),
       problem="Advantages do not follow from the rewards")  # fmt: skip
def advantages_follow(facts: Facts) -> Verdict:
    """Recomputes token rewards, advantages, returns and importance weights from the recorded rewards and values.

    What it does:
        Uses the paper's formula in float64.

    Why it matters:
        A sign, a row or a missing division here turns learning round, or stops it.
    """
    return _judged(facts, "advantages", "advantages by the estimator's formula")


@check("STP013", "The update learns from every row of the batch, once an epoch",
       needs=("step",), playbook="step-other-update", caused_by=_before("STP013"),
       problem="The update learns from other rows than the batch's")  # fmt: skip
def rows_of_the_update(facts: Facts) -> Verdict:
    """Compares the rows and fields that the ranks learnt from with the batch.

    What it does:
        Computes which rows make a mini batch and which rank gets them; compares tokens, masks, advantages.

    Why it matters:
        A row that is missing or paired with another's advantage is noise that no curve names.
    """
    return _judged(facts, "update-rows", "each row once an epoch, in the mini batches of the config")


@check("STP014", "The update begins with the old log-probabilities",
       needs=("step",), playbook="step-other-log-probs", caused_by=_before("STP014"),
       problem="The update's log-probabilities are not those of the weights")  # fmt: skip
def update_log_probs(facts: Facts) -> Verdict:
    """Recomputes the log-probabilities of the first mini batch as the update read them.

    What it does:
        Before the first optimizer step they are the old ones but for rounding.

    Why it matters:
        A ratio that starts away from 1 is clipped before anything is learnt.
    """
    return _judged(facts, "update-log-probs", "log-probabilities of the weights, in the pass that learns")


@check("STP015", "The loss is the formula of the config",
       needs=("step",), playbook="step-other-update", caused_by=_before("STP015"),
       problem="The loss is not the formula of the config")  # fmt: skip
def loss_of_the_config(facts: Facts) -> Verdict:
    """Recomputes the loss of each mini batch, actor and critic.

    What it does:
        Uses the recorded log-probabilities, advantages and masks; aggregation, KL and entropy as the config says.

    Why it matters:
        Padding in the mean, or a factor of micro batches, changes the step's size and hides behind Adam.
    """
    return _judged(facts, "loss", "the loss by its formula, averaged as configured")


@check("STP016", "The gradient is that of the loss",
       needs=("step",), playbook="step-other-update", caused_by=_before("STP016"),
       problem="The gradient is not that of the loss")  # fmt: skip
def gradient_of_the_loss(facts: Facts) -> Verdict:
    """Recomputes the gradient of the first mini batch, tensor by tensor, and each rank's share.

    What it does:
        One process, rows one by one, float32, autograd.

    Why it matters:
        A rank whose share is lost halves the batch in silence.
    """
    return _judged(facts, "gradient", "the gradient of the recomputed loss, over all ranks")


@check("STP017", "Clipping is that of the config",
       needs=("step",), playbook="step-other-update", caused_by=_before("STP017"),
       problem="Clipping is not that of the config")  # fmt: skip
def clipped_as_configured(facts: Facts) -> Verdict:
    """Recomputes the gradient's norm and how much of it was used.

    What it does:
        The norm over all tensors and ranks of the first mini batch, its clip, and what was skipped as not finite.

    Why it matters:
        A clip by one rank's norm, or none, makes steps of another length.
    """
    return _judged(facts, "clip", "norm and clip of the config")


@check("STP018", "Weights change as AdamW says",
       needs=("step",), playbook="step-other-update", caused_by=_before("STP018"),
       problem="Weights do not change as AdamW says")  # fmt: skip
def adamw_step(facts: Facts) -> Verdict:
    """Recomputes the optimizer's step from gradient, moments and learning rate.

    What it does:
        The learning rate of each step by its schedule; AdamW's formula in float64, tensor by tensor.

    Why it matters:
        Moments that are emptied, or a tensor that stands still, look like slow learning.
    """
    return _judged(facts, "optimizer", "weights and moments after AdamW's step")


@check("STP019", "Engines take the new weights",
       needs=("step",), playbook="drift-weights-not-taken", caused_by=_before("STP019"),
       problem="Engines do not take the new weights")  # fmt: skip
def engine_after(facts: Facts) -> Verdict:
    """Compares the engine's weights after the step with the actor's own parameters.

    What it does:
        Asks every engine, where its weights live, for checksums after the sync that follows the step.

    Why it matters:
        The next answers come from these weights.
    """
    return _judged(facts, "engine-after", "the new weights in each engine", "after")
