#!/bin/bash
# What asynchrony gives on two GPUs of this machine: the shape of Qwen2.5 1.5B with random weights, 64 prompts x 8
# answers a step, of lengths drawn log-normal (mean 512 before the cut at 4,096).
#
#   stale.sh OUT GPUS PART...     PART: 0 (colocated and synchronous), or max_staleness of engines apart: 1, 2, 4 …
#
# GPUS: two of this machine, such as 0,1. Each part ends after PART_S seconds (280), start included. OUT gets its
# metrics, and what a dry run predicts from part 0 where that went before. Last: tokens that were learnt from, a second, over whole steps, and idle shares.
set -u
mkdir -p "$1"
out=$(cd "$1" && pwd)
export CUDA_VISIBLE_DEVICES=$2 NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1
shift 2
cd "$(dirname "$0")/../../.." || exit 1
export PYTHONPATH=$PWD/tests/bench/faults/inject:$PWD:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH}
export RLTRAIN_MISTAKE='lengths {"mean": 512, "sigma": 1.0, "most": 4096}'
work=${WORK:-$(mktemp -d /tmp/stale-XXXXXX)}
shape="toy.model.hidden_size=${HIDDEN:-1536} toy.model.intermediate_size=${INTERMEDIATE:-8960} \
toy.model.num_hidden_layers=${LAYERS:-28} toy.model.num_attention_heads=${HEADS:-12}"
for part in "$@"; do
  if [ "$part" = 0 ]; then
    placed="trainer.n_gpus_per_node=2"
  else
    placed="actor_rollout_ref.hybrid_engine=false algorithm.max_staleness=$part trainer.n_gpus_per_node=1
      actor_rollout_ref.rollout.n_gpus_per_node=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.85"
  fi
  echo "== max_staleness $part, at $SECONDS s"
  # shellcheck disable=SC2206
  values=(tests/bench/gpu/grpo-0.5b.yaml $shape $placed data.max_response_length=4096
    actor_rollout_ref.actor.use_dynamic_bsz=true actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
    trainer.total_training_steps="${STEPS:-40}" trainer.save_freq=-1 trainer.test_freq=-1 trainer.capsule_steps=[]
    trainer.resume_mode=disable trainer.default_local_dir="$work/$part" ${RLTRAIN_OPTIONS:-})
  if [ "$part" != 0 ] && [ -f "$work/0/metrics.jsonl" ]; then
    python3 -m rltrain run "${values[@]}" --dry-run --speeds "$work/0" >"$out/$part-predicted.txt" 2>&1
    sed -n '/== Asynchrony/,/^$/p' "$out/$part-predicted.txt"
  fi
  timeout -s INT -k 30 "${PART_S:-280}" python3 -m rltrain run "${values[@]}" --skip-checks >"$out/$part.txt" 2>&1
  echo "exit code $?, at $SECONDS s"
  tail -4 "$out/$part.txt" | cut -c1-240
  cp "$work/$part/metrics.jsonl" "$out/$part.jsonl"
  cp "$work/$part/clock.jsonl" "$out/$part-clock.jsonl" 2>/dev/null
  python3 - "$out/$part.jsonl" "${SKIP:-1}" <<'PY'
import json
import sys

steps = [record for record in map(json.loads, open(sys.argv[1])) if record["step"] > int(sys.argv[2])]
if steps:
    tokens, seconds = (sum(step[name] for step in steps) for name in ("perf/total_num_tokens", "timing_s/step"))
    print(f"steps {steps[0]['step']} to {steps[-1]['step']}: {tokens / seconds:.0f} tokens/s, {seconds / len(steps):.1f} s a step")
for name in sorted({name for step in steps for name in step}):
    if name.startswith(("timing_s/", "perf/", "training/policy_staleness", "rollout/", "response_length/m")):
        print(f"  {name:46}", *(f"{step[name]:.4g}" for step in steps if isinstance(step.get(name), int | float)))
PY
done
