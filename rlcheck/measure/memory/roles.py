"""What each role of a run holds and does: state at rest and at work, and the passes that it makes."""

from __future__ import annotations

from dataclasses import dataclass

from rlcheck.facts.config import RoleSpec, RunSpec, Sharding
from rlcheck.facts.memory import Owner
from rlcheck.measure.memory.shapes import Shape
from rlcheck.measure.memory.transient import BYTES, UNFUSED, Pass

_FSDP = ("fsdp", "fsdp2")
_LISTS = {"trl": "adamw_torch"}
"""Trainers whose AdamW, by this name, is torch's over lists of tensors. verl's is, too, but what its allocator leaves
in pieces was estimated with all that a step makes in it."""
MEGATRON = ("megatron", "mindspeed")
"""Strategies in which parameters stay where they are."""
# verl: tokens of a chunk of the entropy (entropy_from_logits_chunk_size), and of its fused kernels' blocks.
_VERL_CHUNK_TOKENS = 2048
_FUSED_TOKENS = 1024
RLTRAIN_BLOCK_ELEMENTS = 1 << 25
"""rltrain: logits of a block (`rltrain.workers.fsdp.fused_head`)."""
FUSED_KINDS = ("qwen2", "qwen3", "llama", "mistral", "olmo2")
"""Architectures whose norms and MLPs are of the form that rltrain computes by one kernel each."""
# Bytes of an element of the logits, once more.
_COPY = 2.0
_FLOAT32 = 4
_LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed: parameters of stage 3 that are whole at a time, stage3_max_live_parameters' default."""
RESPONSE_LOGITS = ("rltrain", "spec", "trl", "")
"""Frameworks that compute the distribution of responses alone; verl and others compute every token's."""


@dataclass(frozen=True)
class RoleMemory:
    """One role on one GPU. Sizes in bytes of this GPU's share.

    `optimizer_on_cpu` never is on the GPU; `optimizer` may wait on the host while another role works.
    """

    spec: RoleSpec
    shape: Shape
    parameters: int
    trained_parameters: int
    world: int
    weights: int
    gradients: int
    optimizer: int
    optimizer_on_cpu: int = 0
    weights_on_cpu: int = 0
    gradients_on_cpu: int = 0
    buffers: int = 0
    """Beside gradients while they are made: what they are reduced in."""
    step_buffers: int = 0
    """Beside them in the optimizer's step."""

    @property
    def name(self) -> str:
        """Of the role."""
        return self.spec.name

    @property
    def _keeps_gradients(self) -> bool:
        """Megatron's buffer of gradients leaves with the parameters (verl's offload_megatron_model_to_cpu) or stays."""
        shards = self.spec.sharding
        return self.gradients > 0 and shards.strategy in MEGATRON and not shards.param_offload

    def idle(self) -> list[Owner]:
        """What is on the GPU while another role works."""
        shards = self.spec.sharding
        if shards.offload_policy:
            return []
        away = shards.param_offload or not self.weights
        owners = [] if away else [Owner(kind="weights", role=self.name, num_bytes=self.weights)]
        if self._keeps_gradients:
            owners.append(Owner(kind="gradients", role=self.name, num_bytes=self.gradients))
        if self.optimizer and not shards.optimizer_offload:
            owners.append(Owner(kind="optimizer", role=self.name, num_bytes=self.optimizer))
        return owners

    def working(self, training: bool) -> list[Owner]:
        """What is on the GPU while this role works, gathered groups and activations left out."""
        shards = self.spec.sharding
        if shards.offload_policy:
            return []
        owners = [Owner(kind="weights", role=self.name, num_bytes=self.weights)]
        if training or self._keeps_gradients:
            owners.append(Owner(kind="gradients", role=self.name, num_bytes=self.gradients))
        if training and self.buffers:
            owners.append(Owner(kind="buffers", role=self.name, num_bytes=self.buffers))
        if self.optimizer and (training or not shards.optimizer_offload):
            owners.append(Owner(kind="optimizer", role=self.name, num_bytes=self.optimizer))
        return owners

    def on_host(self) -> int:
        """Bytes of this rank that lie on the host while the role is idle."""
        shards = self.spec.sharding
        if shards.offload_policy:
            return self.weights + self.gradients + self.optimizer
        waiting = self.optimizer if shards.optimizer_offload else 0
        always = self.optimizer_on_cpu + self.weights_on_cpu + self.gradients_on_cpu
        return (self.weights if shards.param_offload else 0) + waiting + always


