package kubernetes_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// A server that is busy, or that starts, is told at once, by one request: the
// reconciler waits, not the call.
func TestBusyServer(t *testing.T) {
	for status, want := range map[int]struct {
		class fault.Class
		row   string
	}{
		http.StatusTooManyRequests:     {fault.Transient, kubernetes.ReasonBusy},
		http.StatusServiceUnavailable:  {fault.Unavailable, kubernetes.ReasonError},
		http.StatusInternalServerError: {fault.Unavailable, kubernetes.ReasonError},
		http.StatusGatewayTimeout:      {fault.Timeout, kubernetes.ReasonTimeout},
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			var asked atomic.Int64
			srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				w.Header().Set("Retry-After", "5")
				http.Error(w, "Too many requests, please try again later.", status)
			}))
			defer srv.Close()
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
			s := &secrets{}
			s.put("k", kubeconfig(t, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: ca}}, srv.URL))
			p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: kubernetes.Section{
				Cluster: "away", Namespace: "ns", KubeconfigSecret: &kubernetes.KubeconfigSecret{Name: "k"},
			}, Secret: s.get})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			_, err = p.Get(t.Context(), provider.Ref{Owner: ownerOf("busy")})
			if n := asked.Load(); fault.Of(err) != want.class || n != 1 {
				t.Errorf("after %d requests: %s: %v; want %s after one", n, fault.Of(err), err, want.class)
			}
			if row := health(t, p); row.Reason != want.row {
				t.Errorf("Check = %+v; want %s", row, want.row)
			}
		})
	}
}
