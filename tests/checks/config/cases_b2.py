"""CFG030 to CFG070: for every check a run on which it fires, and one on which it stays quiet."""

from __future__ import annotations

from typing import Any

import msgspec

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.config import ModelFacts, PathFacts, TokenizerFacts
from rlcheck.facts.document import Facts
from tests.checks.config.build import QWEN, facts, place

NO_DIRECTORY = absent("/models/qwem is no directory")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TOKENIZER = TokenizerFacts(
    directory="/models/qwen",
    num_tokens=151665,
    max_token_id=151664,
    eos_token="<|im_end|>",
    eos_id=151645,
    pad_token="<|endoftext|>",
    pad_id=151643,
    chat_template=TEMPLATE,
    template_place="tokenizer_config.json",
)
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ACTOR_PATH, CRITIC_PATH = "actor_rollout_ref.model.path", "critic.model.path"


def tokenizer(**changes: Any) -> Fact[TokenizerFacts]:
    return known(msgspec.structs.replace(TOKENIZER, **changes))


def model(sizes: dict[str, Any] | None = None, **changes: Any) -> ModelFacts:
    """Qwen2.5 with its tokenizer; `sizes` are laid over its config.json."""
    usual = {"path": "/models/qwen", "tokenizer": tokenizer(), "modules": known(MODULES), **changes}
    return msgspec.structs.replace(QWEN, sizes={**QWEN.sizes, **(sizes or {})}, **usual)


def run(changes: dict[str, Any] | None = None, actor: Any = None, critic: Any = None, **more: Any) -> Facts:
    """A run of Qwen2.5 as actor and critic; `actor` and `critic` are models, or why there is none."""
    models = {"actor": actor or model(), "critic": critic or actor or model()}
    here = {"actor.model.path": "/models/qwen", "critic.model.path": "/models/qwen", **(changes or {})}
    return facts(here, models=models, **more)


def trl(version: str, **values: Any) -> Facts:
    """A run of TRL that accumulates two micro batches."""
    usual = {"loss_type": "dapo", "gradient_accumulation_steps": 2}
    return run(framework="trl", version=version, values={**usual, **values})


REPLAY = "actor_rollout_ref.actor.megatron.router_replay"
MOE = model({"num_experts": 128, "num_experts_per_tok": 8})


def lora(changes: dict[str, Any] | None = None, **more: Any) -> Facts:
    """The same run with an adapter of rank 32 on the actor."""
    usual = {"actor.model.lora_rank": 32, "actor.model.lora_alpha": 32, "actor.optim.lr": 3e-5, "critic.optim.lr": 3e-5}
    return run({**usual, **(changes or {})}, **more)


def paths(*found: PathFacts, **more: Any) -> Facts:
    return facts(paths=found, **more)


def environ(document: Facts, **variables: str) -> Facts:
    return msgspec.structs.replace(document, environ=known(variables))


def rltrain(changes: dict[str, Any] | None = None, **more: Any) -> Facts:
    return run(changes, framework="rltrain", **more)


DATA = PathFacts(key="data.train_files", given="~/data/train.parquet", resolved="/home/bob/data/train.parquet")
GONE = msgspec.structs.replace(DATA, exists=False)
OUTPUT = PathFacts(key="trainer.default_local_dir", given="runs/a", resolved="/srv/runs/a", want="directory")
OWN_CODE = model({"model_type": "mimo_x"}, auto_map={"AutoConfig": "configuration_mimo.MiMoConfig"})
TINY = model({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 16})
BASE = model(tokenizer=tokenizer(eos_token="<|endoftext|>", eos_id=151643), generation_eos=(151643,))
REWARD = {"reward.function_path": "/r/score.py", "reward.function_name": "compute_scores"}
NAMES = known(("os", "compute_score"))
IN_16_BITS = {"actor.sharding.model_dtype": "bfloat16"}
ALLOCATOR = "ray_kwargs.ray_init.runtime_env.env_vars.PYTORCH_CUDA_ALLOC_CONF"
FP8 = {"rollout.quantization": "fp8"}
CORRECTED = {"algorithm.rollout_is": "token"}
FED = {**CORRECTED, "rollout.calculate_log_probs": True}
GRAD_CLIP = {"actor_rollout_ref.actor.grad_clip": 0.5, "actor_rollout_ref.actor.optim.clip_grad": 1.0}
CLIP = {"actor.clip_ratio": 0.1, "actor.clip_ratio_low": 0.2, "actor.clip_ratio_high": 0.2}
CLIP_GIVEN = {"actor_rollout_ref.actor.clip_ratio": place(text="actor_rollout_ref.actor.clip_ratio=0.1")}
KL = {"algorithm.use_kl_in_reward": True, "actor.use_kl_loss": True}
FALCON = ("query_key_value", "dense")

