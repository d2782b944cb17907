#!/usr/bin/env bash
# Builds the disks of the guests that the real lane boots, and links them to bin/kvm: tiny.qcow2, debian.qcow2,
# debian-bare.qcow2 (the same without qemu-guest-agent) and repository/ (a Debian package repository that has it).
#
# They are kept outside of the tree, in $FLEETDESK_KVM_CACHE (~/.cache/fleetdesk/kvm-test), by a key made of all that
# they are built from in this tree; the three keys used last are kept. What Debian published since then is not asked for:
# remove the folder to build from that. Needs root, and Debian's packages over HTTP on a cold cache; a minute and a half.
#
# usage: hack/kvm/images.sh
#   FLEETDESK_KVM_MIRROR  a mirror of Debian; deb.debian.org otherwise
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=${FLEETDESK_KVM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fleetdesk/kvm-test}
key=$(
    cd hack/kvm
    find . -type f ! -name '*_test.go' ! -name '*.md' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16
)
image=$cache/$key
keep=3

link() {
    touch "$image/used"
    mkdir -p bin
    # A link that is there already is left alone: tests may be running.
    [ "$(readlink bin/kvm 2>/dev/null)" = "$image" ] || { ln -s "$image" "bin/kvm.$$" && mv -T "bin/kvm.$$" bin/kvm; }
}
if [ -d "$image" ]; then
    link
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "images of guests: building them needs root: run 'sudo make kvm-images'" >&2
    exit 1
fi

mkdir -p "$cache"
exec 9>"$cache/lock"
flock -w 900 9 || { echo "images of guests: another build holds $cache/lock for 15 minutes" >&2 && exit 1; }
if [ -d "$image" ]; then # the other builder made it
    link
    exit 0
fi

# With the lock, no build runs: what is half made has no owner.
rm -rf "$cache"/.build-*
work=$cache/.build-$key
mkdir "$work"
trap 'rm -rf "$work"' EXIT

(cd hack/kvm/tinyguest && go build -ldflags='-s -w' -o "$work/init" .)
# In namespaces of its own: a build that is killed leaves no mount. It inherits the lock: while any of it runs, no other starts.
echo "building images of guests: about a minute and a half" >&2
if ! unshare --fork --kill-child --pid --mount --mount-proc --uts --propagation private \
    hack/kvm/build.sh "$work" >"$work/log" 2>&1; then
    tail -n 100 "$work/log" >&2
    echo "images of guests: that failed (the end of its output is above); the mirror must be reachable, see hack/kvm/images.sh" >&2
    exit 1
fi
mv -T "$work/out" "$image"
link

# The folders that were used least recently go.
find "$cache" -mindepth 2 -maxdepth 2 -name used -printf '%T@ %h\n' | sort -rn | tail -n +$((keep + 1)) | cut -d' ' -f2- |
    while IFS= read -r old; do rm -rf "$old"; done
