#!/bin/bash
# Step capsules on one GPU of this machine, in bfloat16, on the shapes of Qwen2.5 0.5B and 1.5B with random weights:
# what a captured step costs, how long its proof takes and what it says, and whether the step is the same again.
#
#   step.sh OUT [SIZE...]         OUT gets metrics, proofs, and capsules of toys and of the last size (PHASES: parts), in
#                                 pieces for `cat capsules.tar.* | tar -xf -`. STEPS: of the first size (20)
#   step.sh --again OUT CAPSULE...   runs capsules of another machine again here (MODEL: of those of a larger model)
#
# LIMIT_S: seconds for all (560). COST: 0 for short runs of all sizes. RLTRAIN_OPTIONS: more values for the runs.
set -u
again=
[ "$1" = --again ] && again=1 && shift
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../../.." || exit 1
export PYTHONPATH=$PWD:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
limit=${LIMIT_S:-560} device=${DEVICE:-cuda} work=${WORK:-$(mktemp -d /tmp/step-XXXXXX)}
stamped() { # seconds since the command began, before each line
  python3 -c 'import sys, time
begun = time.time()
for line in sys.stdin: print(f"{time.time() - begun:7.2f} {line}", end="", flush=True)'
}
within() {
  local left=$((limit - SECONDS)) name=$1
  shift
  [ "$left" -lt 20 ] && echo "== $name: no time left" && return 1
  echo "== $name, at $SECONDS s"
  timeout -s INT -k 20 "$left" "$@" 2>&1 | stamped >"$out/$name.txt"
  echo "== $name: exit code ${PIPESTATUS[0]}, at $SECONDS s"
}
train() {
  local name=$1
  shift
  # shellcheck disable=SC2086
  within "run-$name" python3 -m rltrain run "$@" --skip-checks trainer.device="$device" trainer.val_before_train=false \
    trainer.test_freq=-1 trainer.save_freq=-1 trainer.default_local_dir="$work/$name" ${RLTRAIN_OPTIONS:-}
  cp "$work/$name/metrics.jsonl" "$out/$name.jsonl"
  du -sk "$work/$name"/capsules/* | sed "s#$work/##"
}
step() {
  local name=$1
  shift
  within "$name" python3 -m rlcheck step "$@" --record "$out/$name.json"
  grep -aE '✗|✓|differ|same|!|\?|STP' "$out/$name.txt" | head -${LINES_SHOWN:-12} | cut -c1-200
}
if [ -n "$again" ]; then
  for capsule in "$@"; do
    step "again-$(basename "$(dirname "$(dirname "$capsule")")")-$(basename "$capsule")" --again "$capsule" \
      ${MODEL:+--checkpoint "$MODEL"}
  done
  exit 0
fi
sizes=("$@")
[ "$#" -gt 0 ] || sizes=(0.5B 1.5B)
toys=(${TOYS-toy-grpo toy-ppo})
train_all() {
  local size model toy
  within models python3 tests/bench/gpu/drift_models.py "$work/models" "${sizes[@]}"
  for size in "${sizes[@]}"; do
    model=$work/models/$size
    if [ "$size" = "${sizes[0]}" ] && [ "${COST:-1}" = 1 ]; then # the cost: 512 answers of 512 tokens
      train "$size" "$model/config.yaml" data.max_response_length=512 actor_rollout_ref.rollout.n=8 \
        actor_rollout_ref.rollout.max_num_seqs=512 trainer.total_training_steps="${STEPS:-20}" \
        trainer.capsule_steps="[1,$(seq -s, 4 3 "${STEPS:-20}")]"
      python3 tests/bench/gpu/kept_steps.py "$work/$size" | tee "$out/$size-cost.txt"
    else
      train "$size" "$model/config.yaml" data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 \
        trainer.total_training_steps=2 trainer.capsule_steps=[1]
    fi
  done
  for toy in "${toys[@]}"; do
    train "$toy" "$toy" trainer.total_training_steps=3 trainer.capsule_steps=[1,3]
  done
  tar -C "$work" -cf - "${toys[@]/%//capsules}" "${sizes[-1]}/capsules/step_1" | split -b 15M -d - "$out/capsules.tar."
}
prove_all() {
  local one
  for one in "${toys[@]}"; do step "proof-$one" "$work/$one"; done
  for one in "${sizes[@]}"; do
    step "proof-$one" "$work/$one/capsules/step_1" --checkpoint "$work/models/$one/model"
  done
}
again_all() {
  local one
  for one in "${toys[@]}"; do step "again-$one" --again "$work/$one/capsules/step_3"; done
  for one in "${sizes[@]}"; do
    step "again-$one" --again "$work/$one/capsules/step_1" --checkpoint "$work/models/$one/model"
  done
}
for phase in ${PHASES:-train prove again}; do "${phase}_all"; done
exit 0
