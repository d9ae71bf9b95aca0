"""The stages of a step that trainers time: names under `timing_s/`."""

from __future__ import annotations

IN_STEP = ("gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights",
           "reshard")  # fmt: skip
BESIDE = ("testing", "save_checkpoint")
STEP_TIME = ("timing_s/step", "perf/time_per_step")
