package virt_test

import (
	"context"
	"io"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// stub answers each call with err and the sample values, and notes its name.
type stub struct {
	err   error
	calls []string
}

const (
	sampleXML  = "<secret-free/>"
	sampleUUID = "11111111-2222-3333-4444-555555555555"
)

func (s *stub) ConnectGetLibVersion(_ context.Context) (virt.Version, error) {
	s.calls = append(s.calls, "ConnectGetLibVersion")
	return virt.Version(9_000_000), s.err
}

func (s *stub) ConnectGetHostname(_ context.Context) (string, error) {
	s.calls = append(s.calls, "ConnectGetHostname")
	return sampleXML, s.err
}

func (s *stub) ConnectGetCapabilities(_ context.Context) (string, error) {
	s.calls = append(s.calls, "ConnectGetCapabilities")
	return sampleXML, s.err
}

func (s *stub) ConnectGetDomainCapabilities(_ context.Context, _ string) (string, error) {
	s.calls = append(s.calls, "ConnectGetDomainCapabilities")
	return sampleXML, s.err
}

func (s *stub) ConnectGetAllDomainStats(_ context.Context) ([]virt.DomainState, error) {
	s.calls = append(s.calls, "ConnectGetAllDomainStats")
	return []virt.DomainState{{}, {}}, s.err
}

var sampleEvents <-chan virt.DomainEvent = make(chan virt.DomainEvent)

func (s *stub) ConnectDomainEventRegisterAny(_ context.Context) (<-chan virt.DomainEvent, error) {
	s.calls = append(s.calls, "ConnectDomainEventRegisterAny")
	return sampleEvents, s.err
}

func (s *stub) DomainLookupByName(_ context.Context, _ string) (virt.Domain, error) {
	s.calls = append(s.calls, "DomainLookupByName")
	return virt.Domain{Name: "one", UUID: sampleUUID, ID: 7}, s.err
}

func (s *stub) DomainLookupByUUID(_ context.Context, _ string) (virt.Domain, error) {
	s.calls = append(s.calls, "DomainLookupByUUID")
	return virt.Domain{Name: "one", UUID: sampleUUID, ID: 7}, s.err
}

func (s *stub) DomainGetState(_ context.Context, _ virt.Domain) (virt.State, virt.Reason, error) {
	s.calls = append(s.calls, "DomainGetState")
	return virt.StatePaused, virt.PausedIOError, s.err
}

func (s *stub) DomainGetMetadata(_ context.Context, _ virt.Domain) (string, error) {
	s.calls = append(s.calls, "DomainGetMetadata")
	return sampleXML, s.err
}

func (s *stub) DomainSetMetadata(_ context.Context, _ virt.Domain, _ string) error {
	s.calls = append(s.calls, "DomainSetMetadata")
	return s.err
}

func (s *stub) DomainDefineXML(_ context.Context, _ string) (virt.Domain, error) {
	s.calls = append(s.calls, "DomainDefineXML")
	return virt.Domain{Name: "one", UUID: sampleUUID, ID: 7}, s.err
}

func (s *stub) DomainCreate(_ context.Context, _ virt.Domain) error {
	s.calls = append(s.calls, "DomainCreate")
	return s.err
}

func (s *stub) DomainDestroy(_ context.Context, _ virt.Domain) error {
	s.calls = append(s.calls, "DomainDestroy")
	return s.err
}

func (s *stub) DomainUndefineFlags(_ context.Context, _ virt.Domain, _ virt.UndefineFlags) error {
	s.calls = append(s.calls, "DomainUndefineFlags")
	return s.err
}

func (s *stub) DomainInterfaceAddresses(_ context.Context, _ virt.Domain, _ virt.AddressSource) ([]virt.Interface, error) {
	s.calls = append(s.calls, "DomainInterfaceAddresses")
	return []virt.Interface{{Name: "eth0", Addresses: []virt.Address{{IP: "192.0.2.7"}}}}, s.err
}

func (s *stub) NetworkLookupByName(_ context.Context, _ string) (bool, error) {
	s.calls = append(s.calls, "NetworkLookupByName")
	return true, s.err
}

func (s *stub) StoragePoolLookupByName(_ context.Context, _ string) (virt.Pool, error) {
	s.calls = append(s.calls, "StoragePoolLookupByName")
	return virt.Pool{Name: "default", UUID: sampleUUID}, s.err
}

func (s *stub) StoragePoolGetInfo(_ context.Context, _ virt.Pool) (virt.PoolInfo, error) {
	s.calls = append(s.calls, "StoragePoolGetInfo")
	return virt.PoolInfo{State: virt.PoolRunning, Available: 60}, s.err
}

func (s *stub) StoragePoolGetXMLDesc(_ context.Context, _ virt.Pool) (string, error) {
	s.calls = append(s.calls, "StoragePoolGetXMLDesc")
	return sampleXML, s.err
}

func (s *stub) StoragePoolListAllVolumes(_ context.Context, _ virt.Pool) ([]virt.Volume, error) {
	s.calls = append(s.calls, "StoragePoolListAllVolumes")
	return []virt.Volume{{}, {}, {}}, s.err
}

func (s *stub) StorageVolLookupByName(_ context.Context, _ virt.Pool, _ string) (virt.Volume, error) {
	s.calls = append(s.calls, "StorageVolLookupByName")
	return virt.Volume{Pool: "default", Name: "a", Key: "/p/a"}, s.err
}

func (s *stub) StorageVolGetInfo(_ context.Context, _ virt.Volume) (virt.VolumeInfo, error) {
	s.calls = append(s.calls, "StorageVolGetInfo")
	return virt.VolumeInfo{Capacity: 1000, Physical: 200}, s.err
}

func (s *stub) StorageVolGetPath(_ context.Context, _ virt.Volume) (string, error) {
	s.calls = append(s.calls, "StorageVolGetPath")
	return sampleXML, s.err
}

func (s *stub) StorageVolCreateXML(_ context.Context, _ virt.Pool, _ string) (virt.Volume, error) {
	s.calls = append(s.calls, "StorageVolCreateXML")
	return virt.Volume{Pool: "default", Name: "a", Key: "/p/a"}, s.err
}

func (s *stub) StorageVolDelete(_ context.Context, _ virt.Volume) error {
	s.calls = append(s.calls, "StorageVolDelete")
	return s.err
}

func (s *stub) StorageVolUpload(_ context.Context, _ virt.Volume, r io.Reader, _ uint64) error {
	s.calls = append(s.calls, "StorageVolUpload")
	_, _ = io.Copy(io.Discard, r)
	return s.err
}
