#!/usr/bin/env bash
# restart.sh LOGS COMMAND…: runs COMMAND, which writes its logs into LOGS, and after a failure does what rlcheck says.
# Ends with 0 when COMMAND has ended well, else with 1 and the reason. EXCLUDE: nodes that COMMAND is to leave out.
logs=$1
shift
left=${RESTARTS:-3}
while ! EXCLUDE=$EXCLUDE "$@"; do
    report=$(rlcheck diagnose "$logs" --format json)
    action=$(jq -r '.next.action' <<<"$report")
    why=$(jq -r '.next.why' <<<"$report")
    case $action in
        restart) ;;
        restart-without)
            nodes=$(jq -r '.next.nodes | join(",")' <<<"$report")
            # The log does not name the node: the same machines would fail again.
            [ -n "$nodes" ] || { echo "restart.sh: find the node first: $why" >&2; exit 1; }
            EXCLUDE=${EXCLUDE:+$EXCLUDE,}$nodes
            ;;
        go) echo "restart.sh: it failed, and no log says why" >&2; exit 1 ;;
        *) echo "restart.sh: ${action:-rlcheck gave no answer}: $why" >&2; exit 1 ;;
    esac
    [ $((left -= 1)) -ge 0 ] || { echo "restart.sh: the last restart failed, too: $why" >&2; exit 1; }
    echo "restart.sh: $action $EXCLUDE: $why" >&2
    mv "$logs" "$logs.$(date +%s.%N)" # what has been answered is not read again
done
