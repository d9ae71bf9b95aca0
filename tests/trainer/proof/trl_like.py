"""A trainer with the methods, fields and events of TRL's GRPOTrainer that a capsule is made from, in plain torch.

What TRL itself does with the same callback is tried by `tests/bench/bench_trl.py`.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.trainer.proof.plan import tokenizer


@dataclass
class Arguments:
    """Of `GRPOConfig`, by its names."""

    output_dir: str
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    steps_per_generation: int = 2
    generation_batch_size: int = 8
    num_generations: int = 4
    num_iterations: int = 1
    max_completion_length: int = 6
    loss_type: str = "dapo"
    scale_rewards: str = "group"
    beta: float = 0.04
    epsilon: float = 0.2
    temperature: float = 1.0
    learning_rate: float = 1e-3
    max_grad_norm: float = 1.0
    max_steps: int = 4
    seed: int = 42
    reward_weights: tuple[float, ...] = (1.0, 0.5)
    optim: str = "adamw_torch"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Accelerator:
    """One process."""

    num_processes, process_index, is_main_process, sync_gradients = 1, 0, True, False
    optimizer_step_was_skipped, scaler, distributed_type, device = False, None, "DistributedType.NO", "cpu"

    def unwrap_model(self, model: Any) -> Any:
        return model

    def clip_grad_norm_(self, parameters: Any, limit: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)


REWARDS = """
def digits(completions, answer, **_):
    return [sum(a == b for a, b in zip(text.strip(), truth)) / 3 for text, truth in zip(completions, answer)]


def short(completions, **_):
    return [1 / (1 + len(text)) for text in completions]
