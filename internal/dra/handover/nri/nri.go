// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/dra/device"
	"github.com/weftnet/weft/internal/dra/handover"
)

// hands move devices; *handover.Handover is them.
type hands interface {
	Attach(ctx context.Context, s handover.Sandbox) ([]handover.Given, error)
	Detach(ctx context.Context, sandboxID string) error
	// Nodes are the device files that a pod's containers need.
	Nodes(ctx context.Context, podUID string) ([]string, error)
}

// Config is what a Plugin needs.
type Config struct {
	Socket string // the runtime's: /var/run/nri/nri.sock
	Name   string // the plugin's: the driver's name
	Hands  hands
	// Known is closed when it is known what was prepared before this start; sandboxes that run are
	// looked at then. Nil: it is known.
	Known <-chan struct{}
	// Without is told of a pod that runs without a device which it claimed. Nil is fine.
	Without func(podNamespace, podName, podUID string, err error)
	// Connected is told when the runtime comes and goes. Nil is fine.
	Connected func(bool)
	// Limit is how long a hook may take; default: 1.5 s, of the runtime's 2 s.
	Limit time.Duration
	// Pause is between two attempts to reach the runtime; default: 1 s.
	Pause time.Duration
	Log   *slog.Logger
}

const (
	index = "00" // before other plugins
	limit = 1500 * time.Millisecond
	pause = time.Second
)

// Plugin is connected to the runtime while it runs.
type Plugin struct {
	cfg   Config
	works sync.WaitGroup  // what hooks began
	life  context.Context //nolint:containedctx // of Run, without its end: what a hook begins outlives the hook's own
	end   <-chan struct{} // of Run

	mu      sync.Mutex
	looks   int             // lists of sandboxes that the runtime gave
	looking int             // those that are gone through
	ended   map[string]bool // sandboxes that ended meanwhile
}

// New makes a plugin; nothing is touched before Run.
func New(cfg Config) *Plugin {
	if cfg.Limit == 0 {
		cfg.Limit = limit
	}
	if cfg.Pause == 0 {
		cfg.Pause = pause
	}
	if cfg.Without == nil {
		cfg.Without = func(string, string, string, error) {}
	}
	if cfg.Connected == nil {
		cfg.Connected = func(bool) {}
	}
	return &Plugin{cfg: cfg}
}

func (p *Plugin) String() string { return "NRI plugin " + p.cfg.Name }

