#!/bin/bash
# `rlcheck drift` on one GPU of this machine, on the shapes of Qwen2.5 0.5B and 1.5B with random weights, bfloat16 on
# both sides, with vLLM's batch-invariant mode and without:
#
#   drift.sh OUT [SIZE...]        OUT gets a record of each measurement (`rlcheck drift --facts RECORD`)
#
# LIMIT_S: seconds for all (530). A measurement is begun while 70 s are left, and ended after PART_S (150).
set -u
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
sizes=("$@")
[ "$#" -gt 0 ] || sizes=(0.5B 1.5B)
cd "$(dirname "$0")/../../.." || exit 1
export PYTHONPATH=$PWD:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
limit=${LIMIT_S:-530} part=${PART_S:-150}
models=$(mktemp -d /tmp/drift-XXXXXX)
trap 'rm -rf "$models"' EXIT
within() {
  left=$((limit - SECONDS))
  if [ "$left" -lt "${LEAST_S:-70}" ]; then
    echo "== $1: no time left"
    return 1
  fi
  echo "== $1, at $SECONDS s"
  shift
  timeout -s INT -k 20 $((left < part ? left : part)) "$@" || echo "exit code $?"
}
measure() {
  name=$1 size=$2
  shift 2
  within "$name" python3 tests/bench/gpu/drift_gpu.py measure "$out/$name.json" "$models/$size/config.yaml" "$@"
}
eager=actor_rollout_ref.rollout.enforce_eager=true
within models python3 tests/bench/gpu/drift_models.py "$models" "${sizes[@]}" "${sizes[0]}-flat"
for size in "${sizes[@]}"; do
  measure "$size-invariant" "$size" $eager --operations --batch-invariant
  measure "$size-eager" "$size" $eager --operations
done
# As the run has it, with CUDA graphs; and what the doctor tries by itself in the time that is left.
part=$limit budget=$((limit - SECONDS - 140))
within "${sizes[0]}-explained" python3 -m rlcheck drift "$models/${sizes[0]}/config.yaml" --num-prompts 16 --all \
  --budget $((budget > 1 ? budget : 1)) --record "$out/${sizes[0]}-explained.json" -v
measure "${sizes[0]}-flat" "${sizes[0]}-flat" $eager
exit 0
