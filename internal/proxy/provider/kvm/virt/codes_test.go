package virt_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// The texts are a real daemon's.
func TestClasses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		code   virt.Code
		text   string
		want   fault.Class
	}{
		"domain":          {"a direct look-up may say so", virt.CodeNoDomain, "Domain not found: no domain with matching name 'one'", fault.NotFound},
		"network":         {"the same", virt.CodeNoNetwork, "Network not found: no network with matching name 'default'", fault.NotFound},
		"pool":            {"the same", virt.CodeNoStoragePool, "Storage pool not found: no storage pool with matching name 'default'", fault.NotFound},
		"volume":          {"the same", virt.CodeNoStorageVol, "Storage volume not found: no storage vol with matching name 'v'", fault.NotFound},
		"metadata":        {"the same", virt.CodeNoDomainMetadata, "metadata not found: Requested metadata element is not present", fault.NotFound},
		"inactive pool":   {"an inactive pool read as volume missing (terraform-provider-libvirt 52): it is there, and may be started", virt.CodeOperationInvalid, "Requested operation is not valid: storage pool 'default' is not active", fault.Unavailable},
		"inactive net":    {"the same", virt.CodeOperationInvalid, "Requested operation is not valid: network 'default' is not active", fault.Unavailable},
		"runs already":    {"the state is another than the caller thought: look again", virt.CodeOperationInvalid, "Requested operation is not valid: domain is already running", fault.Conflict},
		"does not run":    {"the same", virt.CodeOperationInvalid, "Requested operation is not valid: domain is not running", fault.Conflict},
		"transient":       {"the same", virt.CodeOperationInvalid, "Requested operation is not valid: cannot undefine transient domain", fault.Conflict},
		"nvram":           {"the same", virt.CodeOperationInvalid, "Requested operation is not valid: cannot undefine domain with nvram", fault.Conflict},
		"being allocated": {"another call fills it: soon done", virt.CodeOperationInvalid, "Requested operation is not valid: volume 'v' is still being allocated.", fault.Transient},
		"jobs":            {"pool has asynchronous jobs running (virt-manager 498)", virt.CodeInternalError, "internal error: pool 'default' has asynchronous jobs running.", fault.Transient},
		"state lock":      {"another call holds the domain: not done", virt.CodeOperationTimeout, "Timed out during operation: cannot acquire state change lock (held by monitor=remoteDispatchDomainCreate)", fault.Transient},
		"timed out":       {"whether it was done is unknown", virt.CodeOperationTimeout, "Timed out during operation: something else", fault.Timeout},
		"name taken":      {"already exists for ever after a failed create (terraform-provider-libvirt 921, 1003): the caller looks whose it is", virt.CodeOperationFailed, "operation failed: domain 'one' already exists with uuid 11111111-2222-3333-4444-000000000001", fault.Conflict},
		"uuid taken":      {"the same", virt.CodeOperationFailed, "operation failed: domain 'one' is already defined with uuid 11111111-2222-3333-4444-000000000001", fault.Conflict},
		"volume exists":   {"made meanwhile", virt.CodeStorageVolExist, "storage volume 'v' exists already", fault.Conflict},
		"stray file":      {"the pool does not know the file yet", virt.CodeOperationInvalid, "Requested operation is not valid: volume target path '/p/v' already exists", fault.Conflict},
		"domain exists":   {"an older daemon's code", 28, "this domain exists already", fault.Conflict},
		"full":            {"pool full", virt.CodeSystemError, "Unable to write /p/v: No space left on device", fault.Quota},
		"full at create":  {"pool full", virt.CodeSystemError, "cannot allocate 104857600 bytes in file '/p/t': No space left on device", fault.Quota},
		"disk quota":      {"a quota on the pool", virt.CodeSystemError, "Unable to write /p/v: Disk quota exceeded", fault.Quota},
		"lvm full":        {"a pool that counts", virt.CodeOperationFailed, "operation failed: Not enough free space in volume group", fault.Quota},
		"memory":          {"the host has no more", virt.CodeInternalError, "internal error: qemu unexpectedly closed the monitor: cannot set up guest memory 'pc.ram': Cannot allocate memory", fault.Quota},
		"access":          {"polkit's rules", virt.CodeAccessDenied, "access denied: 'QEMU' denied access", fault.Denied},
		"read only":       {"a read-only connection", 29, "operation virDomainCreate forbidden for read only access", fault.Denied},
		"auth failed":     {"", 45, "authentication failed: access denied by policy", fault.Denied},
		"auth cancelled":  {"", 79, "authentication cancelled: user cancelled authentication process", fault.Denied},
		"auth no agent":   {"", virt.CodeAuthUnavailable, "authentication unavailable: no polkit agent available", fault.Denied},
		"auth required":   {"SASL", virt.CodeRPC, "authentication required", fault.Denied},
		"rpc":             {"the daemon's own protocol failed", virt.CodeRPC, "internal error: odd", fault.Unavailable},
		"no support":      {"the driver has no such call", virt.CodeNoSupport, "this function is not supported by the connection driver: virStorageVolUpload", fault.Unsupported},
		"procedure":       {"an old daemon", virt.CodeRPC, "unknown procedure: 378", fault.Unsupported},
		"flags":           {"an old daemon: the caller tries with fewer", virt.CodeInvalidArg, "unsupported flags (0x20) in function qemuDomainUndefineFlags", fault.Unsupported},
		"virt type":       {"the host does not offer it", virt.CodeInvalidArg, "invalid argument: Emulator '/usr/bin/qemu-system-x86_64' does not support virt type 'xen'", fault.Unsupported},
		"accel":           {"the same, without /dev/kvm", virt.CodeInvalidArg, "invalid argument: the accel 'kvm' is not supported by '/usr/bin/qemu-system-x86_64' on this host", fault.Unsupported},
		"argument":        {"it stays wrong", virt.CodeInvalidArg, "invalid argument: unknown virttype: nonsense", fault.Permanent},
		"kvm define":      {"a person allows emulation or names another host", virt.CodeConfigUnsupported, "unsupported configuration: Emulator '/usr/bin/qemu-system-x86_64' does not support virt type 'kvm'", fault.Permanent},
		"format":          {"it stays wrong", virt.CodeConfigUnsupported, "unsupported configuration: unknown volume format type nonsense", fault.Permanent},
		"xml":             {"it stays wrong", virt.CodeXMLError, "XML error: an os <type> must be specified", fault.Permanent},
		"xml detail":      {"it stays wrong", 35, "(domain_definition):1: Couldn't find end of Start Tag oops line 1", fault.Permanent},
		"volume name":     {"it stays wrong", virt.CodeOperationInvalid, "Requested operation is not valid: volume name '../x' cannot contain '/'", fault.Permanent},
		"bridge":          {"a person makes it", virt.CodeSystemError, "Cannot get interface MTU on 'nobr0': No such device", fault.Permanent},
		"disk file":       {"it does not come back by itself", virt.CodeSystemError, "Cannot access storage file '/p/none.qcow2' (as uid:0, gid:0): No such file or directory", fault.Permanent},
		"backing file":    {"it does not come back by itself", virt.CodeSystemError, "Cannot access backing file '/p/base.qcow2' of storage file '/p/over.qcow2' (as uid:0, gid:0): No such file or directory", fault.Permanent},
		"not qcow2":       {"it stays so", virt.CodeInternalError, "internal error: process exited while connecting to monitor: Image is not in qcow2 format", fault.Permanent},
		"apparmor":        {"permission denied by AppArmor with volume disks (terraform-provider-libvirt 126, 1163, 920)", virt.CodeInternalError, "internal error: process exited while connecting to monitor: Could not open '/p/a.qcow2': Permission denied", fault.Permanent},
		"vanished file":   {"made anew, it works", virt.CodeSystemError, "Unable to open stream for '/p/z': No such file or directory", fault.Transient},
		"virtlogd":        {"a helper of the daemon is down", virt.CodeSystemError, "Failed to connect socket to '/var/run/libvirt/virtlogd-sock': No such file or directory", fault.Unavailable},
		"agent":           {"agent not connected taken as fatal (terraform-provider-libvirt 1050)", virt.CodeAgentUnresponsive, "Guest agent is not responding: QEMU guest agent is not connected", fault.Unavailable},
		"agent slow":      {"the same", 112, "Guest agent is not responding: timeout", fault.Unavailable},
		"busy":            {"soon free", virt.CodeResourceBusy, "resource busy", fault.Transient},
		"unknown":         {"nobody knows: try again", 9999, "new", fault.Transient},
		"text says gone":  {"no text makes an answer NotFound", virt.CodeInternalError, "Domain not found", fault.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			err := virt.Fault(tc.code, tc.text)
			if got := fault.Of(err); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
			e, ok := errors.AsType[*virt.Error](err)
			if !ok || e.Code != tc.code || e.Message != tc.text || !strings.Contains(err.Error(), tc.code.String()) {
				t.Errorf("the answer became %v", err)
			}
			if wrapped := fmt.Errorf("x: %w", err); !virt.Is(wrapped, tc.code) || virt.Is(wrapped, tc.code+1) {
				t.Error("Is does not know the code")
			}
		})
	}
}

