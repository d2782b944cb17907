package virt

import (
	"fmt"
	"strings"

	"fleetdesk/internal/core/fault"
)

// codeNames are the names of virErrorNumber, as libvirt spells them.
var codeNames = map[Code]string{
	1:   "VIR_ERR_INTERNAL_ERROR",
	2:   "VIR_ERR_NO_MEMORY",
	3:   "VIR_ERR_NO_SUPPORT",
	4:   "VIR_ERR_UNKNOWN_HOST",
	5:   "VIR_ERR_NO_CONNECT",
	6:   "VIR_ERR_INVALID_CONN",
	7:   "VIR_ERR_INVALID_DOMAIN",
	8:   "VIR_ERR_INVALID_ARG",
	9:   "VIR_ERR_OPERATION_FAILED",
	10:  "VIR_ERR_GET_FAILED",
	11:  "VIR_ERR_POST_FAILED",
	12:  "VIR_ERR_HTTP_ERROR",
	13:  "VIR_ERR_SEXPR_SERIAL",
	14:  "VIR_ERR_NO_XEN",
	15:  "VIR_ERR_XEN_CALL",
	16:  "VIR_ERR_OS_TYPE",
	17:  "VIR_ERR_NO_KERNEL",
	18:  "VIR_ERR_NO_ROOT",
	19:  "VIR_ERR_NO_SOURCE",
	20:  "VIR_ERR_NO_TARGET",
	21:  "VIR_ERR_NO_NAME",
	22:  "VIR_ERR_NO_OS",
	23:  "VIR_ERR_NO_DEVICE",
	24:  "VIR_ERR_NO_XENSTORE",
	25:  "VIR_ERR_DRIVER_FULL",
	26:  "VIR_ERR_CALL_FAILED",
	27:  "VIR_ERR_XML_ERROR",
	28:  "VIR_ERR_DOM_EXIST",
	29:  "VIR_ERR_OPERATION_DENIED",
	30:  "VIR_ERR_OPEN_FAILED",
	31:  "VIR_ERR_READ_FAILED",
	32:  "VIR_ERR_PARSE_FAILED",
	33:  "VIR_ERR_CONF_SYNTAX",
	34:  "VIR_ERR_WRITE_FAILED",
	35:  "VIR_ERR_XML_DETAIL",
	36:  "VIR_ERR_INVALID_NETWORK",
	37:  "VIR_ERR_NETWORK_EXIST",
	38:  "VIR_ERR_SYSTEM_ERROR",
	39:  "VIR_ERR_RPC",
	40:  "VIR_ERR_GNUTLS_ERROR",
	41:  "VIR_WAR_NO_NETWORK",
	42:  "VIR_ERR_NO_DOMAIN",
	43:  "VIR_ERR_NO_NETWORK",
	44:  "VIR_ERR_INVALID_MAC",
	45:  "VIR_ERR_AUTH_FAILED",
	46:  "VIR_ERR_INVALID_STORAGE_POOL",
	47:  "VIR_ERR_INVALID_STORAGE_VOL",
	48:  "VIR_WAR_NO_STORAGE",
	49:  "VIR_ERR_NO_STORAGE_POOL",
	50:  "VIR_ERR_NO_STORAGE_VOL",
	51:  "VIR_WAR_NO_NODE",
	52:  "VIR_ERR_INVALID_NODE_DEVICE",
	53:  "VIR_ERR_NO_NODE_DEVICE",
	54:  "VIR_ERR_NO_SECURITY_MODEL",
	55:  "VIR_ERR_OPERATION_INVALID",
	56:  "VIR_WAR_NO_INTERFACE",
	57:  "VIR_ERR_NO_INTERFACE",
	58:  "VIR_ERR_INVALID_INTERFACE",
	59:  "VIR_ERR_MULTIPLE_INTERFACES",
	60:  "VIR_WAR_NO_NWFILTER",
	61:  "VIR_ERR_INVALID_NWFILTER",
	62:  "VIR_ERR_NO_NWFILTER",
	63:  "VIR_ERR_BUILD_FIREWALL",
	64:  "VIR_WAR_NO_SECRET",
	65:  "VIR_ERR_INVALID_SECRET",
	66:  "VIR_ERR_NO_SECRET",
	67:  "VIR_ERR_CONFIG_UNSUPPORTED",
	68:  "VIR_ERR_OPERATION_TIMEOUT",
	69:  "VIR_ERR_MIGRATE_PERSIST_FAILED",
	70:  "VIR_ERR_HOOK_SCRIPT_FAILED",
	71:  "VIR_ERR_INVALID_DOMAIN_SNAPSHOT",
	72:  "VIR_ERR_NO_DOMAIN_SNAPSHOT",
	73:  "VIR_ERR_INVALID_STREAM",
	74:  "VIR_ERR_ARGUMENT_UNSUPPORTED",
	75:  "VIR_ERR_STORAGE_PROBE_FAILED",
	76:  "VIR_ERR_STORAGE_POOL_BUILT",
	77:  "VIR_ERR_SNAPSHOT_REVERT_RISKY",
	78:  "VIR_ERR_OPERATION_ABORTED",
	79:  "VIR_ERR_AUTH_CANCELLED",
	80:  "VIR_ERR_NO_DOMAIN_METADATA",
	81:  "VIR_ERR_MIGRATE_UNSAFE",
	82:  "VIR_ERR_OVERFLOW",
	83:  "VIR_ERR_BLOCK_COPY_ACTIVE",
	84:  "VIR_ERR_OPERATION_UNSUPPORTED",
	85:  "VIR_ERR_SSH",
	86:  "VIR_ERR_AGENT_UNRESPONSIVE",
	87:  "VIR_ERR_RESOURCE_BUSY",
	88:  "VIR_ERR_ACCESS_DENIED",
	89:  "VIR_ERR_DBUS_SERVICE",
	90:  "VIR_ERR_STORAGE_VOL_EXIST",
	91:  "VIR_ERR_CPU_INCOMPATIBLE",
	92:  "VIR_ERR_XML_INVALID_SCHEMA",
	93:  "VIR_ERR_MIGRATE_FINISH_OK",
	94:  "VIR_ERR_AUTH_UNAVAILABLE",
	95:  "VIR_ERR_NO_SERVER",
	96:  "VIR_ERR_NO_CLIENT",
	97:  "VIR_ERR_AGENT_UNSYNCED",
	98:  "VIR_ERR_LIBSSH",
	99:  "VIR_ERR_DEVICE_MISSING",
	100: "VIR_ERR_INVALID_NWFILTER_BINDING",
	101: "VIR_ERR_NO_NWFILTER_BINDING",
	102: "VIR_ERR_INVALID_DOMAIN_CHECKPOINT",
	103: "VIR_ERR_NO_DOMAIN_CHECKPOINT",
	104: "VIR_ERR_NO_DOMAIN_BACKUP",
	105: "VIR_ERR_INVALID_NETWORK_PORT",
	106: "VIR_ERR_NETWORK_PORT_EXIST",
	107: "VIR_ERR_NO_NETWORK_PORT",
	108: "VIR_ERR_NO_HOSTNAME",
	109: "VIR_ERR_CHECKPOINT_INCONSISTENT",
	110: "VIR_ERR_MULTIPLE_DOMAINS",
	111: "VIR_ERR_NO_NETWORK_METADATA",
	112: "VIR_ERR_AGENT_COMMAND_TIMEOUT",
	113: "VIR_ERR_AGENT_COMMAND_FAILED",
}