"""


class Trainer:
    """GRPO as TRL has it, without workers, evaluation or logs."""

    def __init__(self, place: Path, **settings: Any) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.args = Arguments(str(place), **settings)
        self.processing_class = tokenizer()
        config = Qwen2Config(
            vocab_size=len(self.processing_class), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.2,
            eos_token_id=self.processing_class.eos_token_id, pad_token_id=0, tie_word_embeddings=True,
        )  # fmt: skip
        self.model: Any = Qwen2ForCausalLM(config).train()
        self.ref_model = deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.learning_rate, weight_decay=0.0)
        self.accelerator, self.state = Accelerator(), SimpleNamespace(global_step=0, max_steps=self.args.max_steps)
        self.generation_config = SimpleNamespace(temperature=self.args.temperature, top_p=1.0, top_k=0,
                                                 max_new_tokens=self.args.max_completion_length)  # fmt: skip
        self.num_generations, self.num_iterations = self.args.num_generations, self.args.num_iterations
        functions: dict[str, Any] = {}
        exec(REWARDS, functions)
        self.reward_func_names = ["digits", "short"]
        self.reward_funcs = [functions[name] for name in self.reward_func_names]
        self.reward_weights, self.beta = torch.tensor(self.args.reward_weights), self.args.beta
        self.scale_rewards, self.loss_type = self.args.scale_rewards, self.args.loss_type
        self.peak = self.args.learning_rate
        self._metrics: Any = {"train": defaultdict(list)}
        self.callbacks: list[Any] = []

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def _event(self, name: str) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(self.args, self.state, None, optimizer=self.optimizer, model=self.model)

    def train(self) -> None:
        args = self.args
        every, done, batches = args.steps_per_generation * args.num_iterations, 0, list[Any]()
        while self.state.global_step < args.max_steps:
            rate = self.peak * (1 - self.state.global_step / args.max_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self._event("on_step_begin")
            for micro in range(args.gradient_accumulation_steps):
                if done % every == 0:
                    batches = self._split(self._generate_and_score_completions(self._given(done // every)))
                self.accelerator.sync_gradients = micro == args.gradient_accumulation_steps - 1
                self.training_step(self.model, batches[done % args.steps_per_generation], None)
                done += 1
            self.accelerator.clip_grad_norm_(self.model.parameters(), args.max_grad_norm)
            self._event("on_pre_optimizer_step")
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.state.global_step += 1
            self._event("on_step_end")
        self._event("on_train_end")

    def _given(self, number: int) -> list[dict[str, str]]:
        prompts = self.args.generation_batch_size // self.args.num_generations
        answers = [f"{(number * prompts + at) * 37 % 1000:03d}" for at in range(prompts)]
        rows = [{"prompt": f"<user>copy {answer}<bot>", "answer": answer} for answer in answers]
        return [row for row in rows for _ in range(self.args.num_generations)]

    def _split(self, output: dict[str, Any]) -> list[dict[str, Any]]:
        """Shuffled, as TRL does it: every tensor with rows."""
        order = torch.randperm(len(output["completion_ids"]))
        parts = order.split(self.args.per_device_train_batch_size)
        return [{key: value[part] if value.ndim else value for key, value in output.items()} for part in parts]

    def _generate_and_score_completions(self, inputs: list[dict[str, str]]) -> dict[str, Any]:
        end, limit = self.processing_class.eos_token_id, self.args.max_completion_length
        prompts = [self.processing_class(row["prompt"])["input_ids"] for row in inputs]
        said: list[list[int]] = []
        for prompt in prompts:
            ids = list(prompt)
            while len(ids) - len(prompt) < limit and ids[-1] != end:
                with torch.no_grad():
                    logits = self.model(torch.tensor([ids])).logits[0, -1] / self.generation_config.temperature
                ids.append(int(torch.multinomial(logits.softmax(-1), 1)))
            said.append(ids[len(prompt) :])
        wide, most = max(map(len, said)), max(map(len, prompts))
        found: dict[str, Any] = {
            "prompt_ids": torch.tensor([[0] * (most - len(ids)) + ids for ids in prompts]),
            "prompt_mask": torch.tensor([[0] * (most - len(ids)) + [1] * len(ids) for ids in prompts]),
            "completion_ids": torch.tensor([ids + [0] * (wide - len(ids)) for ids in said]),
            "completion_mask": torch.tensor([[1] * len(ids) + [0] * (wide - len(ids)) for ids in said]),
        }
        found["num_items_in_batch"] = found["completion_mask"].sum()
        with torch.no_grad():
            if self.args.gradient_accumulation_steps % (self.args.steps_per_generation * self.num_iterations):
                found["old_per_token_logps"] = self._logps(self.model, found)
            if self.beta:
                found["ref_per_token_logps"] = self._logps(self.ref_model, found)
        texts = [self.processing_class.decode(ids, skip_special_tokens=True) for ids in said]
        parts = self._calculate_rewards(inputs, [row["prompt"] for row in inputs], texts, said)
        rewards = (parts * self.reward_weights).sum(-1)
        self._metrics["train"]["reward"].append(float(rewards.mean()))
        groups = rewards.view(-1, self.num_generations)
        away = groups - groups.mean(1, keepdim=True)
        if self.scale_rewards == "group":
            away = away / (groups.std(1, keepdim=True) + 1e-4)
        found["advantages"] = away.flatten()
        return found

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Tensor:
        columns = {"answer": [row["answer"] for row in inputs], "prompts": prompts, "completion_ids": ids}
        values = [function(completions=completions, **columns) for function in self.reward_funcs]
        return torch.tensor(values).T

    def _logps(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        real = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        return self._get_per_token_logps_and_entropies(model, ids, real, inputs["completion_ids"].shape[1])[0]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **_: Any
    ) -> tuple[Tensor, Tensor, None]:
        places = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        logits = model(input_ids, attention_mask=attention_mask, position_ids=places).logits
        log_p = (logits[:, -logits_to_keep - 1 : -1] / self.args.temperature).log_softmax(-1)
        picked = log_p.gather(-1, input_ids[:, -logits_to_keep:, None])[..., 0]
        return picked, -(log_p.exp() * log_p).sum(-1), None

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> Tensor:
        with contextlib.nullcontext():
            loss = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()

    def compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        mask, adv = inputs["completion_mask"], inputs["advantages"][:, None]
        log_p = self._logps(model, inputs)
        ratio = (log_p - inputs.get("old_per_token_logps", log_p.detach())).exp()
        terms = -torch.minimum(ratio * adv, ratio.clamp(1 - self.args.epsilon, 1 + self.args.epsilon) * adv)
        if self.beta:
            away = inputs["ref_per_token_logps"] - log_p
            terms = terms + self.beta * (away.exp() - away - 1)
        steps = self.args.gradient_accumulation_steps
        if self.loss_type == "dapo":
            return (terms * mask).sum() / (inputs["num_items_in_batch"] * steps / self.args.steps_per_generation)
        if self.loss_type == "dr_grpo":
            return (terms * mask).sum() / (len(mask) * self.args.max_completion_length) / steps
        return ((terms * mask).sum(-1) / mask.sum(-1)).mean() / steps
