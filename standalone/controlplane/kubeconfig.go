package controlplane

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fleetdesk/internal/core/fault"
)

// serverURL is where clients on this machine reach the API server.
func serverURL(o Options) string {
	return "https://" + net.JoinHostPort(reachable(o.Bind).String(), strconv.Itoa(o.Port))
}

// reachable is the address itself, or loopback for "all addresses".
func reachable(bind string) net.IP {
	ip := net.ParseIP(bind)
	switch {
	case !ip.IsUnspecified():
		return ip
	case ip.To4() != nil:
		return net.IPv4(127, 0, 0, 1)
	default:
		return net.IPv6loopback
	}
}

// writeKubeconfig writes an administrator's kubeconfig that needs no other file.
func writeKubeconfig(o Options, p *pki) error {
	k, err := kubeconfig(o, p)
	if err != nil {
		return err
	}
	b, err := clientcmd.Write(*k)
	if err != nil {
		return fault.Errorf(fault.Permanent, "kubeconfig: %w", err)
	}
	return writeFileAtomic(o.Kubeconfig, b, 0o600)
}

// adminConfig is the kubeconfig as a client's configuration.
func adminConfig(o Options, p *pki) (*rest.Config, error) {
	k, err := kubeconfig(o, p)
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*k, nil).ClientConfig()
	return cfg, fault.Wrap(fault.Permanent, err)
}

func kubeconfig(o Options, p *pki) (*clientcmdapi.Config, error) {
	var content [3][]byte
	for i, f := range []string{p.ca, p.adminCert, p.adminKey} {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fileFault(fmt.Errorf("kubeconfig: %w", err))
		}
		content[i] = b
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["fleetdesk"] = &clientcmdapi.Cluster{Server: serverURL(o), CertificateAuthorityData: content[0]}
	k.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: content[1], ClientKeyData: content[2]}
	k.Contexts["fleetdesk"] = &clientcmdapi.Context{Cluster: "fleetdesk", AuthInfo: "admin"}
	k.CurrentContext = "fleetdesk"
	return k, nil
}