// Codes that only the classes need.
const (
	codeNoMemory            Code = 2
	codeNoConnect           Code = 5
	codeInvalidConn         Code = 6
	codeInvalidDomain       Code = 7
	codeOSType              Code = 16
	codeDriverFull          Code = 25
	codeDomExist            Code = 28
	codeOperationDenied     Code = 29
	codeParseFailed         Code = 32
	codeConfSyntax          Code = 33
	codeXMLDetail           Code = 35
	codeInvalidNetwork      Code = 36
	codeNetworkExist        Code = 37
	codeInvalidMAC          Code = 44
	codeAuthFailed          Code = 45
	codeInvalidStoragePool  Code = 46
	codeInvalidStorageVol   Code = 47
	codeNoSecurityModel     Code = 54
	codeNoInterface         Code = 57
	codeNoDomainSnapshot    Code = 72
	codeArgumentUnsupported Code = 74
	codeAuthCancelled       Code = 79
	codeOverflow            Code = 82
	codeOperationUnsupp     Code = 84
	codeDBusService         Code = 89
	codeCPUIncompatible     Code = 91
	codeXMLInvalidSchema    Code = 92
	codeAuthUnavailable     Code = 94
	codeNoServer            Code = 95
	codeAgentUnsynced       Code = 97
	codeNoDomainCheckpoint  Code = 103
	codeNetworkPortExist    Code = 106
	codeAgentTimeout        Code = 112
	codeAgentFailed         Code = 113
)

// String is libvirt's own name of the code, or VIR_ERR_ with its number.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return fmt.Sprintf("VIR_ERR_%d", int32(c))
}

// classOf is the class of a daemon's answer. Few codes are sharp enough; for
// the others the text tells, since libvirt has nothing else. No text ever
// makes an answer NotFound: only a code that says "not there" does.
func classOf(c Code, message string) fault.Class {
	if class, ok := classOfCode(c); ok {
		return class
	}
	if class, ok := classOfText(message); ok {
		return class
	}
	switch c {
	case CodeOperationInvalid:
		// The thing is not in the state that the call is for (it runs already,
		// it does not run). The same call fails again until somebody looks at
		// the thing anew, and that is what Conflict asks for.
		return fault.Conflict
	case CodeInvalidArg:
		return fault.Permanent
	case CodeRPC:
		return fault.Unavailable
	case CodeOperationTimeout:
		return fault.Timeout
	}
	return fault.Transient
}

