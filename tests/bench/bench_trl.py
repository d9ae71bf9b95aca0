"""Steps of the real GRPOTrainer, healthy and with a mistake planted: does `rlcheck step` say what it should?

    PYTHONPATH=DIRECTORY_OF_TRL .venv/bin/python -m tests.bench.bench_trl

TRL is in no lock file: `pip install --no-deps --target DIRECTORY_OF_TRL trl==1.16.0` is enough beside the stack.
Seen on 2026-11-23, torch 2.13.0, transformers 5.19.0, CPU: TRL 1.14.2 24 of 24 right. TRL 1.16.0 20 of 23 in a first
run, 8 of 8 healthy; three mistakes were planted wrongly (a loss that is the same where all answers are as long, a rate
that was never set, texts cut behind the callback); planted again, these and "other tokens trained" were 4 of 4. TRL
1.15.0 was not run: without triton its own forward pass ends in an error (`_ChunkedLogProbFunction` is None).

A model of 13,000 random weights on the CPU; nothing is downloaded. Exit code 1 where a verdict is wrong.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback

from rlcheck.capsules.trl import CapsuleCallback
from rlcheck.facts.step import CapsuleProof, StepFacts
from rltrain.proof.plugin import run
from tests.trainer.proof.plan import tokenizer

os.environ["HF_HUB_OFFLINE"] = "1"
Plant = Callable[[Any], None]
FUNCTIONS = """
def digits(completions, answer, **_):
    return [sum(a == b for a, b in zip(text.strip(), truth)) / 3 for text, truth in zip(completions, answer)]


def short(completions, log_metric, **_):
    log_metric("characters", sum(map(len, completions)) / len(completions))
    return [None if not text else 1 / (1 + len(text)) for text in completions]
