#!/usr/bin/env bash
# Runs a build quietly: a line every 10 s while it works, its messages in full when it fails. `go build -v` names each
# package it compiles and each module it downloads; those names are counted, not shown.
#
# usage: hack/progress.sh LABEL command…
set -euo pipefail
label=$1
shift

log=$(mktemp)
trap 'rm -f "$log"' EXIT
start=$SECONDS
"$@" >"$log" 2>&1 &
build=$!
trap 'kill "$build" 2>/dev/null || true; rm -f "$log"' INT TERM EXIT

is_name='^[A-Za-z0-9_.~/-]+$' # an import path alone on its line
next=10
while kill -0 "$build" 2>/dev/null; do
    sleep 0.2
    took=$((SECONDS - start))
    if [ "$took" -ge "$next" ]; then
        next=$((took + 10))
        fetched=$(grep -c '^go: downloading ' "$log" || true)
        compiled=$(grep -cE "$is_name" "$log" || true)
        printf '  %s: %d:%02d, %d modules fetched, %d packages compiled\n' \
            "$label" $((took / 60)) $((took % 60)) "$fetched" "$compiled" >&2
    fi
done
rc=0
wait "$build" || rc=$?
took=$((SECONDS - start))
if [ "$rc" != 0 ]; then
    grep -vE "^go: downloading |$is_name" "$log" >&2 || true
    printf '  %s: failed after %d:%02d\n' "$label" $((took / 60)) $((took % 60)) >&2
elif [ "$took" -ge 10 ]; then
    printf '  %s: done in %d:%02d\n' "$label" $((took / 60)) $((took % 60)) >&2
fi
exit "$rc"
