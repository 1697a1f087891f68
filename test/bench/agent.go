// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/agent/debug"
)

const (
	nodeName = "n1"
	podUID   = "6c5b1f5e-5a34-4d3c-9e0e-0d1f2a3b4c5d"

	// agentTimeout bounds each thing that the agent does at once.
	agentTimeout = 30 * time.Second
	// agentGlance is the pause between two looks at what the agent does.
	agentGlance = 2 * time.Millisecond
)

// agent is a node with weft-agent: an API server of its own, a primary conf, and the
// conf that the agent published.
type agent struct {
	dir    string
	bin    string // weft-cni, weft-agent and the delegates
	api    *api
	debug  *debug.Client
	cmd    *exec.Cmd
	stderr bytes.Buffer // read only when the process is gone
	ended  chan struct{}
	conf   []byte // as a runtime hands the published conf to the plugin
}

// startAgent starts weft-agent in dir, and waits until it published its conf. fill is
// what the API server holds from the start.
func startAgent(ctx context.Context, dir, bin, fill string) (a *agent, err error) {
	a = &agent{dir: dir, bin: bin, ended: make(chan struct{})}
	defer func() {
		if err != nil {
			err = fmt.Errorf("run weft-agent: %w", err)
			a.stop()
		}
	}()
	for _, d := range []string{"api", "net.d", "kubelet"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return a, err
		}
	}
	if a.api, err = startAPI(filepath.Join(dir, "api")); err != nil {
		return a, err
	}
	a.api.server.Apply(fill)
	if err := a.configure(); err != nil {
		return a, err
	}
	a.debug = debug.NewClient(filepath.Join(dir, "run", "debug.sock"))
	a.cmd = exec.CommandContext(ctx, filepath.Join(bin, "weft-agent"), "--config", filepath.Join(dir, "agent.yaml"))
	a.cmd.Env = []string{}
	a.cmd.Stderr = &a.stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.cmd.Start(); err != nil {
		return a, err
	}
	go func() {
		_ = a.cmd.Wait() // whoever waits in vain tells of it
		close(a.ended)
	}()
	if err := a.await(ctx, "it is ready", func() bool {
		n, err := a.debug.Node(ctx)
		return err == nil && n.State.Ready
	}); err != nil {
		return a, err
	}
	return a, a.readConf()
}

// configure writes the primary conf and the agent's configuration.
func (a *agent) configure() error {
	at := func(name string) string { return filepath.Join(a.dir, name) }
	primary := `{"cniVersion":"1.1.0","name":"first","plugins":[{"type":"noop"}]}`
	if err := os.WriteFile(at("net.d/10-first.conflist"), []byte(primary), 0o600); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{ // JSON is YAML
		"nodeName": nodeName, "kubeconfig": a.api.kubeconfig, "stateDir": at("state"), "socketDir": at("run"),
		"metricsAddress": "127.0.0.1:0",
		"cni": map[string]any{
			"confDir": at("net.d"), "binDir": a.bin, "kubeletDir": at("kubelet"), "cniDir": at("multus"), "deviceInfoDir": at("devinfo"),
		},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(at("agent.yaml"), config, 0o600)
}

// readConf takes the published conf over as a runtime does, with the pod's annotations.
func (a *agent) readConf() error {
	b, err := os.ReadFile(filepath.Join(a.dir, "net.d", "00-weft.conflist"))
	if err != nil {
		return err
	}
	var list struct {
		Name       string
		CNIVersion string
		Plugins    []map[string]json.RawMessage
	}
	if err := json.Unmarshal(b, &list); err != nil || len(list.Plugins) != 1 {
		return fmt.Errorf("read published conf: %d plugins, %w", len(list.Plugins), err)
	}
	conf := map[string]any{}
	for k, v := range list.Plugins[0] {
		conf[k] = v
	}
	conf["name"], conf["cniVersion"] = list.Name, list.CNIVersion
	conf["runtimeConfig"] = map[string]any{podAnnotations: map[string]string{"k8s.v1.cni.cncf.io/networks": "second"}}
	a.conf, err = json.Marshal(conf)
	return err
}

// await polls until ok, which must be soon.
func (a *agent) await(ctx context.Context, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	for !ok() {
		select {
		case <-a.ended:
			return fmt.Errorf("wait until %s: it ended with %d\n%s", what, a.cmd.ProcessState.ExitCode(), a.stderr.Bytes())
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case <-time.After(agentGlance):
		}
	}
	return nil
}

// stop ends the agent and its server.
func (a *agent) stop() {
	if a.cmd != nil && a.cmd.Process != nil {
		_ = a.cmd.Process.Kill()
		<-a.ended
	}
	if a.debug != nil {
		a.debug.Close()
	}
	if a.api != nil {
		a.api.stop()
	}
}

// fresh replaces the pod by one that has no status yet, and waits until the agent knows:
// on a node the pod is there before its sandbox, and gone after it.
func (a *agent) fresh(ctx context.Context) error {
	known := func(want bool) func() bool {
		return func() bool {
			answer, err := a.debug.Pods(ctx, "default", "client")
			found := err == nil && len(answer.Pods) == 1 && answer.Pods[0].Known
			return err == nil && found == want
		}
	}
	a.api.server.Delete("pods", "default", "client")
	if err := a.await(ctx, "the old pod is gone", known(false)); err != nil {
		return err
	}
	a.api.server.Apply(manifests)
	return a.await(ctx, "the new pod is known", known(true))
}

// idle waits until the agent has seen that no sandbox is left and has nothing to write.
func (a *agent) idle(ctx context.Context) error {
	return a.await(ctx, "it saw the DEL", func() bool {
		n, err := a.debug.Node(ctx)
		return err == nil && n.State.Counts.Records == 0 && n.State.Counts.PendingStatus == 0
	})
}

// requests counts those since the last reset but for the watches, which follow the caches.
func (a *agent) requests() int {
	return a.api.server.Count("", "") - a.api.server.Count("watch", "")
}

// agentSubject is the subject planned by weft-agent, from the conf that it published.
func (b *bench) agentSubject(ctx context.Context, s *sample) (err error) {
	a := b.agent
	if err := a.fresh(ctx); err != nil {
		return err
	}
	a.api.server.ResetRequests()
	if s.agentAdd, err = b.call(ctx, b.weft, "ADD", "eth0", a.conf); err != nil {
		return err
	}
	if a.api.server.Annotation("default", "client", statusNote) == "" {
		return errors.New("run weft-cni ADD: the API server holds no network-status")
	}
	s.agentAddWrites, s.agentAddRequests = a.api.server.Count("patch", "pods"), a.requests()
	if s.agentDel, err = b.call(ctx, b.weft, "DEL", "eth0", a.conf); err != nil {
		return err
	}
	if err := a.idle(ctx); err != nil {
		return err
	}
	s.agentDelRequests = a.requests() - s.agentAddRequests
	return nil
}

// rssAnon is the agent's anonymous memory in bytes.
func (a *agent) rssAnon() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return statusBytes(string(b), "RssAnon")
}

// statusBytes reads a size from /proc/PID/status.
func statusBytes(status, name string) (int64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: %w", name, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("read %s: the process has none", name)
}