"""
HEALTHY: dict[str, dict[str, Any]] = {
    "defaults, beta 0.04": {},
    "grpo, 2 iterations, scaled by the batch": {
        "num_iterations": 2, "loss_type": "grpo", "scale_rewards": "batch", "weight_decay": 0.1, "warmup_steps": 2,
        "max_grad_norm": 0.5,
    },
    "bnpo, sequence ratios, 2 steps a generation": {
        "steps_per_generation": 4, "loss_type": "bnpo", "importance_sampling_level": "sequence", "entropy_coef": 0.01,
        "temperature": 0.7,
    },
    "dr_grpo, not scaled, cosine": {
        "loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.0, "lr_scheduler_type": "cosine",
    },
    "cispo, epsilon_high 5": {"loss_type": "cispo", "epsilon_high": 5.0, "num_iterations": 2, "beta": 0.0},
    "sapo, normalize_then_sum": {
        "loss_type": "sapo", "multi_objective_aggregation": "normalize_then_sum", "num_iterations": 2,
    },
    "luspo, delta, bias correction": {
        "loss_type": "luspo", "importance_sampling_level": "sequence", "delta": 2.0, "epsilon": 0.01,
        "num_iterations": 2, "use_bias_correction_kl": True, "max_grad_norm": 0.0,
    },
    "a generation for each pass": {"steps_per_generation": 1, "lr_scheduler_type": "constant_with_warmup"},
}  # fmt: skip


def _output(change: Callable[[dict[str, Any]], None]) -> Plant:
    def plant(trainer: Any) -> None:
        call = trainer._generate_and_score_completions

        def wrong(inputs: Any) -> Any:
            found = call(inputs)
            change(found)
            return found

        trainer._generate_and_score_completions = wrong

    return plant


def _set(name: str, value: Any) -> Plant:
    return lambda trainer: setattr(trainer, name, value)


def _other_reference(trainer: Any) -> None:
    with torch.no_grad():
        for parameter in trainer.ref_model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))


def _stripped(trainer: Any) -> None:
    call = trainer._calculate_rewards
    trainer._calculate_rewards = lambda inputs, prompts, said, ids: call(inputs, prompts, [t[:-1] for t in said], ids)


def _not_clipped(trainer: Any) -> None:
    call = trainer.accelerator.clip_grad_norm_
    trainer.accelerator.clip_grad_norm_ = lambda parameters, limit: call(parameters, float("inf"))


def _neighbours(trainer: Any) -> None:
    call = trainer._calculate_rewards
    trainer._calculate_rewards = lambda *args: call(*args).roll(1, 0)


def _read_late(trainer: Any) -> None:
    call = trainer._get_per_token_logps_and_entropies

    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = call(*args, **kwargs)
        return (found[0].roll(1, 1), *found[1:])

    trainer._get_per_token_logps_and_entropies = wrong


def _half_rate(trainer: Any) -> None:
    class Halved(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            kwargs["lr_scheduler"].base_lrs = [rate / 2 for rate in kwargs["lr_scheduler"].base_lrs]
            for group in kwargs["optimizer"].param_groups:
                group["lr"] /= 2

    trainer.add_callback(Halved)


def _twice(found: dict[str, Any]) -> None:
    found["advantages"] = found["advantages"] * 2


def _rolled(found: dict[str, Any]) -> None:
    found["advantages"] = found["advantages"].roll(1)


def _other_token(found: dict[str, Any]) -> None:
    found["completion_ids"][:, 0] = 5


def _stale(found: dict[str, Any]) -> None:
    found["ref_per_token_logps"] = found["ref_per_token_logps"] - 0.01


# name: the link that is to be named first, words of the finding, settings, what is planted
FAULTS: dict[str, tuple[str, str, dict[str, Any], Plant]] = {
    "advantages doubled": ("advantages", "times 2", {}, _output(_twice)),
    "advantages of neighbours": ("advantages", "row before", {}, _output(_rolled)),
    "advantages not scaled": ("advantages", "scale_rewards 'none'", {}, _set("scale_rewards", "none")),
    "KL with the wrong sign": (
        "loss", "KL with the opposite sign", {"num_iterations": 2}, lambda trainer: setattr(trainer, "beta", -0.04),
    ),
    "beta ten times": ("loss", "beta 0.4", {"num_iterations": 2}, _set("beta", 0.4)),
    "another loss": ("loss", "loss_type 'luspo'", {"loss_type": "dr_grpo"}, _set("loss_type", "luspo")),
    "rewards weighed alike": ("rewards", "weight of 'short' is 1", {}, _set("reward_weights", torch.ones(2))),
    "rewards of neighbours": ("rewards", "row before", {}, _neighbours),
    "another reference": ("reference-log-probs", "another model", {}, _other_reference),
    "reference shifted": ("reference-log-probs", "", {}, _output(_stale)),
    "texts cut before scoring": ("rewards", "rewards of 'short'", {}, _stripped),
    "other tokens trained": ("answers", "or other ones", {}, _output(_other_token)),
    "sampled at another temperature": (
        "sampling", "temperature was 0.5", {}, lambda trainer: setattr(trainer.generation_config, "temperature", 0.5),
    ),
    "log-probabilities a token late": ("update-log-probs", "one token", {"beta": 0.0}, _read_late),
    "not clipped": ("clip", "not clipped", {"max_grad_norm": 0.1}, _not_clipped),
    "half the learning rate": ("optimizer", "learning rate is 0.0005", {}, _half_rate),
}  # fmt: skip


def proven(place: Path, settings: dict[str, Any], plant: Plant | None) -> list[CapsuleProof]:
    """Train four steps of TRL's own trainer at PLACE and prove those that were kept."""
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore  (in no lock file)

    words = tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.15, eos_token_id=words.eos_token_id,
        pad_token_id=0, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(place / "model")
    words.save_pretrained(str(place / "model"))
    answers = [f"{number * 37 % 1000:03d}" for number in range(64)]
    rows = [{"prompt": f"<user>copy {answer}<bot>", "answer": answer} for answer in answers]
    (place / "reward.py").write_text(FUNCTIONS)
    functions: dict[str, Any] = {}
    exec(FUNCTIONS, functions)
    plain = {
        "output_dir": str(place), "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "beta": 0.04,
        "num_generations": 4, "max_completion_length": 6, "max_steps": 4, "report_to": [], "learning_rate": 1e-3,
        "use_cpu": True, "reward_weights": [1.0, 0.5], "save_strategy": "no", "bf16": False, "disable_tqdm": True,
        "logging_strategy": "no",
    }  # fmt: skip
    trainer = GRPOTrainer(
        model=str(place / "model"), reward_funcs=[functions["digits"], functions["short"]],
        args=GRPOConfig(**{**plain, **settings}), train_dataset=Dataset.from_list(rows), processing_class=words,
    )  # fmt: skip
    if plant is not None:
        plant(trainer)
    trainer.add_callback(CapsuleCallback(trainer, steps=(1, 3)))
    trainer.train()
    capsules = sorted(map(str, (place / "capsules").glob("step_*")))
    request = {"capsules": capsules, "checkpoint": None, "score": str(place / "reward.py")}
    found = msgspec.convert(run(request, lambda _: None), StepFacts)
    assert found.failure is None, found.failure
    assert len(found.capsules) == 2, capsules
    return list(found.capsules)


def verdict(name: str, link: str, words: str, proofs: list[CapsuleProof]) -> bool:
    """Print what was found; whether it is what was expected: no difference for LINK "", else LINK first."""
    named = [next((one for one in proof.links if one.status == "differs"), None) for proof in proofs]
    first = next((one for one in named if one is not None), None)
    unknown = sorted({one.name for proof in proofs for one in proof.links if one.status == "unknown"})
    if not link:
        right = first is None and unknown == ["engine-after", "engine-weights"]
    else:
        right = first is not None and first.name == link and words in "; ".join((first.said, *first.causes))
    seconds = max(proof.seconds for proof in proofs)
    said = "no difference" if first is None else f"{first.name}: {first.said} [{'; '.join(first.causes)}]"
    print(f"{'right' if right else 'WRONG'}  {name}: {said}; unknown {', '.join(unknown)}; {seconds:.1f} s", flush=True)
    return right


def main() -> int:
    """Run all; the exit code."""
    import trl  # pyright: ignore  (in no lock file)

    torch.set_num_threads(1)
    begun, wrong = time.monotonic(), 0
    cases = [(name, "", "", settings, None) for name, settings in HEALTHY.items()]
    every = [*cases, *((name, *fault) for name, fault in FAULTS.items())]
    for name, link, words, settings, plant in every:
        with tempfile.TemporaryDirectory() as place:
            wrong += not verdict(name, link, words, proven(Path(place), settings, plant))
    print(f"TRL {trl.__version__}: {len(every) - wrong} of {len(every)} right, {time.monotonic() - begun:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
