#!/usr/bin/env bash
# One rltrain run on all nodes of a Slurm job: a Ray head on the first node, a Ray worker on each other one, and
# `rltrain run` beside the head. Give the arguments of `rltrain run`:
#
#   sbatch --nodes=2 --gpus-per-node=8 docs/trainer/slurm.sh my.yaml trainer.default_local_dir=/shared/runs/first
#
# The environment that holds rltrain must be active, and lie where every node finds it.
#SBATCH --job-name=rltrain
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:TERM@300
set -euo pipefail

PORT=${RAY_PORT:-6379}
NODES=$SLURM_JOB_NUM_NODES
read -r HEAD < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# The address at which the others reach the first node. Debian and Ubuntu call a host itself 127.0.1.1, so that another
# node is asked for it where there is one.
ask=()
[ "$NODES" -eq 1 ] || ask=(srun --nodes=1 --ntasks=1 --exclude="$HEAD" --overlap)
ADDRESS=${HEAD_IP:-$(${ask[@]+"${ask[@]}"} getent ahostsv4 "$HEAD" | awk 'NR == 1 { print $1 }')}
[ -n "$ADDRESS" ] || { echo "slurm.sh: $HEAD has no IPv4 address; set HEAD_IP" >&2; exit 1; }
# Ray's nodes let each other in by this token alone; it lives as long as the job.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_ADDRESS=$ADDRESS:$PORT

started=()
stop() { kill "${started[@]}" 2>/dev/null || true; }
trap stop EXIT

srun --nodes=1 --ntasks=1 --nodelist="$HEAD" --overlap \
  ray start --head --node-ip-address="$ADDRESS" --port="$PORT" --include-dashboard=false --block &
started+=($!)
until ray status >/dev/null 2>&1; do
  kill -0 "${started[0]}" || { echo "slurm.sh: the Ray head on $HEAD ended" >&2; exit 1; }
  sleep 2
done
if [ "$NODES" -gt 1 ]; then
  srun --nodes=$((NODES - 1)) --ntasks=$((NODES - 1)) --exclude="$HEAD" --overlap \
    ray start --address="$RAY_ADDRESS" --block &
  started+=($!)
fi
deadline=$((SECONDS + 300))
until [ "$(ray status | grep -c '^ 1 node_')" -ge "$NODES" ]; do
  [ "$SECONDS" -lt "$deadline" ] || { ray status; echo "slurm.sh: not all $NODES nodes joined in 300 s" >&2; exit 1; }
  sleep 2
done

# Slurm's SIGTERM, 300 s before the time limit, goes on to rltrain, which saves the last finished step.
stopped='' status=0
rltrain run "$@" trainer.nnodes="$NODES" &
run=$!
trap 'stopped=yes; kill -TERM "$run"' TERM
wait "$run" || status=$?
if [ -n "$stopped" ]; then # the signal ended `wait` before it ended rltrain
  status=0
  wait "$run" || status=$?
fi
exit "$status"
