#!/usr/bin/env bash
# Generates anew and fails when a file under the given folders changes: then somebody changed a source and not what is
# made from it. It compares with the working tree, not with a commit, so that it also holds before one. The modules that
# a build links must be those that go.mod names.
#
# usage: hack/drift.sh FOLDER…
set -euo pipefail
cd "$(dirname "$0")/.."
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp -r --parents "$@" "$before"
"${MAKE:-make}" --no-print-directory generate
drifted=0
for folder in "$@"; do
    diff -ruN "$before/$folder" "$folder" || drifted=1
done
for module in . standalone; do
    (cd "$module" && go mod tidy -diff) || {
        echo "go.mod of $module is not tidy: run 'go mod tidy' there and commit it" >&2
        exit 1
    }
done
if [ "$drifted" != 0 ]; then
    echo "generated files were out of date; they are written anew now: look at the difference above and commit them" >&2
    exit 1
fi
