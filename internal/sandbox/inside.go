// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/cni/manifests"
	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/selection"
	"github.com/weftnet/weft/internal/host/kernel"
)

// takeDownTime bounds the deletion of all pods, whatever stopped the run.
const takeDownTime = time.Minute

// order is what the process outside tells the one inside.
type order struct {
	Dir     string        `json:"dir"`
	BinDirs []string      `json:"binDirs"`
	Cut     string        `json:"cut,omitempty"`
	Keep    bool          `json:"keep,omitempty"`
	Timeout time.Duration `json:"timeout"`
}

// answer is what the process inside tells the one outside, once.
type answer struct {
	Report *Report `json:"report,omitempty"`
	// Error is why there is no report; Forbidden: because the system does not let us.
	Error     string `json:"error,omitempty"`
	Forbidden bool   `json:"forbidden,omitempty"`
}

// Files that the process inside is started with, after stdin, stdout and stderr.
const (
	orderFD  = 3 // one order; its end (or 'k': keep) is what the process then waits for
	answerFD = 4 // one answer, when the pods are there (keep) or gone
	logFD    = 5 // with keep: stderr from then on, and the second answer
)

// Inside is the process inside the sandbox: the first one of its namespaces. It is started
// by Run only, takes down when ctx ends, and returns the exit code.
func Inside(ctx context.Context, stderr io.Writer) int {
	for fd := orderFD; fd <= logFD; fd++ {
		unix.CloseOnExec(fd) // they are not for plugins
	}
	control, answers := os.NewFile(orderFD, "order"), os.NewFile(answerFD, "answer")
	decoder := json.NewDecoder(control)
	var o order
	if err := decoder.Decode(&o); err != nil {
		fmt.Fprintf(stderr, "weft: read order of the sandbox: %v\n", err)
		return 1
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The process outside holds the other end: when it ends, this ends.
	kept := make(chan struct{})
	go func() {
		rest := io.MultiReader(decoder.Buffered(), control)
		if b, err := io.ReadAll(io.LimitReader(rest, 2)); err == nil && strings.Contains(string(b), "k") {
			close(kept)
			return
		}
		cancel()
	}()
	i := &inside{order: o, stderr: stderr, answers: json.NewEncoder(answers)}
	if err := i.run(ctx, kept); err != nil {
		forbidden := errors.Is(err, errSetUp) && errors.Is(err, fs.ErrPermission)
		if err := i.answers.Encode(answer{Error: err.Error(), Forbidden: forbidden}); err != nil {
			fmt.Fprintf(stderr, "weft: %v\n", err)
		}
		return 1
	}
	return 0
}

// errSetUp marks what goes wrong before anything of the user's is looked at.
var errSetUp = errors.New("set up sandbox")

// inside is one run, seen from inside.
type inside struct {
	order
	stderr  io.Writer
	answers *json.Encoder

	runtime *runtime
	host    *host
	wants   wants
	missing []string // kinds of link that the kernel does not have
	report  *Report
	pods    []sandboxed
}

func (i *inside) progress(format string, args ...any) {
	fmt.Fprintf(i.stderr, format+"\n", args...)
}

func (i *inside) run(ctx context.Context, kept <-chan struct{}) error {
	i.report = newReport()
	if err := i.prepare(); err != nil {
		return err
	}
	work, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	i.attachAll(work)
	i.prove(work)
	if work.Err() != nil {
		i.fault(fmt.Errorf("run ended early: %w", context.Cause(work)))
	}
	if i.Keep && ctx.Err() == nil {
		if err := i.hold(ctx, kept); err != nil {
			return err
		}
	}
	i.takeDown(ctx)
	return i.answers.Encode(answer{Report: i.report})
}

// prepare makes the pretended host, and reads what pods there are.
func (i *inside) prepare() error {
	if err := setUpMounts(append([]string{i.Dir}, i.BinDirs...)); err != nil {
		return fmt.Errorf("%w: %w", errSetUp, err)
	}
	// Nothing of the machine is held on to by a sandbox that is kept.
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("%w: %w", errSetUp, err)
	}
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("make directory of namespaces: %w", err)
	}
	set, err := manifests.Read(i.Dir)
	if err != nil {
		return err
	}
	for _, w := range set.Warnings {
		i.fault(fmt.Errorf("%s: %s", strings.TrimSpace(w.Object+" "+w.Field), w.Text))
	}
	if i.runtime, err = newRuntime(i.Dir, i.BinDirs, i.stderr); err != nil {
		return err
	}
	for _, err := range i.runtime.faults {
		i.fault(err)
	}
	i.wants = findWants(set.NADs, i.runtime.networks)
	if i.missing, err = missingKinds(i.wants.allKinds()); err != nil {
		return err
	}
	for _, kind := range i.missing {
		i.progress("the running kernel has no links of kind %s; pods that need one will fail", kind)
	}
	h, faults, err := newHost(i.wants.masters)
	if err != nil {
		return err
	}
	i.host = h
	for _, err := range faults {
		i.fault(err)
	}
	i.progress("pretended host: links %s", strings.Join(i.wants.masters, ", "))
	for _, p := range set.Pods {
		i.pods = append(i.pods, newSandboxed(p))
	}
	if len(i.pods) == 0 {
		i.fault(fmt.Errorf("no pod in %s", i.Dir))
	}
	return nil
}