// NotFound rebuilds machines: only these codes may say it, whatever the text.
func TestOnlyCodesSayNotFound(t *testing.T) {
	gone := map[virt.Code]bool{42: true, 43: true, 49: true, 50: true, 57: true, 72: true, 80: true, 103: true}
	for code := virt.Code(-1); code < 200; code++ {
		for _, text := range []string{"", "not found", "No such file or directory", "no domain with matching uuid", "is not active"} {
			if got := fault.Of(virt.Fault(code, text)) == fault.NotFound; got != gone[code] {
				t.Errorf("%v with %q: NotFound is %v", code, text, got)
			}
		}
	}
}

func TestFaultOfDomain(t *testing.T) {
	for code := virt.Code(1); code < 200; code++ {
		want := fault.Of(virt.Fault(code, "x"))
		if want == fault.NotFound && code != virt.CodeNoDomain {
			want = fault.Permanent
		}
		err := virt.FaultOfDomain(code, "x")
		if got := fault.Of(err); got != want || !virt.Is(err, code) {
			t.Errorf("%v: %q, want %q", code, got, want)
		}
	}
}

func TestCodeNames(t *testing.T) {
	for code, want := range map[virt.Code]string{
		1: "VIR_ERR_INTERNAL_ERROR", 12: "VIR_ERR_HTTP_ERROR", 16: "VIR_ERR_OS_TYPE", 27: "VIR_ERR_XML_ERROR", 39: "VIR_ERR_RPC",
		41: "VIR_WAR_NO_NETWORK", 42: "VIR_ERR_NO_DOMAIN", 79: "VIR_ERR_AUTH_CANCELLED", 85: "VIR_ERR_SSH",
		91: "VIR_ERR_CPU_INCOMPATIBLE", 94: "VIR_ERR_AUTH_UNAVAILABLE", 113: "VIR_ERR_AGENT_COMMAND_FAILED", 114: "VIR_ERR_114",
	} {
		if got := code.String(); got != want {
			t.Errorf("%d is %q, not %q", int32(code), got, want)
		}
	}
	for code := virt.Code(1); code <= 113; code++ {
		if strings.HasSuffix(code.String(), fmt.Sprint(int32(code))) {
			t.Errorf("%d has no name", int32(code))
		}
	}
}
