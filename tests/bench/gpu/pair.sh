#!/bin/bash
# rltrain beside TRL on one host: the same model, prompts and settings; at the same time where each has a GPU of its own.
#
#   pair.sh OUT KIT SIZE [RLTRAIN_GPU TRL_GPU [VALUE...]]
#
# SIZE: S (0.5B) or M (1.5B). KIT: mk.py (model and prompts), trl_run.py (TRL's GRPOTrainer) and reward.py; TRL is on
# PYTHONPATH. VALUE: more values for rltrain. OUT gets both outputs, metrics and table.txt.
# STEPS: of each (6). BATCH: rows of a micro batch (32). LIMIT_S: seconds for each of the two (400). WORK: models, kept
# for later.
set -u
mkdir -p "$1"
out=$(cd "$1" && pwd)
kit=$(cd "$2" && pwd)
size=$3 ours=${4:-0} theirs=${5:-1}
shift $(($# < 5 ? $# : 5))
cd "$(dirname "$0")/../../.." || exit 1
work=${WORK:-/tmp/pair} steps=${STEPS:-6} batch=${BATCH:-32} limit=${LIMIT_S:-400}
export PYTHONUNBUFFERED=1
python3 "$kit/mk.py" "$work" "$size" || exit 1
begun=$(date +%s.%N)
CUDA_VISIBLE_DEVICES=$theirs T0=$begun STEPS=$steps MB=$batch timeout -k 10 "$limit" \
  python3 "$kit/trl_run.py" "$work" "$size" "$out/trl-$size.json" >"$out/trl-$size.txt" 2>&1 &
trl=$!
if [ "$ours" = "$theirs" ]; then # one GPU: one after the other
  wait "$trl"
  begun=$(date +%s.%N)
fi
(
  export CUDA_VISIBLE_DEVICES=$ours PYTHONPATH=$PWD:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH}
  timeout -s INT -k 20 "$limit" python3 -m rltrain run tests/bench/gpu/grpo-0.5b.yaml \
    actor_rollout_ref.model.path="$work/m$size" data.train_files="$work/train.parquet" data.val_files="$work/train.parquet" \
    custom_reward_function.path="$kit/reward.py" reward_model.rules=[] \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu="$batch" \
    trainer.total_training_steps="$steps" trainer.save_freq="$steps" trainer.capsule_steps=[] \
    trainer.default_local_dir="$work/run-$size" "$@" 2>&1
) | python3 -c '
import sys, time
for line in sys.stdin: print(f"{time.time() - float(sys.argv[1]):7.2f} {line}", end="", flush=True)' "$begun" >"$out/rltrain-$size.txt"
ended=$(date +%s.%N)
wait "$trl"
cp "$work/run-$size/metrics.jsonl" "$out/rltrain-$size.jsonl"
cp "$work/run-$size/clock.jsonl" "$out/rltrain-$size-clock.jsonl" 2>/dev/null
{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  python3 tests/bench/gpu/pair.py "$out/rltrain-$size.jsonl" "$out/rltrain-$size.txt" "$out/trl-$size.json" "$steps" "$begun" "$ended"
  PYTHONPATH=$PWD/trainer python3 tests/bench/gpu/report.py "$work/run-$size"
} 2>&1 | tee "$out/table-$size.txt"