def role_memory(spec: RoleSpec, shape: Shape, num_gpus: int) -> RoleMemory:
    """The shares of ROLE's state on each of NUM_GPUS training GPUs."""
    shards = spec.sharding
    critic = spec.name in ("critic", "reward_model")
    parameters = shape.parameters - (shape.head if critic else 0) + (shape.hidden + 1 if critic else 0)
    adapters = adapter_parameters(spec, shape)
    trained = (adapters or parameters) if spec.trained else 0
    if shards.strategy in MEGATRON:
        return _megatron(spec, shape, num_gpus, parameters, adapters)
    if shards.strategy == "deepspeed":
        return _deepspeed(spec, shape, num_gpus, parameters, adapters)
    if shards.strategy == "ddp":
        return _replicated(spec, shape, num_gpus, parameters, adapters)
    kept = BYTES.get(shards.model_dtype, 4)
    world = shards.shard_size if 0 < shards.shard_size <= num_gpus else num_gpus
    # Adam's two moments are of the parameters' type.
    return RoleMemory(
        spec=spec,
        shape=shape,
        parameters=parameters,
        trained_parameters=trained,
        world=world,
        weights=(parameters + adapters) * kept // world,
        gradients=trained * kept // world,
        optimizer=trained * 2 * kept // world,
    )


def _megatron(spec: RoleSpec, shape: Shape, num_gpus: int, parameters: int, adapters: int) -> RoleMemory:
    """Parameters over tensor, pipeline and expert parallel GPUs, gradients in float32, optimizer state over all GPUs.

    Counted from Megatron's documentation, not held against a measurement.
    """
    shards = spec.sharding
    world = max(shards.tensor_parallel * shards.pipeline_parallel, 1)
    experts = 0
    if shape.experts is not None:
        sparse = shape.layers - shape.experts.dense_layers
        experts = sparse * shape.experts.count * 3 * shape.hidden * shape.experts.wide
    held = parameters - experts + experts // max(shards.expert_parallel, 1) + adapters
    trained = (adapters or parameters) if spec.trained else 0
    optimizer = trained * 12 // num_gpus
    on_cpu = int(optimizer * shards.cpu_optimizer_share)
    return RoleMemory(
        spec=spec,
        shape=shape,
        parameters=parameters,
        trained_parameters=trained,
        world=world,
        weights=held * BYTES.get(shards.model_dtype, 2) // world,
        gradients=(adapters or held if spec.trained else 0) * 4 // world,
        optimizer=optimizer - on_cpu,
        optimizer_on_cpu=on_cpu,
    )