// Run stays connected until ctx ends, and then waits for what hooks began.
func (p *Plugin) Run(ctx context.Context) error {
	p.life, p.end = context.WithoutCancel(ctx), ctx.Done()
	defer p.works.Wait()
	told := ""
	for ctx.Err() == nil {
		err := p.connect(ctx)
		if ctx.Err() != nil {
			break
		}
		if text := fmt.Sprint(err); text != told { // once, however long it lasts
			told = text
			p.cfg.Log.WarnContext(ctx, "runtime's NRI is away", "socket", p.cfg.Socket, "error", err)
		}
		select {
		case <-time.After(p.cfg.Pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// connect serves the runtime until it goes away.
func (p *Plugin) connect(ctx context.Context) error {
	if _, err := os.Stat(p.cfg.Socket); err != nil {
		return err
	}
	closed := make(chan struct{})
	var once sync.Once
	s, err := stub.New(hooks{p}, stub.WithSocketPath(p.cfg.Socket), stub.WithPluginName(p.cfg.Name), stub.WithPluginIdx(index),
		stub.WithOnClose(func() { once.Do(func() { close(closed) }) }), stub.WithLogger(quiet{p.cfg.Log}))
	if err != nil {
		return err
	}
	if err := s.Start(ctx); err != nil {
		s.Stop()
		return err
	}
	defer s.Stop()
	p.cfg.Log.InfoContext(ctx, "runtime's NRI is there", "socket", p.cfg.Socket, "version", s.RuntimeNRIVersion())
	p.cfg.Connected(true)
	defer p.cfg.Connected(false)
	select {
	case <-closed:
		return errors.New("runtime closed the connection")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// within runs f for as long as a hook may take. What goes on longer is told to late when it ends.
func (p *Plugin) within(ctx context.Context, f func(context.Context) error, late func(error)) error {
	const reserve = 10 // of f's time, for undoing: a part of it
	hook, cancel := context.WithTimeoutCause(ctx, p.cfg.Limit, fmt.Errorf("it takes longer than %s", p.cfg.Limit))
	done := make(chan error, 1)
	var decided atomic.Bool // by whoever comes first: f that ended, or the hook that gave up
	p.works.Go(func() {     //nolint:contextcheck // what was begun is finished or undone, also when the hook is over
		defer cancel()
		// Between two links f sees that the time is over; inside the kernel's call it cannot.
		ctx, cancel := context.WithTimeoutCause(p.life, p.cfg.Limit-p.cfg.Limit/reserve, fmt.Errorf("it takes longer than %s", p.cfg.Limit))
		defer cancel()
		err := f(ctx)
		if decided.CompareAndSwap(false, true) {
			done <- err
		} else {
			late(err)
		}
	})
	select {
	case err := <-done:
		return err
	case <-hook.Done():
		if decided.CompareAndSwap(false, true) {
			return context.Cause(hook)
		}
		return <-done
	}
}

// hooks are what the runtime calls.
type hooks struct{ p *Plugin }

// RunPodSandbox gives a new sandbox its devices; an error fails it.
func (h hooks) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	p := h.p
	return h.give(ctx, pod, func(err error) {
		if err == nil { // the sandbox was refused meanwhile
			err = p.cfg.Hands.Detach(p.life, pod.GetId())
		}
		p.cfg.Log.Warn("hook was too late", "pod_namespace", pod.GetNamespace(), "pod", pod.GetName(), "sandbox", pod.GetId(), "undo_error", err)
	}, func(context.Context) error { return nil })
}

// give moves a pod's links, and then does the rest, in one hook's time.
func (h hooks) give(ctx context.Context, pod *api.PodSandbox, late func(error), rest func(context.Context) error) error {
	err := h.p.within(ctx, func(ctx context.Context) error {
		if _, err := h.p.cfg.Hands.Attach(ctx, sandbox(pod)); err != nil {
			return err
		}
		return rest(ctx)
	}, late)
	if err != nil {
		return fmt.Errorf("give pod %s/%s its claimed devices: %w", pod.GetNamespace(), pod.GetName(), err)
	}
	return nil
}

func sandbox(pod *api.PodSandbox) handover.Sandbox {
	s := handover.Sandbox{PodUID: pod.GetUid(), ID: pod.GetId()}
	source, told := pod.GetAnnotations()["kubernetes.io/config.source"]
	s.Static = told && source != "api"
	for _, ns := range pod.GetLinux().GetNamespaces() {
		if ns.GetType() == "network" {
			s.Namespace = ns.GetPath()
		}
	}
	return s
}

// StopPodSandbox takes the devices back. It never fails: what it leaves is brought home later.
func (h hooks) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	h.detach(ctx, pod)
	return nil
}

// RemovePodSandbox is the last that is heard of a sandbox.
func (h hooks) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	h.detach(ctx, pod)
	return nil
}

func (h hooks) detach(ctx context.Context, pod *api.PodSandbox) {
	p := h.p
	p.noteEnd(pod.GetId())
	tell := func(err error) {
		if err != nil {
			p.cfg.Log.Warn("devices are not home yet", "pod_namespace", pod.GetNamespace(), "pod", pod.GetName(), "sandbox", pod.GetId(), "error", err)
		}
	}
	tell(p.within(ctx, func(ctx context.Context) error { return p.cfg.Hands.Detach(ctx, pod.GetId()) }, tell))
}

// CreateContainer adds the device files of what has no link. It also sees that the pod has its
// devices: the runtime goes on when RunPodSandbox was late.
func (h hooks) CreateContainer(ctx context.Context, pod *api.PodSandbox, _ *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	var paths []string
	// What comes too late is left where it is: other containers of the pod may run.
	err := h.give(ctx, pod, func(error) {}, func(ctx context.Context) (err error) {
		paths, err = h.p.cfg.Hands.Nodes(ctx, pod.GetUid())
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if len(paths) == 0 {
		return nil, nil, nil
	}
	adjust := &api.ContainerAdjustment{}
	for _, path := range paths {
		node, err := deviceNode(path)
		if err != nil {
			return nil, nil, fmt.Errorf("give pod %s/%s its claimed devices: %w", pod.GetNamespace(), pod.GetName(), err)
		}
		adjust.AddDevice(node)
	}
	return adjust, nil, nil
}

func deviceNode(path string) (*api.LinuxDevice, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("device file %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil, fmt.Errorf("device file %s is none", path)
	}
	const all = 0o666
	return &api.LinuxDevice{
		Path: path, Type: "c", Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)), FileMode: api.FileMode(os.FileMode(all)),
	}, nil
}

// Synchronize hears of what the runtime has already. What follows from it takes its own time, in which
// sandboxes end, and the runtime may come with another list.
func (h hooks) Synchronize(_ context.Context, pods []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	look := h.p.beginLook()
	h.p.works.Go(func() {
		defer h.p.endLook()
		if h.p.cfg.Known != nil {
			select {
			case <-h.p.cfg.Known:
			case <-h.p.end:
				return
			}
		}
		// A pod may have a stopped sandbox beside the one that runs, which comes first.
		pods := slices.Clone(pods)
		slices.SortStableFunc(pods, func(a, b *api.PodSandbox) int { return stopped(a) - stopped(b) })
		for _, pod := range pods {
			if last, ended := h.p.still(look, pod.GetId()); last && !ended {
				h.reconcile(look, pod)
			}
		}
	})
	return nil, nil
}

func (p *Plugin) beginLook() (look int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.looking == 0 {
		p.ended = map[string]bool{}
	}
	p.looks++
	p.looking++
	return p.looks
}

func (p *Plugin) endLook() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.looking--; p.looking == 0 {
		p.ended = nil
	}
}

func (p *Plugin) noteEnd(sandboxID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		p.ended[sandboxID] = true
	}
}

// still says whether a list is the last one, and whether a sandbox of it has ended since.
func (p *Plugin) still(look int, sandboxID string) (last, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return look == p.looks, p.ended[sandboxID]
}

// stopped is 1 for a sandbox that seems to be stopped: some runtimes have no process for one that
// runs either.
func stopped(pod *api.PodSandbox) int {
	if pod.GetPid() == 0 {
		return 1
	}
	return 0
}

// reconcile gives a running sandbox what it lacks, and takes from a stopped one what it has.
func (h hooks) reconcile(look int, pod *api.PodSandbox) {
	p := h.p
	s := sandbox(pod)
	if s.Namespace == "" && pod.GetPid() == 0 {
		h.bringHome(pod)
		return
	}
	s.Yields = true
	_, err := p.cfg.Hands.Attach(p.life, s)
	switch last, ended := p.still(look, s.ID); {
	case ended:
		h.bringHome(pod) // what it was given after its end
	case err != nil && last && !errors.Is(err, handover.ErrElsewhere) && !errors.Is(err, device.ErrFreed):
		p.cfg.Log.Error("pod runs without a device that it claimed", "pod_namespace", pod.GetNamespace(), "pod", pod.GetName(), "pod_uid", s.PodUID, "error", err)
		p.cfg.Without(pod.GetNamespace(), pod.GetName(), s.PodUID, err)
	}
}

func (h hooks) bringHome(pod *api.PodSandbox) {
	p := h.p
	if err := p.cfg.Hands.Detach(p.life, pod.GetId()); err != nil {
		p.cfg.Log.Warn("devices are not home yet", "pod_namespace", pod.GetNamespace(), "pod", pod.GetName(), "sandbox", pod.GetId(), "error", err)
	}
}

// quiet is the stub's log: what it calls information, nobody needs.
type quiet struct{ log *slog.Logger }

var _ nrilog.Logger = quiet{}

// Debugf implements nrilog.Logger.
func (q quiet) Debugf(ctx context.Context, format string, args ...any) { q.say(ctx, format, args) }

// Infof implements nrilog.Logger.
func (q quiet) Infof(ctx context.Context, format string, args ...any) { q.say(ctx, format, args) }

// Warnf implements nrilog.Logger.
func (q quiet) Warnf(ctx context.Context, format string, args ...any) { q.say(ctx, format, args) }

// Errorf implements nrilog.Logger.
func (q quiet) Errorf(ctx context.Context, format string, args ...any) { q.say(ctx, format, args) }

func (q quiet) say(ctx context.Context, format string, args []any) {
	q.log.DebugContext(ctx, "nri", "text", fmt.Sprintf(format, args...))
}
