#!/bin/bash
# `rlcheck slow` and `rlcheck nccl --quick` on two GPUs of this machine: is the slow rank named, is the weak GPU?
#
#   slow.sh OUT [GPUS]      OUT gets clock.jsonl, ranks.jsonl, reports of healthy and of loaded GPUs, gpu-busy.json
#
# Needs torch and what rlcheck needs; about three minutes. Each part ends after PART_S (110 s). The exit code is the
# number of parts that did not come out right.
set -u
mkdir -p "$1"
out=$(cd "$1" && pwd)
gpus=${2:-2}
cd "$(dirname "$0")/../../.." || exit 1
export PYTHONPATH=$PWD:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
part=${PART_S:-110} wrong=0
job=tests/bench/gpu/slow_gpu.py
within() {
  echo "== $1, at $SECONDS s"
  shift
  timeout -s INT -k 10 "$part" "$@" || { echo "exit code $?"; wrong=$((wrong + 1)); }
}
quick() { # NAME GPU: the report as JSON and as text; that GPU alone is to be named
  timeout -s INT -k 10 "$part" python3 -m rlcheck nccl --quick --record "$out/$1-facts.json" --format json >"$out/$1.json" 2>"$out/$1.err"
  python3 -m rlcheck nccl --facts "$out/$1-facts.json" >"$out/$1.txt" 2>&1
  grep -E '^ +[✗!] ' "$out/$1.txt"
  within "$1" python3 $job weak "$out/$1.json" "$2"
}
loaded() { # GPU
  python3 $job load "$1" >"$out/load-$1.txt" 2>&1 &
  local pid=$!
  for _ in $(seq 60); do
    grep -q loaded "$out/load-$1.txt" && break
    sleep 0.5
  done
  quick "loaded-$1" "$1"
  kill "$pid"
  wait "$pid" 2>/dev/null
}
nvidia-smi -L | tee "$out/gpus.txt"
# How busy the driver says that the GPUs are, as rltrain's clock writes it.
python3 - "$gpus" >"$out/gpu-busy.json" 2>&1 <<'PY' &
import json, sys, time
from rltrain.cluster.gpu_memory import GpuMemory
watched = GpuMemory([str(number) for number in range(int(sys.argv[1]))])
for _ in range(6):
    time.sleep(10)
    begun = time.perf_counter()
    print(json.dumps({"busy": watched.take_busy(), "took_s": time.perf_counter() - begun}), flush=True)
PY
busy=$!
within ranks python3 -m torch.distributed.run --standalone --nproc-per-node "$gpus" $job ranks "$out"
wait "$busy"
cat "$out/gpu-busy.json"
quick healthy -1
for gpu in $(seq 0 $((gpus - 1))); do loaded "$gpu"; done
echo "$wrong parts are not right, after $SECONDS s" | tee "$out/said.txt"
exit "$wrong"
