#!/bin/bash
# `rlcheck rollout` on one GPU of this machine, with a model of Qwen2.5-0.5B's shape and random weights:
#
#   rollout.sh OUT
#
# A healthy engine, one without graphs, one that does not sleep, hf; then a GPU that is full, a share that is too small,
# an engine that is given no time, a server, and one training step. OUT gets a report and a record of each. What to look
# for: asleep, most of the memory is back; the errors are vLLM's own, not "Engine core initialization failed"; and after
# each, the GPU holds what it held before (the last column).
set -u
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/../../.." || exit 1
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} PYTHONPATH=$PWD:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH}
used() {
  nvidia-smi --id="$CUDA_VISIBLE_DEVICES" --query-gpu=memory.used --format=csv,noheader
}
model=(toy.vocab_size=151936 toy.model.hidden_size=896 toy.model.intermediate_size=4864 toy.model.num_hidden_layers=24
  toy.model.num_attention_heads=14 toy.model.num_key_value_heads=2 toy.model.head_dim=64
  toy.model.max_position_embeddings=32768 toy.model.initializer_range=0.02
  data.max_prompt_length=512 data.max_response_length=512
  trainer.device=cuda trainer.n_gpus_per_node=1 actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.max_num_seqs=256 actor_rollout_ref.rollout.num_replicas=1)
try() {
  name=$1
  shift
  begun=$SECONDS
  timeout 500 python3 -m rlcheck rollout --record "$out/$name.json" -v "$@" >"$out/$name.txt" 2>&1
  echo "$name: exit code $?, $((SECONDS - begun)) s, GPU now $(used)"
  grep -E '^ +([✗!?] |GPU memory|first token|sleep:)|ROL00[17]' "$out/$name.txt"
}
echo "GPU before: $(used)"
try healthy toy-grpo "${model[@]}"
try again toy-grpo "${model[@]}"
try eager toy-grpo "${model[@]}" actor_rollout_ref.rollout.enforce_eager=true
try awake toy-grpo "${model[@]}" actor_rollout_ref.rollout.free_cache_engine=false
try random --random-weights toy-grpo "${model[@]}"
try hf toy-grpo "${model[@]}" actor_rollout_ref.rollout.name=hf actor_rollout_ref.rollout.free_cache_engine=false
try too-small toy-grpo "${model[@]}" actor_rollout_ref.rollout.gpu_memory_utilization=0.01
try no-time --start-timeout 3 toy-grpo "${model[@]}"
python3 -c "
import time, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int(free - 0.2 * total), dtype=torch.uint8, device='cuda')
print('held', flush=True)
time.sleep(300)" >"$out/hog" &
hog=$!
until grep -q held "$out/hog"; do sleep 0.5; kill -0 $hog || exit 1; done
try full toy-grpo "${model[@]}"
kill $hog
wait $hog 2>/dev/null
python3 - "$out/toy" "${model[@]}" <<'PY'
import sys
from pathlib import Path
from rltrain.config import load
from rltrain.toy.make import make_toy
make_toy(load("toy-grpo", sys.argv[2:]), Path(sys.argv[1]))
PY
VLLM_SERVER_DEV_MODE=1 python3 -m vllm.entrypoints.openai.api_server --model "$out/toy/model" --served-model-name tiny \
  --host 127.0.0.1 --port 18111 --max-model-len 1024 --gpu-memory-utilization 0.3 --enable-sleep-mode >"$out/server.log" 2>&1 &
server=$!
for _ in $(seq 300); do
  curl -sf http://127.0.0.1:18111/health && break
  kill -0 $server || break
  sleep 1
done
try server http://127.0.0.1:18111
curl -s -X POST "http://127.0.0.1:18111/sleep?level=1"
try server-asleep http://127.0.0.1:18111
kill $server
wait $server 2>/dev/null
echo "one training step:"
python3 - "$out/smoke" "${model[@]}" <<'PY'
import json, sys
from pathlib import Path
from rlcheck.measure.plugin import ProbeFailed, run_probe
directory = Path(sys.argv[1])
directory.mkdir(exist_ok=True)
request = {"source": "toy-grpo", "overrides": sys.argv[2:], "directory": str(directory)}
try:
    found = run_probe((), "smoke", request, stage_timeout_s=300, total_timeout_s=500)
except ProbeFailed as error:
    sys.exit(f"{error}\n" + "\n".join(error.tail))
kept = ("actor/loss", "actor/grad_norm", "training/rollout_probs_diff_mean", "perf/device_memory_used_gb")
print(found["seconds"], "s", found.get("failure") or {name: found["metrics"].get(name) for name in kept})
(directory / "smoke.json").write_text(json.dumps(found, indent=1))
PY
echo "GPU after: $(used)"
