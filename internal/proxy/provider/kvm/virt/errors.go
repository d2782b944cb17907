package virt

import (
	"errors"
	"fmt"

	"fleetdesk/internal/core/fault"
)

// Code is a number of libvirt's virErrorNumber.
type Code int32

// Codes that the provider acts on; virErrorNumber has them all.
const (
	CodeInternalError     Code = 1
	CodeInvalidArg        Code = 8
	CodeOperationFailed   Code = 9
	CodeXMLError          Code = 27
	CodeSystemError       Code = 38
	CodeRPC               Code = 39
	CodeNoDomain          Code = 42
	CodeNoNetwork         Code = 43
	CodeNoStoragePool     Code = 49
	CodeNoStorageVol      Code = 50
	CodeOperationInvalid  Code = 55
	CodeNoSupport         Code = 3
	CodeConfigUnsupported Code = 67
	CodeOperationTimeout  Code = 68
	CodeAuthUnavailable   Code = 94
	CodeNoDomainMetadata  Code = 80
	CodeAgentUnresponsive Code = 86
	CodeResourceBusy      Code = 87
	CodeAccessDenied      Code = 88
	CodeStorageVolExist   Code = 90
)

// Error is what a libvirt daemon answered.
type Error struct {
	Code    Code
	Message string
}

// Error is the daemon's own text with the code's name.
func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Message, e.Code) }

// Is reports whether err is a daemon's answer with that code.
func Is(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// Fault returns the daemon's answer as an error with its class: what
// implementations of [Conn] return.
func Fault(code Code, message string) error {
	return fault.Wrap(classOf(code, message), &Error{Code: code, Message: message})
}