// classOfCode knows the codes that need no text.
func classOfCode(c Code) (fault.Class, bool) {
	switch c {
	case CodeNoDomain, CodeNoNetwork, CodeNoStoragePool, CodeNoStorageVol, CodeNoDomainMetadata,
		codeNoInterface, codeNoDomainSnapshot, codeNoDomainCheckpoint:
		return fault.NotFound, true
	case CodeStorageVolExist, codeDomExist, codeNetworkExist, codeNetworkPortExist:
		return fault.Conflict, true
	case CodeAccessDenied, codeOperationDenied, codeAuthFailed, codeAuthCancelled, codeAuthUnavailable:
		return fault.Denied, true
	case CodeNoSupport, codeArgumentUnsupported, codeOperationUnsupp:
		return fault.Unsupported, true
	case CodeXMLError, codeXMLDetail, codeXMLInvalidSchema, codeParseFailed, codeConfSyntax,
		codeOSType, codeInvalidDomain, codeInvalidNetwork, codeInvalidMAC, codeInvalidStoragePool,
		codeInvalidStorageVol, codeNoSecurityModel, codeOverflow, codeCPUIncompatible,
		// The definition asks for what this host does not have, such as type
		// kvm without acceleration: a person changes the one or the other.
		CodeConfigUnsupported:
		return fault.Permanent, true
	case codeDriverFull:
		return fault.Quota, true
	case CodeResourceBusy, codeNoMemory:
		return fault.Transient, true
	case CodeAgentUnresponsive, codeAgentUnsynced, codeAgentTimeout, codeAgentFailed,
		codeNoConnect, codeInvalidConn, codeNoServer, codeDBusService:
		return fault.Unavailable, true
	}
	return "", false
}

// textRules are read in order; the first whose parts all occur decides. They
// are for VIR_ERR_SYSTEM_ERROR, VIR_ERR_INTERNAL_ERROR and the like, which
// carry the errno's or QEMU's own words.
var textRules = []struct {
	class fault.Class
	parts []string
}{
	// A pool that another call is filling, a lock that another call holds.
	{fault.Transient, []string{"asynchronous jobs running"}},
	{fault.Transient, []string{"still being allocated"}},
	{fault.Transient, []string{"cannot acquire state change lock"}},
	// The file behind a volume vanished under the pool: made anew, it works.
	{fault.Transient, []string{"Unable to open stream for"}},

	{fault.Conflict, []string{"already exists"}},
	{fault.Conflict, []string{"is already defined with uuid"}},

	{fault.Quota, []string{"No space left on device"}},
	{fault.Quota, []string{"Disk quota exceeded"}},
	{fault.Quota, []string{"ot enough free space"}},
	{fault.Quota, []string{"Cannot allocate memory"}},
	{fault.Quota, []string{"cannot set up guest memory"}},

	// A pool or network that is stopped is there, and may be started.
	{fault.Unavailable, []string{"storage pool", "is not active"}},
	{fault.Unavailable, []string{"network", "is not active"}},
	// virtlogd, virtlockd, virtqemud: a helper of the daemon is down.
	{fault.Unavailable, []string{"Failed to connect socket to"}},
	{fault.Unavailable, []string{"Connection refused"}},

	{fault.Denied, []string{"authentication required"}},
	{fault.Unsupported, []string{"unknown procedure"}},
	{fault.Unsupported, []string{"unsupported flags"}},
	{fault.Unsupported, []string{"does not support virt type"}},
	{fault.Unsupported, []string{"is not supported by"}},

	// AppArmor, SELinux, owners and modes: a person sets them right.
	{fault.Permanent, []string{"Permission denied"}},
	{fault.Permanent, []string{"Operation not permitted"}},
	{fault.Permanent, []string{"Read-only file system"}},
	// A bridge, a file, a binary that the definition names and the host lacks.
	{fault.Permanent, []string{"No such device"}},
	{fault.Permanent, []string{"No such file or directory"}},
	{fault.Permanent, []string{"Image is not in"}},
	{fault.Permanent, []string{"ould not access KVM"}},
	{fault.Permanent, []string{"failed to initialize kvm"}},
	{fault.Permanent, []string{"cannot contain '/'"}},
	{fault.Permanent, []string{"File name too long"}},
}

func classOfText(message string) (fault.Class, bool) {
rules:
	for _, r := range textRules {
		for _, p := range r.parts {
			if !strings.Contains(message, p) {
				continue rules
			}
		}
		return r.class, true
	}
	return "", false
}

// FaultOfDomain is [Fault] for the calls that define or start a domain. The
// daemon's NotFound about something else than the domain, such as the network
// that its definition names, is Permanent there: the domain itself is not
// missing, and nobody may take it for that.
func FaultOfDomain(code Code, message string) error {
	err := Fault(code, message)
	if code != CodeNoDomain && fault.Of(err) == fault.NotFound {
		return fault.Wrap(fault.Permanent, err)
	}
	return err
}
