// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// The pod of the benchmark, and the network that it asks for besides its default one.
const manifests = `apiVersion: v1
kind: Pod
metadata:
  name: client
  namespace: default
  uid: ` + podUID + `
  annotations:
    k8s.v1.cni.cncf.io/networks: second
spec:
  nodeName: ` + nodeName + `
  containers:
  - name: main
    image: example.org/main
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: second
  namespace: default
spec:
  config: |
    {"cniVersion":"1.1.0","name":"second","type":"noop","ipam":{"type":"static"}}
`

const podArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=client;" +
	"K8S_POD_UID=" + podUID

// podAnnotations is the capability under which a runtime hands over a pod's annotations.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// sample is one run of floor and subject, each phase timed.
type sample struct {
	floorFirst bool
	delegates  time.Duration // floor: the delegate runs
	record     time.Duration // floor: one durable record
	add, del   time.Duration // subject

	exchanges          time.Duration // floor with an API server: the raw exchanges, besides the above
	apiAdd, apiDel     time.Duration // subject with an API server
	plainFloor         time.Duration // floor of a pod with nothing extra: two delegate runs and the record
	plainAdd, plainDel time.Duration // a pod with nothing extra, planned by weft-cni itself

	agentAdd, agentDel time.Duration // subject with weft-agent

	addRequests int // of the subject with an API server, its ADD
	delRequests int

	agentAddWrites   int // of the subject with weft-agent: patches of the pod on ADD
	agentAddRequests int // all of its ADD but for watches
	agentDelRequests int
}

func (s sample) floor() time.Duration      { return s.delegates + s.record }
func (s sample) subject() time.Duration    { return s.add + s.del }
func (s sample) apiFloor() time.Duration   { return s.floor() + s.exchanges }
func (s sample) plain() time.Duration      { return s.plainAdd + s.plainDel }
func (s sample) apiSubject() time.Duration { return s.apiAdd + s.apiDel }
func (s sample) agent() time.Duration      { return s.agentAdd + s.agentDel }

// bench holds what every run needs.
type bench struct {
	bin       string
	netns     string
	state     string // weft-cni's state directory
	floorDir  string // the floor's record is written here: same disk, a folder of its own
	conf      []byte // weft-cni's, with manifests
	api       *api
	apiConf   []byte // weft-cni's, with a kubeconfig
	agent     *agent
	plainConf []byte // weft-cni's, with an agent and the pod's annotations from the runtime
	networks  [2]network
	record    []byte // of the size of a real record's first line
	weft      string
	delegate  string
	container int // numbers the sandboxes
}

// network is one delegate run of the floor.
type network struct {
	ifName string
	conf   []byte
}

// newBench prepares dir. The bench is to be closed.
func newBench(ctx context.Context, dir string, p *programs) (*bench, error) {
	b := &bench{
		bin:      p.dir,
		netns:    fmt.Sprintf("/proc/%d/ns/net", os.Getpid()),
		state:    filepath.Join(dir, "state"),
		floorDir: filepath.Join(dir, "floor"),
		weft:     filepath.Join(p.dir, "weft-cni"),
		delegate: filepath.Join(p.dir, "noop"),
		networks: [2]network{
			{"eth0", []byte(`{"cniVersion":"1.1.0","name":"first","type":"noop"}`)},
			{"net1", []byte(`{"cniVersion":"1.1.0","name":"second","type":"noop","ipam":{"type":"static"}}`)},
		},
	}
	yaml := filepath.Join(dir, "manifests")
	for _, d := range []string{b.state, b.floorDir, yaml, filepath.Join(dir, "api")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(yaml, "all.yaml"), []byte(manifests), 0o600); err != nil {
		return nil, err
	}
	var err error
	if b.conf, err = b.pluginConf("manifests", yaml); err != nil {
		return nil, err
	}
	if b.plainConf, err = b.confWith(map[string]any{
		// Nobody listens there: a call that asked the agent would fail.
		"agentSocket":   filepath.Join(dir, "agent.sock"),
		"capabilities":  map[string]bool{podAnnotations: true},
		"runtimeConfig": map[string]any{podAnnotations: map[string]string{"example.org/team": "a"}},
	}); err != nil {
		return nil, err
	}
	if b.api, err = startAPI(filepath.Join(dir, "api")); err != nil {
		return nil, err
	}
	if b.apiConf, err = b.pluginConf("kubeconfig", b.api.kubeconfig); err != nil {
		b.close()
		return nil, err
	}
	if b.agent, err = startAgent(ctx, filepath.Join(dir, "agent"), b.bin, manifests); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bench) close() {
	b.api.stop()
	if b.agent != nil {
		b.agent.stop()
	}
}

// pluginConf is weft-cni's configuration, with the source of pods and networks.
func (b *bench) pluginConf(key, source string) ([]byte, error) {
	return b.confWith(map[string]any{key: source})
}

func (b *bench) confWith(keys map[string]any) ([]byte, error) {
	conf := map[string]any{
		"cniVersion": "1.1.0",
		"name":       "weft",
		"type":       "weft-cni",
		"stateDir":   b.state,
		"delegates":  []json.RawMessage{b.networks[0].conf},
	}
	maps.Copy(conf, keys)
	return json.Marshal(conf)
}

// containerID is the sandbox of this run; next moves on.
func (b *bench) containerID() string { return fmt.Sprintf("%064x", b.container) }
func (b *bench) next()               { b.container++ }

