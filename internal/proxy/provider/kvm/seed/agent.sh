#!/bin/sh
# Fleetdesk: installs and starts the QEMU guest agent, by which the host learns
# the guest's addresses. cloud-init runs this as vendor-data, after the user's
# packages and before the user's runcmd. It does nothing twice, gives up after
# some minutes, and never fails the boot: without an agent the host asks DHCP and
# ARP. A user's cloud-config turns it off with "vendor_data: {enabled: false}".

tries=10
pause=5
budget=300
export DEBIAN_FRONTEND=noninteractive

say() { echo "fleetdesk: $*"; }

have() { command -v "$1" >/dev/null 2>&1; }

now() { date +%s 2>/dev/null || echo 0; }

# bounded SECONDS COMMAND...: ends the command after that time where it can.
bounded() {
	seconds=$1
	shift
	if have timeout; then
		timeout "$seconds" "$@" </dev/null
	else
		"$@" </dev/null
	fi
}

apt_get() {
	bounded "$@" -q -o DPkg::Lock::Timeout=60 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 \
		-o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold
}

find_manager() {
	for manager in apt-get dnf yum zypper apk; do
		have "$manager" && return 0
	done
	return 1
}

install_agent() {
	case $manager in
	apt-get)
		apt_get 120 apt-get update
		apt_get 600 apt-get install -y --no-install-recommends qemu-guest-agent
		;;
	dnf | yum) bounded 600 "$manager" -q -y install qemu-guest-agent ;;
	zypper) bounded 600 zypper --quiet --non-interactive install --no-recommends qemu-guest-agent ;;
	apk) bounded 600 apk add --quiet --update-cache qemu-guest-agent ;;
	esac
}

# start_agent does not wait: systemd's unit waits for its device.
start_agent() {
	if have systemctl; then
		# enable loads all units anew, which takes seconds: only where it is needed.
		systemctl --quiet is-enabled qemu-guest-agent 2>/dev/null || systemctl enable qemu-guest-agent >/dev/null 2>&1
		systemctl --no-block start qemu-guest-agent
	elif have rc-service; then
		rc-update add qemu-guest-agent default >/dev/null 2>&1
		rc-service qemu-guest-agent status >/dev/null 2>&1 || rc-service qemu-guest-agent start
	elif have service; then
		service qemu-guest-agent start
	else
		return 1
	fi
}

if ! have qemu-ga; then
	if ! find_manager; then
		say "the guest agent is not installed: no package manager that is known here"
		exit 0
	fi
	begun=$(now)
	try=1
	while :; do
		install_agent
		have qemu-ga && break
		if [ "$try" -ge "$tries" ] || [ $(($(now) - begun)) -ge "$budget" ]; then
			say "the guest agent could not be installed (tries: $try); the host asks DHCP and ARP for the address"
			exit 0
		fi
		say "the guest agent is not installed yet (try $try of $tries); once more in $pause seconds"
		try=$((try + 1))
		sleep "$pause"
	done
	say "the guest agent is installed"
fi

if start_agent; then
	say "the guest agent is started"
else
	say "the guest agent is installed and could not be started"
fi
exit 0
