// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Config says who registers, where, and how often it is tried.
type Config struct {
	Driver string // the driver's name
	Node   string
	Dir    string // the kubelet's, /var/lib/kubelet
	Client kubernetes.Interface
	Plugin kubeletplugin.DRAPlugin

	Interval    time.Duration // between two attempts
	Timeout     time.Duration // of one attempt
	MaxAttempts int           // then the driver is degraded, and the pause is Slow
	Slow        time.Duration // default: 30 s
	Check       time.Duration // how often the sockets are looked after; default: 10 s

	// Report is told what changed. It must not block.
	Report func(Status)
}

const (
	slow  = 30 * time.Second
	check = 10 * time.Second
)

// Status is how the registration stands.
type Status struct {
	Registered bool
	Degraded   bool // MaxAttempts failed since it was last registered
	Attempts   int  // since it was last registered
	Err        error
}

// Registration registers one driver. Publish may be called at any time, by one goroutine.
type Registration struct {
	cfg Config
	log *slog.Logger

	mu        sync.Mutex
	helper    *kubeletplugin.Helper // nil while the kubelet does not know the driver
	resources *resourceslice.DriverResources
}

// New makes a registration; nothing is touched before Run.
func New(cfg Config, log *slog.Logger) *Registration {
	if cfg.Slow == 0 {
		cfg.Slow = slow
	}
	if cfg.Check == 0 {
		cfg.Check = check
	}
	if cfg.Report == nil {
		cfg.Report = func(Status) {}
	}
	return &Registration{cfg: cfg, log: log.With("driver", cfg.Driver)}
}

func (r *Registration) String() string { return "registration of " + r.cfg.Driver }

// registryDir and pluginDir are where the kubelet looks.
func (r *Registration) registryDir() string { return filepath.Join(r.cfg.Dir, "plugins_registry") }

func (r *Registration) pluginDir() string {
	return filepath.Join(r.cfg.Dir, "plugins", r.cfg.Driver)
}

func (r *Registration) sockets() []string {
	return []string{
		filepath.Join(r.registryDir(), r.cfg.Driver+"-reg.sock"),
		filepath.Join(r.pluginDir(), "dra.sock"),
	}
}

// Run keeps the driver registered until ctx ends.
func (r *Registration) Run(ctx context.Context) error {
	attempts := 0
	for ctx.Err() == nil {
		attempts++
		registered, err := r.once(ctx, attempts)
		if ctx.Err() != nil {
			break
		}
		if registered {
			attempts = 1
		}
		degraded := attempts >= r.cfg.MaxAttempts
		r.cfg.Report(Status{Degraded: degraded, Attempts: attempts, Err: err})
		pause := r.cfg.Interval
		if degraded {
			pause = r.cfg.Slow
		}
		r.log.Warn("kubelet does not know the driver", "attempts", attempts, "next", pause, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil //nolint:nilerr // the attempts' errors were reported
}

// once makes the sockets and holds them for as long as they are of use.
func (r *Registration) once(ctx context.Context, attempt int) (registered bool, err error) {
	const mode = 0o750
	if err := os.MkdirAll(r.pluginDir(), mode); err != nil {
		return false, err
	}
	// Looked for first: a helper whose second socket cannot be made leaves the first one behind.
	if _, err := os.Stat(r.registryDir()); err != nil {
		return false, fmt.Errorf("look for the kubelet's folder: %w", err)
	}
	news := make(chan *registerapi.RegistrationStatus)
	// The calls end with the sockets, which outlive ctx by the time of what is being done.
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	helper, err := r.start(stopped, news)
	if err != nil {
		return false, fmt.Errorf("listen for the kubelet: %w", err)
	}
	defer helper.Stop()
	defer r.withdraw()
	var publishing sync.WaitGroup
	defer publishing.Wait()
	defer stop() // before the helper, and what is being published, is waited for
	return r.hold(ctx, helper, news, attempt, &publishing)
}

func (r *Registration) start(life context.Context, news chan<- *registerapi.RegistrationStatus) (*kubeletplugin.Helper, error) {
	listen := func(ctx context.Context, call any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		answer, err := handler(ctx, call)
		if status, ok := call.(*registerapi.RegistrationStatus); ok {
			select {
			case news <- status:
			case <-ctx.Done():
			case <-life.Done():
			}
		}
		return answer, err
	}
	return kubeletplugin.Start(life, r.cfg.Plugin,
		kubeletplugin.DriverName(r.cfg.Driver),
		kubeletplugin.KubeClient(r.cfg.Client),
		kubeletplugin.NodeName(r.cfg.Node),
		kubeletplugin.RegistrarDirectoryPath(r.registryDir()),
		kubeletplugin.PluginDataDirectoryPath(r.pluginDir()),
		// The default lock would put a second call behind a slow one, and past the kubelet's limit.
		kubeletplugin.Serialize(false),
		kubeletplugin.HealthService(false),
		kubeletplugin.GRPCInterceptor(listen),
	)
}

// hold waits for the kubelet's word, and then until the sockets are of no use any more.
func (r *Registration) hold(ctx context.Context, helper *kubeletplugin.Helper, news <-chan *registerapi.RegistrationStatus, attempt int, publishing *sync.WaitGroup) (registered bool, err error) {
	made, err := r.identities()
	if err != nil {
		return false, err
	}
	late := time.NewTimer(r.cfg.Timeout)
	defer late.Stop()
	look := time.NewTicker(r.cfg.Check)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return registered, nil
		case status := <-news:
			if !status.PluginRegistered {
				return registered, fmt.Errorf("kubelet refuses the driver: %s", status.Error)
			}
			registered = true
			late.Stop()
			r.log.Info("kubelet knows the driver", "attempts", attempt)
			r.cfg.Report(Status{Registered: true, Attempts: attempt})
			// The helper's first answer comes when the API server is there.
			publishing.Go(func() { r.publishBy(ctx, helper) })
		case <-late.C:
			return false, fmt.Errorf("kubelet did not ask within %s", r.cfg.Timeout)
		case <-look.C:
			now, err := r.identities()
			if err != nil {
				return registered, err
			}
			for i := range made {
				if !os.SameFile(made[i], now[i]) {
					return registered, fmt.Errorf("socket %s was replaced", r.sockets()[i])
				}
			}
		}
	}
}

// identities says which files the sockets are.
func (r *Registration) identities() (all []fs.FileInfo, err error) {
	for _, path := range r.sockets() {
		info, err := os.Lstat(path)
		if err != nil {
			return nil, fmt.Errorf("look after the socket: %w", err)
		}
		all = append(all, info)
	}
	return all, nil
}

// Publish has these resources published as soon as, and for as long as, the kubelet knows the
// driver. It keeps them; they must not be changed afterwards.
func (r *Registration) Publish(ctx context.Context, resources resourceslice.DriverResources) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resources = &resources
	if r.helper == nil {
		return nil
	}
	return r.helper.PublishResources(ctx, resources)
}

func (r *Registration) publishBy(ctx context.Context, helper *kubeletplugin.Helper) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.helper = helper
	if r.resources == nil {
		return
	}
	if err := helper.PublishResources(ctx, *r.resources); err != nil && !errors.Is(err, context.Canceled) {
		r.log.Warn("devices are not published", "error", err)
	}
}

func (r *Registration) withdraw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.helper = nil
}