// command is one plugin call, prepared as a container runtime would.
func (b *bench) command(ctx context.Context, program, verb, ifName string, conf []byte) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = []string{
		"CNI_COMMAND=" + verb,
		"CNI_CONTAINERID=" + b.containerID(),
		"CNI_NETNS=" + b.netns,
		"CNI_IFNAME=" + ifName,
		"CNI_ARGS=" + podArgs,
		"CNI_PATH=" + b.bin,
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
	}
	cmd.Stdin = bytes.NewReader(conf)
	return cmd
}

// call runs one plugin call and gives the time it took, from before the fork until
// the result is read and the process reaped.
func (b *bench) call(ctx context.Context, program, verb, ifName string, conf []byte) (time.Duration, error) {
	cmd := b.command(ctx, program, verb, ifName, conf)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("run %s %s: %w\n%s%s", filepath.Base(program), verb, err, stdout.Bytes(), stderr.Bytes())
	}
	if verb == "ADD" && !json.Valid(stdout.Bytes()) {
		return 0, fmt.Errorf("run %s ADD: no result: %q", filepath.Base(program), stdout.Bytes())
	}
	return took, nil
}

// sample measures both floors and both subjects once. In every other sample the order
// is the reverse, so that each floor stands before its subject as often as after it.
func (b *bench) sample(ctx context.Context, i int) (sample, error) {
	s := sample{floorFirst: i%2 == 0}
	parts := []func(context.Context, *sample) error{b.floor, b.subject, b.exchange, b.apiSubject, b.agentSubject, b.floorPlain, b.plain}
	if !s.floorFirst {
		slices.Reverse(parts)
	}
	for _, part := range parts {
		b.next()
		if err := part(ctx, &s); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (b *bench) subject(ctx context.Context, s *sample) (err error) {
	if s.add, err = b.call(ctx, b.weft, "ADD", "eth0", b.conf); err != nil {
		return err
	}
	s.del, err = b.call(ctx, b.weft, "DEL", "eth0", b.conf)
	return err
}

// apiSubject is subject with the API server.
func (b *bench) apiSubject(ctx context.Context, s *sample) (err error) {
	b.api.reset()
	if s.apiAdd, err = b.call(ctx, b.weft, "ADD", "eth0", b.apiConf); err != nil {
		return err
	}
	s.addRequests = b.api.server.Count("", "")
	if s.apiDel, err = b.call(ctx, b.weft, "DEL", "eth0", b.apiConf); err != nil {
		return err
	}
	s.delRequests = b.api.server.Count("", "") - s.addRequests
	if b.api.server.Annotation("default", "client", statusNote) == "" {
		return errors.New("run weft-cni ADD: the API server holds no network-status")
	}
	return nil
}

// floorPlain is floor for one network. The record is as large as that of two.
func (b *bench) floorPlain(ctx context.Context, s *sample) error {
	start := time.Now()
	if err := b.writeRecord(); err != nil {
		return err
	}
	s.plainFloor = time.Since(start)
	for _, verb := range []string{"ADD", "DEL"} {
		took, err := b.call(ctx, b.delegate, verb, b.networks[0].ifName, b.networks[0].conf)
		if err != nil {
			return err
		}
		s.plainFloor += took
	}
	return os.Remove(filepath.Join(b.floorDir, b.containerID()))
}

func (b *bench) plain(ctx context.Context, s *sample) (err error) {
	if s.plainAdd, err = b.call(ctx, b.weft, "ADD", "eth0", b.plainConf); err != nil {
		return err
	}
	s.plainDel, err = b.call(ctx, b.weft, "DEL", "eth0", b.plainConf)
	return err
}

func (b *bench) exchange(ctx context.Context, s *sample) (err error) {
	b.api.reset()
	s.exchanges, err = b.api.exchange(ctx)
	return err
}

func (b *bench) floor(ctx context.Context, s *sample) error {
	run := func(verb string, n network) error {
		took, err := b.call(ctx, b.delegate, verb, n.ifName, n.conf)
		s.delegates += took
		return err
	}
	start := time.Now()
	if err := b.writeRecord(); err != nil {
		return err
	}
	s.record = time.Since(start)
	for _, n := range b.networks {
		if err := run("ADD", n); err != nil {
			return err
		}
	}
	for i := len(b.networks) - 1; i >= 0; i-- {
		if err := run("DEL", b.networks[i]); err != nil {
			return err
		}
	}
	return os.Remove(filepath.Join(b.floorDir, b.containerID()))
}

// writeRecord makes one file durable under its final name.
func (b *bench) writeRecord() (err error) {
	name := filepath.Join(b.floorDir, b.containerID())
	f, err := os.OpenFile(name+".tmp", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b.record)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		return err
	}
	dir, err := os.Open(b.floorDir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// learn has one ADD and DEL of each subject show what the floors have to do; it gives
// the size of a record.
func (b *bench) learn(ctx context.Context) (int, error) {
	size, err := b.learnRecord(ctx)
	if err != nil {
		return 0, err
	}
	b.next()
	if err := b.apiSubject(ctx, &sample{}); err != nil {
		return 0, err
	}
	return size, b.api.learn()
}

// learnRecord gives the size of what a real ADD makes durable: the first line of its
// record. The floor writes as much.
func (b *bench) learnRecord(ctx context.Context) (int, error) {
	b.next()
	if _, err := b.call(ctx, b.weft, "ADD", "eth0", b.conf); err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(filepath.Join(b.state, "attachments", b.containerID()+"-eth0.jsonl"))
	if err != nil {
		return 0, err
	}
	first := bytes.IndexByte(raw, '\n') + 1
	if first == 0 {
		return 0, errors.New("read record: it has no line")
	}
	b.record = raw[:first]
	_, err = b.call(ctx, b.weft, "DEL", "eth0", b.conf)
	return first, err
}
