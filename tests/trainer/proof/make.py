"""Makes step capsules with plain torch: padded batches, autograd, `torch.optim.AdamW`. What is planted is a hook."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlcheck.facts.capsule import Capsule, CapsuleRow, EngineRecord, MicroRecord, MiniRecord, Origin, Sampled
from rltrain.algos.advantages import compute_advantages
from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.algos.bypass import correction_now
from rltrain.algos.kl import kl_penalty
from rltrain.algos.policy_losses import POLICY_LOSSES, PolicyLossInputs, reinforce
from rltrain.algos.rejection import rollout_rs_kept
from rltrain.algos.rewards import apply_kl_to_reward
from rltrain.algos.rollout_correction import rollout_is_weights
from rltrain.algos.value_loss import value_loss_terms
from rltrain.config.schema import RolloutCorrectionConfig
from rltrain.workers.sync.checksum import checksum
from tests.trainer.proof.parts import Value, seed_of
from tests.trainer.proof.plan import DATA_SIZE, WIDTH, Plan, config_of, tokenizer


def make(place: Path, plan: Plan) -> Path:
    """A capsule of PLAN at PLACE."""
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    return _Maker(place, plan).make()


class _Maker:
    def __init__(self, place: Path, plan: Plan) -> None:
        self.place, self.plan, self.config, self.tokenizer = place, plan, config_of(plan), tokenizer()
        self.model_config = Qwen2Config(
            vocab_size=len(self.tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.15,
            eos_token_id=self.tokenizer.eos_token_id, pad_token_id=0, tie_word_embeddings=True, attention_dropout=0.0,
        )  # fmt: skip
        self.actor, self.reference = Qwen2ForCausalLM(self.model_config), Qwen2ForCausalLM(self.model_config)
        self.critic = Value(self.model_config)
        self.weights: dict[str, Tensor] = {}
        self.fields: dict[str, Tensor] = {}

    def hook(self, name: str, value: Any) -> Any:
        return self.plan.hooks.get(name, lambda same: same)(value)

    def make(self) -> Path:
        rows = self._rows()
        self._batch(rows)
        self._step()
        self.place.mkdir(parents=True)
        rows = self.hook("rows", rows)
        head = self._head()
        save_file(
            {k: v.detach().clone() for k, v in self.hook("fields", self.fields).items()},
            self.place / "batch.safetensors",
        )
        save_file(self.weights, self.place / "weights.safetensors")
        (self.place / "rows.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        (self.place / "capsule.json").write_bytes(msgspec.json.encode(self.hook("head", head)))
        self.tokenizer.save_pretrained(str(self.place / "tokenizer"))
        return self.place

    # Rows

    def _rows(self) -> list[CapsuleRow]:
        plan = self.plan
        epoch, at = divmod(plan.step - 1, DATA_SIZE // plan.prompts)
        key = int.from_bytes(hashlib.sha256(f"epoch {epoch} of seed {plan.seed}".encode()).digest()[:8], "big") >> 1
        order = torch.randperm(DATA_SIZE, generator=torch.Generator().manual_seed(key)).tolist()
        rows: list[CapsuleRow] = []
        for index in self.hook("order", order[at * plan.prompts : (at + 1) * plan.prompts]):
            digits = f"{(index * 7919) % 10000:04d}"[: 2 + index % 3]
            messages = ({"role": "user", "content": f"copy {digits}"},)
            text = f"<user>copy {digits}<bot>"
            ids = tuple(self.tokenizer(text)["input_ids"])
            for sample in range(plan.n):
                rows.append(self._answered(index, f"{epoch}-{index}", sample, messages, text, ids, digits))
        return rows

    def _answered(
        self, index: int, uid: str, sample: int, messages: Any, text: str, prompt: tuple[int, ...], truth: str
    ) -> CapsuleRow:
        words = f"{self.plan.seed}/{self.plan.step}/{uid}/{sample}"
        seed = self.hook("request_seed", seed_of(words) >> 1)
        generator, ids, log_probs = torch.Generator().manual_seed(seed), list(prompt), list[float]()
        with torch.no_grad():
            while len(log_probs) < WIDTH and ids[-1] != self.tokenizer.eos_token_id:
                logits = self.actor(torch.tensor([ids])).logits[0, -1] / self.hook("temperature", self.plan.temperature)
                token = int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
                log_probs.append(float(logits.log_softmax(-1)[token]))
                ids.append(token)
        answer = tuple(ids[len(prompt) :])
        said = self.tokenizer.decode(list(answer), skip_special_tokens=True)
        parts = self._parts(said, truth)
        score = self.hook("score", parts["digits"] + 0.5 * parts["short"])
        reason = "stop" if answer[-1] == self.tokenizer.eos_token_id else "length"
        return CapsuleRow(uid=uid, index=index, sample=sample, data_source="toy", messages=messages, prompt_text=text,
                          prompt_ids=prompt, text=said, ground_truth=truth, extra_info={}, reward_parts=parts,
                          score=score, seed=seed, response_ids=answer, log_probs=tuple(log_probs),
                          finish_reason=reason)  # fmt: skip

    def _parts(self, said: str, truth: str) -> dict[str, float]:
        said = self.hook("scored_text", said).strip()
        right = sum(a == b for a, b in zip(said, truth, strict=False))
        # Real numbers, so that answers differ: the toy is random.
        return self.hook("parts", {"digits": right / max(len(said), len(truth)), "short": float(len(said) <= 4)})

    def _batch(self, rows: list[CapsuleRow]) -> None:
        plan, f = self.plan, self.fields
        width, wide = max(len(r.prompt_ids) for r in rows), max(len(r.response_ids or ()) for r in rows)
        ids, real = (
            torch.zeros(len(rows), width + wide, dtype=torch.long),
            torch.zeros(len(rows), width + wide, dtype=torch.bool),
        )
        engine = torch.zeros(len(rows), wide)
        for at, row in enumerate(rows):
            both = [*row.prompt_ids, *(row.response_ids or ())]
            start = width - len(row.prompt_ids)
            ids[at, start : start + len(both)], real[at, start : start + len(both)] = torch.tensor(both), True
            engine[at, : len(row.log_probs or ())] = torch.tensor(row.log_probs)
        f |= {"input_ids": ids, "attention_mask": real, "position_ids": (real.long().cumsum(-1) - 1).clamp(min=0),
              "responses": ids[:, width:].clone(), "response_mask": real[:, width:].clone(),
              "rollout_log_probs": engine,
              "policy_version": torch.full((len(rows),), plan.step - 1)}  # fmt: skip
        mask = f["response_mask"]
        every = list(range(len(rows)))
        with torch.no_grad():
            log_p, entropy = self.policy(self.actor, every)
            f["old_log_probs"], f["entropys"] = self.hook("old_log_probs", log_p), entropy
            if plan.bypass:
                f["old_log_probs"] = f["rollout_log_probs"] = engine = self.hook("engine", engine)
            if plan.kl_loss or plan.kl_reward:
                f["ref_log_probs"] = self.hook("ref_log_probs", self.policy(self.reference, every)[0])
            if plan.critic:
                f["values"] = self.hook("values", self.value(every))
        last = mask.long().cumsum(-1) == mask.sum(-1, keepdim=True)
        scores = torch.tensor([row.score for row in rows])[:, None] * (last & mask)
        f["token_level_scores"] = scores
        if plan.estimator == "remax":
            f["reward_baselines"] = torch.rand(plan.prompts).repeat_interleave(plan.n)
        rewards = scores
        if plan.kl_reward:
            rewards, _ = apply_kl_to_reward(
                scores, f["old_log_probs"], f["ref_log_probs"], mask, self.hook("kl_coef", 0.1), plan.kl_reward
            )
        f["token_level_rewards"] = rewards
        groups = torch.tensor([row.index for row in rows])
        adv, returns = compute_advantages(
            plan.estimator, token_level_rewards=rewards, response_mask=mask, group_ids=groups, values=f.get("values"),
            reward_baselines=f.get("reward_baselines"), gamma=0.99, lam=self.hook("lam", 0.9),
            norm_adv_by_std_in_grpo=plan.by_std,
        )  # fmt: skip
        f["advantages"], f["returns"] = self.hook("advantages", adv), returns
        correction = RolloutCorrectionConfig(**self.config["algorithm"]["rollout_correction"])
        if plan.bypass:
            return
        weights, _ = rollout_is_weights(f["old_log_probs"], engine, mask, correction)
        kept, _ = rollout_rs_kept(f["old_log_probs"], engine, mask, correction)
        f |= {} if weights is None else {"rollout_is_weights": weights}
        f |= {} if kept is None else {"rollout_rs_kept": self.hook("kept", kept)}

    @property
    def learnt(self) -> Tensor:
        """Tokens that the loss counts."""
        mask = self.fields["response_mask"]
        return mask & self.fields.get("rollout_rs_kept", mask)

    def policy(self, model: Any, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Padded, all at once: log-probabilities and entropies [rows, R]."""
        f, wide = self.fields, self.fields["response_mask"].shape[1]
        out = model(
            input_ids=f["input_ids"][rows],
            attention_mask=f["attention_mask"][rows].long(),
            position_ids=f["position_ids"][rows],
        )
        log_p = (out.logits[:, -wide - 1 : -1] / self.hook("actor_temperature", self.plan.temperature)).log_softmax(-1)
        mask = f["response_mask"][rows]
        picked = log_p.gather(-1, f["responses"][rows][..., None])[..., 0]
        return picked * mask, -(log_p.exp() * log_p).sum(-1) * mask

    def inputs(self, rows: list[int]) -> dict[str, Tensor]:
        f = self.fields
        return {"input_ids": f["input_ids"][rows], "attention_mask": f["attention_mask"][rows].long(),
                "position_ids": f["position_ids"][rows]}  # fmt: skip

    def value(self, rows: list[int]) -> Tensor:
        f, wide = self.fields, self.fields["response_mask"].shape[1]
        hidden = self.critic.backbone(
            input_ids=f["input_ids"][rows],
            attention_mask=f["attention_mask"][rows].long(),
            position_ids=f["position_ids"][rows],
        )
        values = self.critic.head["linear"](hidden.last_hidden_state)[..., 0]
        return values[:, -wide - 1 : -1] * f["response_mask"][rows]

    # The update

    def _step(self) -> None:
        plan = self.plan
        self.engines = [self._engine("before")]
        self.records: dict[str, tuple[MiniRecord, ...]] = {"actor": (), "critic": ()}
        if plan.kl_loss or plan.kl_reward:
            self.weights |= {f"reference/{k}": v.detach().clone() for k, v in self.reference.named_parameters()}
        if plan.critic:
            self.records["critic"] = self._update("critic", self.critic)
        if plan.step >= plan.critic_warmup:
            self.records["actor"] = self._update("actor", self.actor)
        else:
            for when in ("before", "after"):
                self._keep("actor", when, self.actor, torch.optim.AdamW(self.actor.parameters()))
        self.engines.append(self._engine("after"))

    def _engine(self, when: str) -> EngineRecord:
        sums = {name: checksum(tensor) for name, tensor in self.actor.named_parameters()}
        return EngineRecord(
            engine=0, when=when, dtype="float32", held=self.hook(f"held_{when}", dict(sums)), actor=sums,
            tensors=len(sums), sampling=self.hook("made_of", {"temperature": self.plan.temperature, "min_p": 0.0}),
        )  # fmt: skip

    def _origin(self, role: str, moment: str) -> Origin:
        """As the model's files have it: the weights here are right unless a hook says otherwise."""
        held = {name: t for key, t in self.weights.items() for at, _, name in [key.partition("/")] if at == moment}
        sums = {name.replace("backbone.", "model."): checksum(t) for name, t in held.items() if "head." not in name}
        return self.hook(f"origin_{role}", Origin(role, "files", "", "float32", sums))

    def _update(self, role: str, model: nn.Module) -> tuple[MiniRecord, ...]:
        plan, total = self.plan, 20
        settings = self.config["critic" if role == "critic" else "actor_rollout_ref"]
        settings = settings if role == "critic" else settings["actor"]
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=plan.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=self.hook("decay", 0.01)
        )
        per_step, updates = plan.minis * plan.epochs, plan.step - 1
        if role == "actor":
            updates -= max(plan.critic_warmup - 1, 0)
        done = updates * per_step
        if done:  # as after a resume: moments of gradients past
            for _ in range(done):
                for parameter in model.parameters():
                    parameter.grad = torch.randn_like(parameter) * 0.01
                for group in optimizer.param_groups:
                    group["lr"] = 0.0
                optimizer.step()
            optimizer.zero_grad()
        self._keep(role, "before", model, optimizer)
        if done and self.hook("moments", True) is False:
            optimizer.state.clear()
        records: list[MiniRecord] = []
        for number, rows in enumerate(self._minis(role, per_step)):
            fraction = updates / total
            lr = plan.lr * (
                0.1 + 0.9 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * fraction, dtype=torch.float64)).item())
            )
            records.append(self._mini(role, model, optimizer, number, rows, self.hook("lr", lr), done, settings))
            done += 1
        self.hook("ended", lambda optimizer: None)(optimizer)
        self._keep(role, "after", model, optimizer)
        return tuple(records)

    def _minis(self, role: str, count: int) -> list[list[int]]:
        size = self.plan.prompts * self.plan.n
        each, minis = -(-self.plan.prompts // self.plan.minis) * self.plan.n, list[list[int]]()
        for epoch in range(self.plan.epochs):
            order = list(range(size))
            if self.plan.shuffle:
                key = seed_of(f"{seed_of(f'{self.plan.seed}/{role} shuffle/{self.plan.step}')}/epoch/{epoch}")
                order = torch.randperm(size, generator=torch.Generator().manual_seed(key)).tolist()
            minis += [order[start : start + each] for start in range(0, size, each)]
        assert len(minis) == count
        return self.hook("minis", minis)

    def _mini(
        self, role: str, model: Any, optimizer: Any, number: int, rows: list[int], lr: float, done: int, settings: Any
    ) -> MiniRecord:
        plan = self.plan
        normalizer = self.hook("normalizer", AggNormalizer.of(self.learnt[rows], 6.0))
        ranks = self._dealt(rows)
        micros: list[MicroRecord] = []
        for rank, share in enumerate(ranks):
            for start in range(0, len(share), plan.micro):
                chosen = share[start : start + plan.micro]
                terms = self._loss(role, model, number, chosen, normalizer, settings)
                before = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]
                (terms["loss"] * self.hook("rank_factor", lambda _: 1.0)(rank)).backward()
                added = [p.grad - grad for p, grad in zip(model.parameters(), before, strict=True)]
                own = plan.ranks * float(torch.cat([grad.flatten() for grad in added]).norm())
                own = self.hook("rank_norm", lambda _, norm: norm)(rank, own) if plan.ranks > 1 else None
                recorded = {name: float(self.hook(f"term_{name}", value).detach()) for name, value in terms.items()}
                micros.append(MicroRecord(rank=rank, rows=tuple(chosen), terms=recorded, grad_norm=own))
        for name, parameter in model.named_parameters():
            parameter.grad = self.hook("gradient", lambda _, g: g)(name, parameter.grad)
            if number == 0:
                self.weights[f"{role}.gradient/{name}"] = parameter.grad.clone()
        norm = self.hook("norm", float(sum(float(p.grad.double().square().sum()) for p in model.parameters()) ** 0.5))
        for parameter in model.parameters():
            parameter.grad *= self.hook("clip", lambda norm: min(1.0, plan.grad_clip / max(norm, 1e-30)))(norm)
        for group in optimizer.param_groups:
            group["lr"] = self.hook("used_lr", lr)
        state = optimizer.state.get(next(iter(model.parameters())), {})
        optimizer.step()
        self.hook("stepped", lambda model: None)(model)
        optimizer.zero_grad()
        counted = int(state["step"]) - 1 if "step" in state else None
        return MiniRecord(rows=tuple(tuple(share) for share in ranks), micro_batches=tuple(micros), grad_norm=norm,
                          applied=True, lr=lr, optimizer_steps=done, adam_steps=counted)  # fmt: skip

    def _dealt(self, rows: list[int]) -> list[list[int]]:
        lengths, ranks = self.fields["attention_mask"].sum(-1).tolist(), self.plan.ranks
        room = [len(rows) // ranks + (rank < len(rows) % ranks) for rank in range(ranks)]
        shares: list[list[int]] = [[] for _ in range(ranks)]
        for at in sorted(range(len(rows)), key=lambda at: (-lengths[rows[at]], at)):
            rank = min(
                (r for r in range(ranks) if len(shares[r]) < room[r]),
                key=lambda r: (sum(lengths[rows[a]] for a in shares[r]), r),
            )
            shares[rank].append(at)
        return self.hook("dealt", [[rows[at] for at in sorted(share)] for share in shares])

    def _loss(
        self, role: str, model: Any, number: int, rows: list[int], normalizer: AggNormalizer, settings: Any
    ) -> dict[str, Tensor]:
        f = self.fields
        mask = self.learnt[rows]

        def share(terms: Tensor, kept: Tensor = mask) -> Tensor:
            return aggregate(terms, kept, settings["loss_agg_mode"], normalizer)

        if role == "critic":
            values = self.value(rows)
            self._note("critic", number, rows, vpreds=values, values=f["values"][rows], returns=f["returns"][rows])
            loss = share(value_loss_terms(values, f["values"][rows], f["returns"][rows], mask, 0.5)[0])
            return {"loss": loss, "vf_loss": loss, "loss_tokens": mask.sum()}
        log_p, entropy = self.policy(model, rows)
        log_p = self.hook("update_log_probs", log_p)
        self._note(
            "actor",
            number,
            rows,
            log_probs=log_p,
            entropys=entropy,
            advantages=f["advantages"][rows],
            old_log_probs=f["old_log_probs"][rows],
        )
        weights = f["rollout_is_weights"][rows] if "rollout_is_weights" in f else None
        kept, of_tokens = mask, POLICY_LOSSES[self.plan.mode]
        if self.plan.bypass:
            correction = RolloutCorrectionConfig(**self.config["algorithm"]["rollout_correction"])
            weights, kept, _ = correction_now(log_p, f["old_log_probs"][rows], mask, correction)
            weights = self.hook("bypass_weights", weights)
            of_tokens = reinforce if self.plan.bypass == "reinforce" else of_tokens
        advantages = self.hook("loss_advantages", f["advantages"][rows])
        inputs = PolicyLossInputs(log_p, f["old_log_probs"][rows], advantages, mask, weights, 0.2, 0.28, 3.0)
        terms = {"pg_loss": share(of_tokens(inputs)[0], kept), "entropy_loss": share(entropy)}
        loss = terms["pg_loss"] - self.hook("entropy_coeff", self.plan.entropy) * terms["entropy_loss"]
        if self.plan.kl_loss:
            terms["kl_loss"] = share(kl_penalty(log_p, f["ref_log_probs"][rows], self.plan.kl_loss, mask))
            loss = loss + 0.05 * terms["kl_loss"]
        return {"loss": loss, **terms, "loss_tokens": mask.sum()}

    def _note(self, role: str, number: int, rows: list[int], **values: Tensor) -> None:
        for name, value in {
            **values,
            "mask": self.learnt[rows],
            "responses": self.fields["responses"][rows],
        }.items():
            key = f"{role}.{number}/{name}"
            self.fields.setdefault(key, torch.zeros(self.fields["response_mask"].shape, dtype=value.dtype))
            self.fields[key][rows] = value.detach()

    def _keep(self, role: str, when: str, model: nn.Module, optimizer: Any) -> None:
        for name, parameter in model.named_parameters():
            self.weights[f"{role}.{when}/{name}"] = parameter.detach().clone()
            for moment in ("exp_avg", "exp_avg_sq"):
                if moment in optimizer.state.get(parameter, {}):
                    self.weights[f"{role}.{moment}.{when}/{name}"] = optimizer.state[parameter][moment].clone()

    def _head(self) -> Capsule:
        plan = self.plan
        asked = self.hook("temperature", plan.temperature)
        roles = {"reference": "reference"}
        roles |= {"actor": "actor.before", "critic": "critic.before"} if plan.step == 1 else {}
        origins = [self._origin(role, moment) for role, moment in roles.items()]
        sampled = Sampled(temperature=asked, top_p=1.0, top_k=-1, min_tokens=0, max_tokens=WIDTH)
        return Capsule(schema=1, trainer="rltrain", trainer_version="0", step=plan.step, seed=plan.seed,
                       total_steps=self.hook("total_steps", 20), world_size=plan.ranks, config=self.config,
                       versions={}, machine={}, rows=plan.prompts * plan.n,
                       data_rows=DATA_SIZE, origins=tuple(origins),
                       model_config=self.model_config.to_dict(), sampled=sampled, policy_version=plan.step - 1,
                       kl_coef=0.1 if plan.kl_reward else None, actor=self.records["actor"],
                       critic=self.records["critic"],
                       engines=tuple(self.engines))  # fmt: skip
