#!/usr/bin/env bash
# Installs the npm packages of package-lock.json, and links them to bin/crawlers.
#
# They are kept outside of the tree, in $FLEETDESK_CRAWLERS_CACHE (~/.cache/fleetdesk/crawlers), by a key made of the
# lock file; the three keys used last are kept. Only a cold cache asks the npm registry. No script of a package runs.
#
# usage: test/crawlers/npm/install.sh
set -euo pipefail
cd "$(dirname "$0")/../../.."

from=test/crawlers/npm
cache=${FLEETDESK_CRAWLERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fleetdesk/crawlers}
key=$(cat $from/package.json $from/package-lock.json | sha256sum | cut -c1-16)
packages=$cache/$key
keep=3

link() {
    touch "$packages/used"
    mkdir -p bin
    # A link that is there already is left alone: tests may be running.
    [ "$(readlink bin/crawlers 2>/dev/null)" = "$packages" ] ||
        { ln -s "$packages" "bin/crawlers.$$" && mv -T "bin/crawlers.$$" bin/crawlers; }
}
if [ -d "$packages" ]; then
    link
    exit 0
fi

mkdir -p "$cache"
exec 9>"$cache/lock"
flock -w 300 9 || { echo "npm packages: another install holds $cache/lock for 5 minutes" >&2 && exit 1; }
if [ -d "$packages" ]; then # the other one made it
    link
    exit 0
fi

# With the lock, no install runs: what is half made has no owner.
rm -rf "$cache"/.install-*
work=$cache/.install-$key
mkdir "$work"
trap 'rm -rf "$work"' EXIT
cp $from/package.json $from/package-lock.json "$work"
if ! (cd "$work" && timeout 240 npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier) >"$work/log" 2>&1; then
    tail -n 50 "$work/log" >&2
    echo "npm packages: that failed (the end of its output is above); npm's registry must be reachable" >&2
    exit 1
fi
mv -T "$work" "$packages"
link

# The folders that were used least recently go.
find "$cache" -mindepth 2 -maxdepth 2 -name used -printf '%T@ %h\n' | sort -rn | tail -n +$((keep + 1)) | cut -d' ' -f2- |
    while IFS= read -r old; do rm -rf "$old"; done
