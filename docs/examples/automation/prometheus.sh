#!/usr/bin/env bash
# Every 15 minutes by cron, for node_exporter --collector.textfile.directory=/var/lib/node_exporter:
#
#     */15 * * * * root /usr/local/bin/rlcheck-prometheus.sh
#
# --output replaces the file as a whole. Exit code 1 (a check failed) is an answer; after 2 or 3 the old file stays, and
# grows old: RlcheckSilent in prometheus-rules.yaml.
TEXTFILES=${TEXTFILES:-/var/lib/node_exporter}
RLCHECK=${RLCHECK:-/opt/rlcheck/bin/rlcheck}

timeout 120 "$RLCHECK" env --select GPU --select NET --select SYS --format prometheus --output "$TEXTFILES/rlcheck.prom"
[ $? -le 1 ]
