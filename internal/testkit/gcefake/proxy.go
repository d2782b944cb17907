package gcefake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// running is one instance's proxy.
type running struct{ end func() }

// start opens the machine's addresses and starts its proxy on them. A socket
// that listens is as good as a proxy that is ready: who connects waits.
func (s *Server) start(m *machine) (*running, error) {
	n := m.in.NetworkInterfaces[0]
	var lns []*net.TCPListener
	listen := func(keep string) (string, error) {
		for range 64 {
			at := keep
			if at == "" {
				at = s.address()
			}
			ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", net.JoinHostPort(at, strconv.Itoa(s.o.Port)))
			if err == nil {
				lns = append(lns, ln.(*net.TCPListener))
				return at, nil
			}
			if keep != "" || !errors.Is(err, syscall.EADDRINUSE) {
				return "", err
			}
		}
		return "", fmt.Errorf("no address is free on port %d", s.o.Port)
	}
	var err error
	if n.NetworkIP, err = listen(n.NetworkIP); err != nil {
		return nil, err
	}
	leave := n.NetworkIP
	for _, a := range n.AccessConfigs {
		if a.NatIP, err = listen(""); err != nil {
			return nil, err
		}
		leave = a.NatIP
	}
	if len(s.o.Command) == 0 {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); serve(ctx, lns, leave) }()
		return &running{func() { cancel(); <-done }}, nil
	}
	return spawn(s.o.Command, lns, leave)
}

// spawn starts the command with the sockets. It ends when its standard input
// does, so that it cannot outlive the test.
func spawn(command []string, lns []*net.TCPListener, leave string) (*running, error) {
	cmd := exec.Command(command[0], append(command[1:len(command):len(command)], leave, strconv.Itoa(len(lns)))...)
	cmd.Env = []string{}
	for _, ln := range lns {
		f, err := ln.File()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		defer ln.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &running{sync.OnceFunc(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})}, nil
}

// Proxy is the main function of an instance's process. args are what the server
// appended to Options.Command: the address to leave by, and how many listening
// sockets were inherited. It returns when stdin ends.
func Proxy(args []string, stdin io.Reader) int {
	if len(args) != 2 {
		return 2
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return 2
	}
	var lns []*net.TCPListener
	for i := range n {
		ln, err := net.FileListener(os.NewFile(uintptr(3+i), "socket"))
		if err != nil {
			return 1
		}
		lns = append(lns, ln.(*net.TCPListener))
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	serve(ctx, lns, args[0])
	return 0
}

// serve is a forward proxy without credentials on all the sockets, until ctx
// ends. It leaves by the given address.
func serve(ctx context.Context, lns []*net.TCPListener, leave string) {
	dialer := &net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(leave)}}
	tr := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true, ResponseHeaderTimeout: 30 * time.Second}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			tunnel(w, r, dialer)
			return
		}
		if !r.URL.IsAbs() {
			http.Error(w, "this is a proxy", http.StatusBadRequest)
			return
		}
		r.RequestURI = ""
		r.Header.Del("Proxy-Connection")
		r.Header.Del("Proxy-Authorization")
		resp, err := tr.RoundTrip(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})}
	var group sync.WaitGroup
	for _, ln := range lns {
		group.Go(func() { _ = srv.Serve(ln) })
	}
	<-ctx.Done()
	_ = srv.Close()
	group.Wait()
	tr.CloseIdleConnections()
}

// tunnel joins a client with its target until one of them ends.
func tunnel(w http.ResponseWriter, r *http.Request, dialer *net.Dialer) {
	far, err := dialer.DialContext(r.Context(), "tcp4", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer far.Close()
	near, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer near.Close()
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(far, buf); done <- struct{}{} }()
	go func() { _, _ = io.Copy(near, far); done <- struct{}{} }()
	<-done
}