CASES: dict[str, tuple[Facts, Facts]] = {
    "CFG030": (run({"actor.model.path": "/models/qwem"}, actor=NO_DIRECTORY, critic=model()), run()),
    "CFG031": (run(actor=model({"architectures": ["Qwen2ForSequenceClassification"]})), run()),
    "CFG032": (run(actor=OWN_CODE), run({"actor.model.trust_remote_code": True}, actor=OWN_CODE, critic=model())),
    "CFG033": (run({"actor.model.trust_remote_code": True}), run()),
    "CFG034": (run(actor=model({"vocab_size": 151643})), run()),
    "CFG035": (run(actor=model(tokenizer=absent("/models/qwen holds no tokenizer.json"))), run()),
    "CFG036": (run(actor=model(tokenizer=tokenizer(chat_template=""))), run()),
    "CFG037": (run(actor=model(tokenizer=tokenizer(eos_token="", eos_id=-1, class_name="TokenizersBackend"))), run()),
    "CFG038": (run(actor=BASE), run()),
    "CFG039": (
        run(
            critic=model(
                path="/models/llama",
                tokenizer=tokenizer(eos_token="</s>", eos_id=2, num_tokens=32000, max_token_id=31999),
            )
        ),
        run(),
    ),
    "CFG040": (run({"rollout.max_model_len": 768}), run({"rollout.max_model_len": 1024})),
    "CFG041": (run({"rollout.max_model_len": 65536}), run({"rollout.max_model_len": 32768})),
    "CFG042": (
        rltrain({"rollout.chunked_prefill": False, "data.max_response_length": 16384}),
        rltrain({"rollout.chunked_prefill": False}),
    ),
    "CFG043": (run({"rollout.max_batched_tokens": 512}), run()),
    "CFG044": (
        lora({"actor.model.target_modules": ("q_proj", "v_proj")}, actor=model(modules=known(FALCON))),
        lora({"actor.model.target_modules": ("q_proj", "v_proj")}),
    ),
    "CFG045": (lora({"actor.model.lora_rank": 1024}), lora()),
    "CFG046": (lora({"actor.model.lora_alpha": 0}), lora()),
    "CFG047": (lora({"actor.optim.lr": 1e-6}), lora()),
    "CFG048": (run({"actor.optim.lr": 1e-3}), run({"actor.optim.lr": 1e-3}, actor=TINY)),
    "CFG049": (run({"critic.optim.lr": 1e-7}), run({"critic.optim.lr": 1e-5})),
    "CFG050": (run(IN_16_BITS), lora(IN_16_BITS)),
    "CFG051": (run({"rollout.dtype": "float16"}), run({"rollout.dtype": "bf16"})),
    "CFG052": (run({"actor.clip_ratio": 0.5}), run({"actor.clip_ratio_high": 0.28})),
    "CFG053": (run(CLIP, given=CLIP_GIVEN), run(CLIP)),
    "CFG054": (run({"actor.optim.grad_clip": 1e4}), run()),
    "CFG055": (run({"critic.cliprange_value": 0.0}), run({"critic.cliprange_value": 0.5})),
    "CFG056": (run({"actor.entropy_coeff": -0.01}), run({"actor.entropy_coeff": 0.03})),
    "CFG057": (run(KL), run({"actor.use_kl_loss": True})),
    "CFG058": (run({"actor.use_kl_loss": True, "actor.kl_loss_coef": -0.1}), run({"actor.use_kl_loss": True})),
    "CFG059": (run({"rollout.temperature": 0.0}), run({"rollout.temperature": 0.6})),
    "CFG060": (run({"rollout.top_p": 0.9}), run()),
    "CFG061": (run(FP8), run({**FP8, **FED})),
    "CFG062": (run(CORRECTED), run(FED)),
    "CFG063": (run({"rollout.sleeps": False}), run()),
    "CFG064": (run(values={ALLOCATOR: "expandable_segments:True"}), run()),
    "CFG065": (paths(GONE), paths(DATA, OUTPUT)),
    "CFG066": (
        paths(msgspec.structs.replace(OUTPUT, exists=False, problem="/work is not writable")),
        paths(msgspec.structs.replace(OUTPUT, exists=False)),
    ),
    "CFG067": (facts(REWARD, reward_names=NAMES), facts({**REWARD, "reward.function_name": "os"}, reward_names=NAMES)),
    "CFG068": (
        run({"loggers": ("console", "wandb")}, credentials={"wandb": "no WANDB_API_KEY and no entry in ~/.netrc"}),
        run({"loggers": ("console", "wandb")}, credentials={"wandb": ""}),
    ),
    "CFG070": (run({"rollout.name": "vlllm"}), run({"rollout.name": "sglang"})),
    "CFG076": (run(actor=MOE), run({"algorithm.rollout_is": "token"}, actor=MOE)),
    "CFG077": (run(actor=model({"attention_dropout": 0.1})), run(actor=model({"attention_dropout": 0.0}))),
    "CFG078": (trl("1.8.0", steps_per_generation=4), trl("1.9.1", steps_per_generation=4)),
    "CFG069": (run({"loggers": ("console", "wanbd")}), run({"loggers": ("console", "wandb")})),
}

OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "CFG076": (run(values={f"{REPLAY}.mode": "disabled", f"{REPLAY}._target_": "verl.X"}, actor=MOE),),
    "CFG077": (run(framework="slime", values={"attention-dropout": 0.1, "hidden-dropout": 0.1}),),
    "CFG078": (
        run({"data.train_batch_size": 512, "actor.mini_batch_size": 256}, framework="trl", version="1.8.0",
            values={"loss_type": "dapo", "gradient_accumulation_steps": 2, "generation_batch_size": 4096}),
    ),
}  # fmt: skip
