"""Fifteen faults of a review, each of which leaves most curves as they are; `bench_faults.py --subtle` runs them.

2026-11-23, two shared cores, one seed and one run each of 30 steps (of 16: 02, 10, 12b, 13): the first finding is the
right one in 15 of 15 (before these checks and metrics: in 5), and in 12b; none of the four healthy runs fails.

    fault                       first before            first now
    01 another reference        RUN037 (warn)           RUN058
    02 padding in the loss      RUN056                  RUN056
    03 positions of answers     DRF006 (wrong)          DRF009
    04 temperature twice        DRF005                  DRF005, 1 / T
    05 rewards of other rows    RUN012, a sign (wrong)  RUN012, rows
    06 micro batches added      none                    RUN060
    07 Adam forgets             none                    RUN056
    08 dropout while reading    DRF002 (wrong)          RUN057
    09 KL coefficient of 10     RUN016 (warn)           RUN036
    10 equal advantages         RUN015                  RUN015
    11 prompts and seeds again  RUN021 (warn)           RUN013
    12 a rank sends nothing     none                    RUN059
    13 value targets late       RUN039                  RUN039 (warn at 16 steps)
    14 last character cut       none                    RUN012, ground truth
    15 head not synced          DRF002                  DRF002
"""

from __future__ import annotations

from tests.bench.faults.fault import ACTOR, ROLLOUT, WITH_KL, Fault

GRPO = "toy-grpo"

SUBTLE = (
    Fault(
        "subtle-01-reference",
        ("RUN058",),
        "the reference is another random model",
        GRPO,
        WITH_KL,
        "reference_is_another",
    ),
    Fault(
        "subtle-02-padding",
        ("RUN056",),
        "padding is in the loss",
        GRPO,
        mistake="padding_in_the_loss",
    ),
    Fault(
        "subtle-03-positions",
        ("DRF009",),
        "training has the response one position further away",
        mistake="response_positions_shifted",
    ),
    Fault(
        "subtle-04-temperature",
        ("DRF005",),
        "training divides by the temperature twice",
        overrides=(f"{ROLLOUT}.temperature=0.7",),
        mistake="temperature_twice",
    ),
    Fault(
        "subtle-05-rewards-shifted",
        ("RUN012",),
        "advantages are of the row before",
        GRPO,
        mistake="rewards_shifted_in_the_estimator",
    ),
    Fault(
        "subtle-06-accumulation",
        ("RUN060",),
        "the losses of four micro batches are added, not divided",
        overrides=(f"{ACTOR}.ppo_micro_batch_size_per_gpu=16",),
        mistake='micro_losses_are_summed {"count": 4}',
    ),
    Fault(
        "subtle-07-optimizer",
        ("RUN056",),
        "the optimizer's state is emptied after each step",
        GRPO,
        mistake="optimizer_forgets",
    ),
    Fault(
        "subtle-08-dropout",
        ("RUN057",),
        "dropout is on while old log-probabilities are read",
        mistake='dropout_while_reading {"share": 0.1}',
    ),
    Fault(
        "subtle-09-kl",
        ("RUN036",),
        "the KL coefficient is 10, not 0.1",
        GRPO,
        (f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=10"),
    ),
    Fault(
        "subtle-10-mean",
        ("RUN015",),
        "advantages are replaced by their mean",
        mistake="advantages_are_their_mean",
    ),
    Fault(
        "subtle-11-same-batch",
        ("RUN013",),
        "each step has the prompts and the seeds of the first",
        GRPO,
        mistake="same_batch_each_step",
    ),
    Fault(
        "subtle-12-rank",
        ("RUN059",),
        "rank 1 sends no gradient",
        mistake='rank_sends_nothing {"rank": 1}',
    ),
    Fault(
        "subtle-12b-wire",
        ("RUN059",),
        "rank 1's gradient is lost on the wire",
        GRPO,
        mistake='rank_is_lost_on_the_wire {"rank": 1}',
        extra=True,
    ),
    Fault(
        "subtle-13-values",
        ("RUN039",),
        "the critic learns the return of the token before",
        mistake="targets_a_token_late",
    ),
    Fault(
        "subtle-14-cut",
        ("RUN012",),
        "the answer is scored without its last character",
        mistake="last_character_cut",
    ),
    Fault(
        "subtle-15-head",
        ("DRF002",),
        "the head stays as it was at the start",
        mistake='part_stays {"part": "lm_head"}',
    ),
)

SUBTLE_HEALTHY = (
    Fault("subtle-healthy-ppo", (), "nothing is wrong"),
    Fault("subtle-healthy-grpo", (), "nothing is wrong", GRPO),
    Fault("subtle-healthy-rate", (), "five times the learning rate", overrides=(f"{ACTOR}.optim.lr=5e-3",)),
    Fault(
        "subtle-healthy-one-rank",
        (),
        "one rank, a KL loss, and micro batches of 16 rows",
        GRPO,
        (*WITH_KL, "trainer.num_cpu_ranks=1", f"{ACTOR}.ppo_micro_batch_size_per_gpu=16"),
    ),
)