func (i *inside) fault(err error) {
	i.report.Faults = append(i.report.Faults, err.Error())
}

// attachAll asks the plugin whether it is ready, then attaches every pod, one after the other.
func (i *inside) attachAll(ctx context.Context) {
	if err := i.runtime.status(ctx); err != nil {
		i.fault(fmt.Errorf("ask for the status of the pod network: %w", err))
	}
	for _, s := range i.pods {
		p := Pod{
			Namespace: s.pod.Namespace, Name: s.pod.Name, ContainerID: s.id, Netns: s.netns,
			Interfaces: []Interface{}, DefaultRoutes: []DefaultRoute{}, NetworkStatus: []netstatus.Entry{},
		}
		begin := time.Now()
		err := i.attach(ctx, s)
		p.attached = err == nil
		took := milliseconds(toMilliseconds(time.Since(begin)))
		if err == nil {
			i.progress("pod %s: attached in %s", p.id(), took)
			// At once: the plugin of a bridge takes it amiss when later pods change the bridge's MAC.
			err = i.runtime.check(ctx, s)
		} else {
			i.progress("pod %s: failed after %s", p.id(), took)
		}
		if err != nil {
			p.Error = err.Error()
		}
		i.report.Pods = append(i.report.Pods, p)
	}
}

func (i *inside) attach(ctx context.Context, s sandboxed) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("attach: %w", context.Cause(ctx))
	}
	if err := createPodNetns(s.netns); err != nil {
		return err
	}
	err := i.runtime.add(ctx, s)
	if err == nil {
		return nil
	}
	if remark := i.wants.lacking(networksOf(s.pod), i.missing); remark != "" {
		return fmt.Errorf("%w (%s)", err, remark)
	}
	return err
}

// networksOf lists the networks that a pod's annotation names, as namespace/name; nothing
// when the annotation is broken, which its ADD says better.
func networksOf(pod manifests.Pod) []string {
	elements, _, err := selection.Parse(pod.Annotations[plan.NetworksAnnotation])
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range elements {
		namespace := e.Namespace
		if namespace == "" {
			namespace = pod.Namespace
		}
		all = append(all, namespace+"/"+e.Name)
	}
	return all
}

// prove looks at what was made: a GC that knows all pods must change nothing, then what the
// kernel shows, then packets between pods.
func (i *inside) prove(ctx context.Context) {
	if ctx.Err() != nil {
		return // there is nothing to show of half of the pods
	}
	store, err := openRecords()
	if err != nil {
		i.fault(err)
		return
	}
	defer store.Close()
	if err := i.runtime.gc(ctx, i.pods); err != nil {
		i.fault(fmt.Errorf("collect garbage while all pods live: %w", err))
	}
	for at := range i.report.Pods {
		p := &i.report.Pods[at]
		if !p.attached {
			continue
		}
		if err := p.inspect(store); err != nil {
			p.Error = strings.TrimSpace(p.Error + " inspect: " + err.Error())
		}
	}
	if i.Cut != "" {
		if err := i.host.cut(i.Cut, i.wants.bridges); err != nil {
			i.fault(err)
		} else {
			i.progress("cut: host link %s is down", i.Cut)
		}
	}
	i.report.Probes = planProbes(i.report.Pods)
	paths := map[string]string{}
	for _, p := range i.report.Pods {
		paths[p.id()] = p.Netns
	}
	runProbes(ctx, i.report.Probes, paths)
}

// hold reports, lets go of the terminal and waits until it is told to end.
func (i *inside) hold(ctx context.Context, kept <-chan struct{}) error {
	if err := i.answers.Encode(answer{Report: i.report}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	select {
	case <-kept:
	case <-ctx.Done():
		return nil
	}
	if err := unix.Dup3(logFD, 2, 0); err != nil {
		return fmt.Errorf("let go of the terminal: %w", err)
	}
	log := os.NewFile(logFD, "log")
	i.stderr, i.answers = io.Discard, json.NewEncoder(log)
	i.report = newReport() // what comes from here on is about taking down
	<-ctx.Done()
	return nil
}

// takeDown deletes every pod, in reverse, and looks for what is left. It does so also when
// ctx has ended.
func (i *inside) takeDown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeDownTime)
	defer cancel()
	for _, s := range slices.Backward(i.pods) {
		if _, err := os.Lstat(s.netns); err != nil {
			continue // failed before it had a namespace
		}
		if err := i.runtime.del(ctx, s); err != nil {
			i.fault(fmt.Errorf("delete pod %s/%s: %w", s.pod.Namespace, s.pod.Name, err))
		}
		left, err := leftInPod(s)
		i.look(left, err)
		if err := kernel.RemoveNetns(s.netns); err != nil {
			i.fault(err)
		}
	}
	if err := i.runtime.gc(ctx, nil); err != nil {
		i.fault(fmt.Errorf("collect garbage: %w", err))
	}
	i.look(i.host.leftOnHost(i.wants))
	i.look(leftOfWeft())
	i.report.TakenDown = true
}

func (i *inside) look(left []string, err error) {
	i.report.Left = append(i.report.Left, left...)
	if err != nil {
		i.fault(fmt.Errorf("look for what is left: %w", err))
	}
}