def _deepspeed(spec: RoleSpec, shape: Shape, num_gpus: int, parameters: int, adapters: int) -> RoleMemory:
    """ZeRO: a 16-bit model, float32 copies of what learns with Adam's moments, each spread as the stage says.

    From deepspeed/runtime/zero/stage_1_and_2.py and stage3.py (deepspeedai/DeepSpeed@edaa722), not held against a
    measurement. Stages from 1 on spread the optimizer, from 2 on gradients, 3 parameters; a bucket of gradients is
    there whole while they are reduced. With the optimizer on the host, gradients of stages 2 and 3 go there in float32.
    """
    shards = spec.sharding
    ranks = max(num_gpus // max(shards.tensor_parallel, 1), 1)
    half, summed = BYTES.get(shards.dtype, 2), BYTES.get(shards.reduce_dtype, 2)
    held = (parameters + adapters) // max(shards.tensor_parallel, 1)
    learns = (adapters or parameters) // max(shards.tensor_parallel, 1) if spec.trained else 0
    over = {stage: ranks if shards.zero_stage >= stage else 1 for stage in (1, 2, 3)}
    # Without a stage, DeepSpeed's bfloat16 engine keeps no float32 copy: Adam works on the model's own weights.
    each = 12 if shards.zero_stage or shards.dtype == "float16" else 2 * half
    optimizer, weights, gradients = learns * each // over[1], held * half // over[3], learns * summed // over[2]
    on_cpu = shards.cpu_optimizer_share > 0
    away = on_cpu and shards.zero_stage >= 2
    return RoleMemory(
        spec=spec,
        shape=shape,
        parameters=parameters,
        trained_parameters=(adapters or parameters) if spec.trained else 0,
        world=over[3],
        weights=0 if shards.param_offload else weights,
        weights_on_cpu=weights if shards.param_offload else 0,
        gradients=0 if away else gradients,
        gradients_on_cpu=learns * _FLOAT32 // over[2] if away else 0,
        optimizer=0 if on_cpu else optimizer,
        optimizer_on_cpu=optimizer if on_cpu else 0,
        buffers=shards.bucket_elements * summed if shards.zero_stage and learns else 0,
        step_buffers=learns * _FLOAT32 // over[1] if shards.zero_stage and not on_cpu else 0,
    )


def _replicated(spec: RoleSpec, shape: Shape, num_gpus: int, parameters: int, adapters: int) -> RoleMemory:
    """Everything on each GPU; torch's DistributedDataParallel reduces gradients in buckets of their own beside them."""
    kept = BYTES.get(spec.sharding.model_dtype, 4)
    trained = (adapters or parameters) if spec.trained else 0
    # peft keeps adapters in float32.
    gradients = trained * (_FLOAT32 if adapters else kept)
    return RoleMemory(
        spec=spec,
        shape=shape,
        parameters=parameters,
        trained_parameters=trained,
        world=1,
        weights=parameters * kept + adapters * _FLOAT32,
        gradients=gradients,
        optimizer=2 * gradients,
        buffers=gradients if num_gpus > 1 else 0,
    )


def step_bytes(role: RoleMemory, framework: str) -> int:
    """What ROLE's optimizer makes besides its state in a step.

    torch's AdamW works over lists of tensors unless it is told otherwise: the root of the second moment is there whole
    (`torch._foreach_sqrt` in torch/optim/adam.py). A fused one, as rltrain's and Trainer's on a new torch, has none.
    """
    shards = role.spec.sharding
    on_gpu = shards.strategy in (*_FSDP, "ddp") and not shards.offload_policy
    lists = on_gpu and role.spec.optim.name == _LISTS.get(framework)
    return role.step_buffers + (role.optimizer // 2 if lists else 0)


def adapter_parameters(spec: RoleSpec, shape: Shape) -> int:
    """Parameters that LoRA adds: rank x (inputs + outputs) of each layer that it is attached to."""
    model = spec.model
    if spec.name != "actor" or not spec.trained or not model.lora_rank:
        return 0
    wanted = (model.target_modules,) if isinstance(model.target_modules, str) else model.target_modules
    everything = bool({"all-linear", "all"} & set(wanted))
    chosen = [(a, b) for name, a, b in shape.linear_widths if everything or name in wanted]
    # A pattern, or names of another library (Megatron): as all of them.
    chosen = chosen or [(a, b) for _, a, b in shape.linear_widths]
    return shape.layers * model.lora_rank * sum(a + b for a, b in chosen)


@dataclass(frozen=True)
class Tokens:
    """Tokens of one micro batch on one GPU: all of them, and those whose distribution is computed."""

    total: int
    logits: int


def spread_of(shards: Sharding) -> int:
    """GPUs over which DTensor, beside FSDP, divides layers and the vocabulary; activations count as if it did not."""
    return max(shards.tensor_parallel, 1) if shards.strategy in _FSDP else 1


def tokens_of(run: RunSpec, role: RoleSpec, inference: bool, all_logits: bool) -> Tokens:
    """The largest micro batch of ROLE. ALL_LOGITS: the framework computes prompts' distributions as well."""
    data = run.data
    longest = data.max_prompt_length + data.max_response_length
    if role.infer_dynamic_batch if inference else role.dynamic_batch:
        # The limit is one GPU's, whatever sequence parallel size.
        total = max(role.infer_max_tokens if inference else role.max_tokens, longest if inference else 1)
    else:
        rows = (role.infer_micro_batch_size or role.micro_batch_size) if inference else role.micro_batch_size
        shared = max(role.sharding.sequence_parallel, 1) * max(role.sharding.context_parallel, 1)
        total = max((rows or 1) * longest // shared, 1)
    if role.sharding.strategy in MEGATRON:
        # Its sequence parallelism spreads activations over the tensor parallel GPUs, as the vocabulary is.
        total = max(total // max(role.sharding.tensor_parallel, 1), 1)
    share = data.max_response_length / longest
    logits = total if all_logits else max(int(total * share), 1)
    return Tokens(total, max(logits // spread_of(role.sharding), 1))


@dataclass(frozen=True)
class Distribution:
    """How a framework makes log-probabilities from logits; see `Pass`."""

    logit_tokens: int
    chunk_tokens: int
    unfused: float
    block_elements: int = 0


def distribution_of(
    role: RoleSpec, tokens: Tokens, inference: bool, is_verl: bool, caps_logits: bool = False
) -> Distribution:
    """ROLE's distribution over the vocabulary. CAPS_LOGITS: as in `Shape`.

    rltrain makes logits by blocks; or whole, with float32 copies of all or of a chunk at a time. verl's cross entropy
    (flash-attn's kernel) writes the gradient over the logits; its entropy is compiled into one kernel where rows are
    packed, and not where they are padded: then the copies are there, as were measured. Its fused kernels never make
    the logits at all.
    """
    if not is_verl and role.model.fused_kernels and not caps_logits:
        return Distribution(tokens.logits, 0, UNFUSED, role.block_elements or RLTRAIN_BLOCK_ELEMENTS)
    if not is_verl:
        made = role.read_bytes if inference else role.loss_bytes
        return Distribution(tokens.logits, *((role.chunk_tokens, UNFUSED) if role.chunked_logits else (0, made)))
    if role.model.fused_kernels or role.model.liger:
        return Distribution(min(tokens.logits, _FUSED_TOKENS), 0, UNFUSED)
    has_entropy = (inference and role.name == "actor") or role.calculate_entropy or role.entropy_coeff != 0
    if not has_entropy:
        return Distribution(tokens.logits, 0, 0.0 if role.model.remove_padding else _COPY)
    if role.chunked_logits and inference:
        return Distribution(tokens.logits, _VERL_CHUNK_TOKENS, UNFUSED)
    compiled = role.torch_compile and role.model.remove_padding
    return Distribution(tokens.logits, 0, (0.0 if inference else 2 * _COPY) if compiled else UNFUSED)


def pass_of(run: RunSpec, memory: RoleMemory, inference: bool, framework: str) -> Pass:
    """The pass of ROLE that needs most."""
    spec, shards = memory.spec, memory.spec.sharding
    tokens = tokens_of(run, spec, inference, framework not in RESPONSE_LOGITS)
    has_head = spec.name in ("actor", "ref")
    made = distribution_of(spec, tokens, inference, framework == "verl", memory.shape.caps_logits)
    is_live = shards.strategy == "deepspeed" and shards.zero_stage == 3
    casts = shards.strategy == "ddp" and shards.model_dtype == "float32" != shards.dtype
    on_gpu = framework == "rltrain" and run.device == "cuda"
    return Pass(
        shape=memory.shape,
        tokens=tokens.total,
        logit_tokens=made.logit_tokens if has_head else 0,
        world=memory.world,
        kept=BYTES.get(shards.model_dtype, 4),
        computed=BYTES.get(shards.dtype, 2),
        checkpointing=not inference and spec.model.gradient_checkpointing,
        chunk_tokens=made.chunk_tokens,
        unfused=made.unfused,
        block_elements=made.block_elements,
        fused=on_gpu and run.actor.model.fused_kernels and memory.shape.kind in FUSED_KINDS,
        has_head=has_head,
        adapters=adapter_parameters(spec, memory.shape),
        keeps_layers=shards.strategy in _FSDP and not shards.reshard_after_forward,
        gathers=shards.strategy not in (*MEGATRON, "deepspeed", "ddp"),
        unshards=inference and spec.unshards_to_read,
        spread=spread_of(shards),
        live_parameters=min(memory.parameters, _LIVE_PARAMETERS) if is_live else 0,
        cast_parameters=memory.parameters if casts else 0,
    )
