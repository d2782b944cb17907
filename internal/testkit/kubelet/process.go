package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

const (
	// childArg is the first argument of a proxy's process.
	childArg = "kubelet-stand-in-proxy"
	// tries is how many addresses are tried for a Pod.
	tries = 32
	// endLimit is how long a process has to end before it is killed.
	endLimit = 2 * time.Second
)

// process is what runs for a Pod.
type process struct {
	pod  string
	ip   netip.Addr
	cmd  *exec.Cmd
	life io.Closer // the child ends when this is closed
	done chan struct{}
	// looks are the probes that run.
	looks sync.WaitGroup
	stop  context.CancelFunc
	ctx   context.Context //nolint:containedctx // the process's life

	mu   sync.Mutex
	said string
}

// launch starts the proxy on an address that nobody has.
func (k *Kubelet) launch(pod *corev1.Pod, port int, files map[string][]byte) (*process, error) {
	var ln *net.TCPListener
	for range tries {
		ip := netip.AddrFrom4([4]byte{127, byte(64 + rand.N(64)), byte(rand.N(256)), byte(1 + rand.N(254))})
		l, err := (&net.ListenConfig{}).Listen(k.ctx, "tcp4", netip.AddrPortFrom(ip, uint16(port)).String())
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		ln = l.(*net.TCPListener)
		break
	}
	if ln == nil {
		return nil, fmt.Errorf("port %d is free on no address", port)
	}
	defer ln.Close()
	sock, err := ln.File()
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	cmd := exec.Command(k.program, childArg, pod.Namespace+"/"+pod.Name, strconv.Itoa(os.Getpid()))
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{sock}
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	users, auth := files["users"]
	conf, squid := files["squid.conf"]
	said := childConfig{Users: string(users), Auth: auth, Fold: squid && !bytes.Contains(conf, []byte("\nauth_param basic casesensitive on\n"))}
	if err := json.NewEncoder(life).Encode(said); err != nil {
		_ = life.Close()
	}
	p := &process{
		pod: pod.Name, ip: ln.Addr().(*net.TCPAddr).AddrPort().Addr(), cmd: cmd, life: life, done: make(chan struct{}),
	}
	p.ctx, p.stop = context.WithCancel(k.ctx)
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end ends the process, and returns when it has ended.
func (p *process) end() {
	p.stop()
	_ = p.life.Close()
	limit := time.NewTimer(endLimit)
	defer limit.Stop()
	select {
	case <-p.done:
	case <-limit.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	p.looks.Wait()
}

// look runs a probe beside the process.
func (p *process) look(probe func(context.Context)) {
	p.looks.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, 2*time.Minute)
		defer cancel()
		probe(ctx)
	})
}

func (p *process) note(said string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = fmt.Sprintf("%s (%v)", said, err)
}
