package leases_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fleetdesk/client"
)

const (
	drillServers = 4
	drillClients = 200
	perProcess   = 10 // clients that one kill ends
	drillKeys    = 60 // so that clients must wait
	// longest is above the time of any lease in the drill.
	longest = 8 * time.Second
)

// process is this test binary in another role.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  strings.Builder
}

func spawn(t testing.TB, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self, args...), done: make(chan struct{})}
	p.cmd.Stderr = &p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p
}

func (p *process) start(t testing.TB) {
	t.Helper()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
}

// end asks a process to stop, as a profile needs, and kills one that does not.
func (p *process) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(15 * time.Second):
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// startServer starts a server and waits until it listens.
func startServer(t testing.TB, database, address string) (*process, string) {
	t.Helper()
	p := spawn(t, "-role=server", "-database="+database, "-listen="+address, "-profile="+*profile)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	line := make(chan string, 1)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		text, _ := bufio.NewReader(out).ReadString('\n')
		line <- strings.TrimSpace(text)
		_ = p.cmd.Wait()
		close(p.done)
	}()
	select {
	case url := <-line:
		if url == "" {
			<-p.done
			t.Fatalf("a server did not start: %s", p.err.String())
		}
		return p, url
	case <-time.After(30 * time.Second):
		p.kill()
		t.Fatalf("a server did not start in time: %s", p.err.String())
	}
	return nil, ""
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Four servers on one PostgreSQL and 200 clients, of which somebody is killed
// all the time: no key has two holders, no lease ends before its time, fences
// grow, and in the end every key is free again.
func TestDrill(t *testing.T) {
	runDrill(t, cluster.Database(t), drillServers)
}

// The same over one SQLite file that four processes share.
func TestDrillSQLite(t *testing.T) {
	runDrill(t, filepath.Join(t.TempDir(), "desk.db"), drillServers)
}

func runDrill(t *testing.T, where string, servers int) {
	ctx, cancel := context.WithTimeout(t.Context(), *drillFor+3*time.Minute)
	defer cancel()
	d, err := openDesk(ctx, where)
	if err != nil {
		t.Fatal(err)
	}
	token, err := prepare(ctx, d, drillKeys)
	d.stop()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}

	addresses := make([]string, servers)
	urls := make([]string, servers)
	running := make([]*process, servers)
	for i := range servers {
		addresses[i] = freeAddress(t)
		running[i], urls[i] = startServer(t, where, addresses[i])
	}
	histories := filepath.Join(dir, "histories")
	if err := os.Mkdir(histories, 0o700); err != nil {
		t.Fatal(err)
	}
	clients := make([]*process, drillClients/perProcess)
	born := 0
	newClients := func(i int) {
		born++
		clients[i] = spawn(t, "-role=clients", "-servers="+strings.Join(urls, ","), "-token-file="+tokenFile, "-folder="+histories,
			"-name=p"+strconv.Itoa(born), "-number="+strconv.Itoa(perProcess), "-seed="+strconv.Itoa(born))
		clients[i].start(t)
	}
	for i := range clients {
		newClients(i)
	}

	random := rand.New(rand.NewPCG(7, 11))
	killedServers, killedClients := 0, 0
	for end := time.Now().Add(*drillFor); time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(time.Duration(300+random.IntN(700)) * time.Millisecond)
		if random.IntN(2) == 0 {
			i := random.IntN(servers)
			running[i].kill()
			killedServers++
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
			running[i], urls[i] = startServer(t, where, addresses[i])
		} else {
			i := random.IntN(len(clients))
			clients[i].kill()
			killedClients++
			newClients(i)
		}
	}
	var group sync.WaitGroup
	for _, c := range clients {
		group.Go(c.kill)
	}
	group.Wait()
	// What the killed held runs out, and then every key can be had.
	time.Sleep(longest)
	free := takeAll(ctx, t, urls[0], token)
	for _, s := range running {
		s.kill()
	}

	all := map[string][]entry{}
	counts := map[string]int{}
	files, err := filepath.Glob(filepath.Join(histories, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := readHistory(f)
		_ = f.Close()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[filepath.Base(path)] = entries
		for _, e := range entries {
			counts[e.Event]++
			if e.Event == "error" && counts["error"] <= 5 {
				t.Logf("an error that a client saw: %s", e.Text)
			}
		}
	}
	held, faults := check(all)
	t.Logf("%s: killed %d servers and %d groups of %d clients; %d clients in all; %d leases; %v",
		*drillFor, killedServers, killedClients, perProcess, len(all), len(held), counts)
	for i, f := range faults {
		if i == 20 {
			t.Errorf("… and %d more", len(faults)-i)
			break
		}
		t.Error(f)
	}
	if free != drillKeys {
		t.Errorf("%d of %d keys are free once every lease is over", free, drillKeys)
	}
	if len(held) < drillKeys {
		t.Errorf("only %d leases: the drill shows nothing", len(held))
	}
}

// takeAll takes what is free without waiting, and counts it.
func takeAll(ctx context.Context, t *testing.T, url, token string) int {
	t.Helper()
	c, err := client.New(client.Options{BaseURL: url, Token: client.Token(token)})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		if _, err := c.Take(ctx, pool, client.TakeOptions{Holder: fmt.Sprint("end ", n)}); err != nil {
			t.Logf("the take after the last free key: %v", err)
			return n
		}
	}
}
