"""What users of RL training hit: one row each, with what they see and the command that answers it.

A test that plants what is seen, and asserts the answer, is marked `@pytest.mark.row("F01")`.
`tests/architecture/test_rows.py` fails for a row without a test; `tests/tools/rows_page.py` makes a page of them.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One thing that users hit."""

    sees: str
    command: str


ROWS = {
    # Installation and versions
    "F01": Row("`import verl` fails, or pip says that two packages want different versions of a third",
               "rlcheck env"),
    "F02": Row("torch works and the engine does not import: an undefined symbol, a missing libcudart or `nms` operator",
               "rlcheck env"),
    "F03": Row("“The NVIDIA driver on your system is too old (found version 12080)”",
               "rlcheck env"),
    "F04": Row("torch from conda and from pip in one environment, or an old editable checkout that is imported instead",
               "rlcheck env"),
    "F05": Row("A Python that is too old, or another patch version of it on some nodes",
               "rlcheck ray"),
    "F06": Row("On ARM: TensorDict “does not support membership checks with the `in` keyword”",
               "rlcheck env"),
    "F07": Row("Triton finds no C compiler, or gcc no Python.h",
               "rlcheck env"),
    "F08": Row("A guide says to call verl's `check_env()` or `test_ray_connectivity()`, and verl has neither",
               "rlcheck diagnose"),
    # Memory
    "F10": Row("Out of GPU memory, although the weights are a fraction of it",
               "rlcheck memory-profile"),
    "F11": Row("Nobody knows the largest micro batch, only rules of thumb",
               "rlcheck memory-profile"),
    "F12": Row("It is not clear which role is on which GPU, or two engines want the same one",
               "rltrain run --dry-run"),
    "F13": Row("vLLM finds no memory for its KV cache: `gpu_memory_utilization` too high or too low",
               "rlcheck memory-profile"),
    "F14": Row("Offload fills the host's memory, roles are sharded in different ways, or tensors are on two devices",
               "rlcheck memory-profile"),
    "F15": Row("“Cannot allocate memory” for a small model on a machine with plenty of it",
               "rlcheck env"),
    # Rollout
    "F20": Row("The rollout returns nothing, and nothing says why",
               "rlcheck rollout"),
    "F21": Row("The engine of another machine is given as 127.0.0.1",
               "rlcheck config"),
    "F22": Row("The engine starts for minutes, and it is not to be seen what it waits for",
               "rltrain run"),
    "F23": Row("On AMD: HIP_, CUDA_ and ROCR_VISIBLE_DEVICES disagree, and Ray or vLLM ends",
               "rlcheck env"),
    "F24": Row("The engine's queue is full, or it preempts its requests",
               "rlcheck memory-profile"),
    "F25": Row("“An illegal memory access was encountered” in the engine",
               "rlcheck diagnose"),
    # Reward and data
    "F30": Row("Broken JSONL, control characters, null or missing fields, rewards that are text",
               "rlcheck data"),
    "F31": Row("A data file is not found: a relative path, `~`, or separators of Windows",
               "rlcheck config"),
    "F32": Row("The reward model reads the actor's token ids, or a conversation that was cut without a word",
               "rltrain run"),
    "F33": Row("All rewards are 0, or nan",
               "rlcheck run"),
    "F34": Row("A guide says that the reward model must have the actor's architecture and tokenizer",
               "rlcheck diagnose"),
    # Numerics
    "F40": Row("The critic's loss becomes inf, then everything nan, and answers are “!!!!”",
               "rlcheck run"),
    "F41": Row("KL rises, a large share of tokens is clipped, entropy collapses",
               "rlcheck run"),
    "F42": Row("The gradient norm rises, and engine and trainer disagree about probabilities",
               "rlcheck drift"),
    "F43": Row("LoRA trains nothing: its target modules are those of another family of models",
               "rlcheck config"),
    "F44": Row("The loss moves on one GPU and not on several",
               "rlcheck run"),
    # Ray, network, cluster
    "F50": Row("Workers never join: “Failed to connect to GCS”",
               "rlcheck ray --head-ip"),
    "F51": Row("Ray's port is taken by an old Ray or by Redis, or an old session is found instead",
               "rlcheck ray"),
    "F52": Row("Under Slurm: “Unable to register worker with raylet”",
               "rlcheck env"),
    "F53": Row("RAY_DEBUG=legacy and RAY_DEBUG_POST_MORTEM=1 together: no breakpoint is ever reached",
               "rlcheck env"),
    "F54": Row("NCCL hangs at its start, or the watchdog ends a collective",
               "rlcheck nccl"),
    "F55": Row("On AMD: collectives crash or are slow on some releases of ROCm",
               "rlcheck env"),
    "F56": Row("In a container: no /dev/infiniband, little /dev/shm, no right to lock memory or to trace",
               "rlcheck env"),
    "F57": Row("A guide forbids `--network=host`, and Ray in containers hangs on an address of a bridge",
               "rlcheck ray"),
    "F58": Row("The Hugging Face cache is closed, another user's, full, or not where TRANSFORMERS_CACHE says",
               "rlcheck env"),
    "F59": Row("A timeline of Ray, a proxy for wandb alone, a script for Slurm, where to look after a crash",
               "rltrain run"),
    # Run and result
    "F60": Row("What will run where, before a GPU is held?",
               "rltrain run --dry-run"),
    "F61": Row("A first run with nothing to download, whose reward rises within minutes",
               "rltrain run toy-ppo"),
    "F62": Row("Data as JSONL, as parquet, as a saved Hugging Face data set, in GSM8K's own form",
               "rlcheck data"),
    "F63": Row("Step, loss, KL, reward, gradient norm, memory, tokens/s and time of gradients in one line",
               "rltrain run"),
    "F64": Row("Is this finished run any good? Its curves, its answers, its pass@1 (`rltrain eval`)",
               "rlcheck run"),
    "F65": Row("The trained model for transformers and others",
               "rltrain export"),
    "F66": Row("What are train batch, mini batch and micro batch?",
               "rltrain run --dry-run"),
    "F67": Row("From one machine to many: torchrun, a Ray cluster, Slurm?",
               "rltrain run"),
    "F68": Row("Try the chain, from the network to one small step, before the big job",
               "rlcheck preflight --smoke"),
    "F69": Row("The run has said nothing for ten minutes",
               "rlcheck run --watch"),
    "F70": Row("“No module named modeling_…”, or “contains custom code which must be executed”",
               "rlcheck config"),
    "F71": Row("Behind a proxy or a mirror: calls to the head, to engines or to the hub fail",
               "rlcheck env"),
    "F72": Row("On AMD, in Docker or Apptainer: /dev/kfd and /dev/dri are closed to this user",
               "rlcheck env"),
    "F73": Row("Ray's debugger stops nowhere, `ray job logs` is empty",
               "rlcheck env"),
}  # fmt: skip
