#!/usr/bin/env bash
# Prolog of slurmd: a node whose GPUs or links have a fault takes no job. In slurm.conf:
#
#     Prolog=/etc/slurm/rlcheck-prolog.sh
#
# Where a prolog fails, Slurm drains the node and queues the job again (https://slurm.schedmd.com/prolog_epilog.html).
# So this one fails on what rlcheck has found, and on nothing else: where rlcheck is missing, fails itself or takes more
# than LIMIT_S, the job starts. The system log has the line either way.
RLCHECK=${RLCHECK:-/opt/rlcheck/bin/rlcheck}
LIMIT_S=${LIMIT_S:-20}

found=$(timeout --kill-after=5 "$LIMIT_S" "$RLCHECK" env --select GPU --select NET --format nagios 2>&1)
case $? in
    0) exit 0 ;;
    1) logger -t rlcheck -p daemon.warning -- "$found"; exit 0 ;;
    2) logger -t rlcheck -p daemon.err -- "$found"; exit 1 ;;
    *) logger -t rlcheck -p daemon.warning -- "not judged: ${found:-no answer in $LIMIT_S s}"; exit 0 ;;
esac
