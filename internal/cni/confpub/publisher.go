// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weftnet/weft/internal/host/replace"
	"github.com/weftnet/weft/internal/host/wake"
)

// times are what the Publisher waits for.
type times struct {
	rescan      time.Duration // the disk is looked at at least so often
	quiet       time.Duration // after an event, so that a burst is one look
	settle      time.Duration // how long the old primary must be away before another is it
	retry       time.Duration // after a write that failed
	restore     time.Duration // between a second restoring and the first; doubled each time
	restoreMost time.Duration // up to this
	repeat      time.Duration // before the same is told again
}

func defaultTimes() times {
	return times{
		rescan: 10 * time.Second, quiet: 20 * time.Millisecond, settle: 3 * time.Second,
		retry: time.Second, restore: 100 * time.Millisecond, restoreMost: 30 * time.Second,
		repeat: time.Minute,
	}
}

// Status is what the Publisher knows.
type Status struct {
	Published  bool   // a conf of Weft's that the hands accept stands in its place
	Primary    string // the file of the primary that it was or will be made from, "" = none known
	PrimaryErr error  // why the primary as it is on the disk cannot be used
	Err        error  // why what should be published is not, or is not what the runtime takes
	Restored   uint64 // how often another tool's change of the published file was undone
}

// Publisher keeps the published conf right.
type Publisher struct {
	opts  Options
	log   *slog.Logger
	times times
	wake  wake.Signal

	mu      sync.Mutex
	allowed bool
	status  Status
	notify  []func()

	// What follows belongs to Run.
	current string // the file of the primary
	primary []byte // the last good one
	last    []byte // what stands in the published file as far as we know, nil = nothing of ours
	// candidates are the files that may become the primary and since when they are that. Another
	// that comes and goes takes nothing from them.
	candidates map[string]time.Time
	restored   time.Time               // the last restoring
	pause      time.Duration           // before the next
	failed     error                   // of the last write, nil = it was made
	retryAt    time.Time               // when it is tried again
	told       map[string]string       // the last text of each kind of fault that was told
	toldAt     map[[2]string]time.Time // by kind and text
}

// New makes a Publisher; nothing is read or written yet. The error names each wrong option.
func New(opts Options, log *slog.Logger) (*Publisher, error) {
	opts.ConfDir = filepath.Clean(opts.ConfDir)
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	warnings, err := opts.warnings()
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		log.Warn("an option of the published conf is doubtful", "field", w.Field, "reason", w.Text)
	}
	return &Publisher{
		opts: opts, log: log.With("conf", opts.path()), times: defaultTimes(), wake: wake.New(),
		candidates: map[string]time.Time{}, told: map[string]string{}, toldAt: map[[2]string]time.Time{},
	}, nil
}

// String names the component.
func (p *Publisher) String() string { return "conf publisher" }

// Allow lets the Publisher publish: the runtime may be pointed at Weft. It is for good.
func (p *Publisher) Allow() {
	p.mu.Lock()
	p.allowed = true
	p.mu.Unlock()
	p.wake.Raise()
}

// Status gives what is known now.
func (p *Publisher) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// State is the short form of Status: fault is the primary's, else the publishing's.
func (p *Publisher) State() (published bool, primary string, fault error) {
	s := p.Status()
	return s.Published, s.Primary, errors.Join(s.PrimaryErr, s.Err)
}

// Notify has f called after every change of Status. Call it before Run; f must be quick.
func (p *Publisher) Notify(f func()) { p.notify = append(p.notify, f) }

// Run keeps the published conf right until ctx ends, and leaves it where it is.
func (p *Publisher) Run(ctx context.Context) error {
	if n, err := replace.Leftovers(p.opts.path()); n > 0 || err != nil {
		p.log.Info("removed temporary files of an earlier process", "count", n, "error", err)
	}
	events := newEvents(p.log)
	defer events.close()
	for {
		events.follow(p.directories()...)
		next := p.pass(time.Now())
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-p.wake:
		case <-events.changed:
			events.quiet(ctx, p.times.quiet)
		}
		timer.Stop()
	}
}

// directories are those in which something may happen that matters.
func (p *Publisher) directories() []string {
	dirs := []string{p.opts.ConfDir}
	if p.opts.PrimaryConf != "" {
		dirs = append(dirs, filepath.Dir(filepath.Clean(p.opts.PrimaryConf)))
	}
	return dirs
}

// pass looks at the disk once, mends what is wrong, and says when to look again.
func (p *Publisher) pass(now time.Time) time.Duration {
	next := p.times.rescan
	s := p.opts.look()
	p.adopt(s, now)
	st := Status{Restored: p.Status().Restored}
	var wait time.Duration
	if wait, st.PrimaryErr = p.choose(s, now); wait > 0 {
		next = min(next, wait)
	}
	st.Primary = p.current
	wait, err := p.publish(s, now, &st)
	if wait > 0 {
		next = min(next, wait)
	}
	st.Err = err
	if err == nil && s.earlier != "" {
		st.Err = fmt.Errorf("%s in %s sorts before %s: the runtime uses that one", s.earlier, p.opts.ConfDir, p.opts.ConfName)
	}
	p.tell(now, "primary", "the primary conf cannot be used, the last good one is kept", st.PrimaryErr)
	p.tell(now, "publish", "the cni conf is not published as it should be", st.Err)
	p.set(st)
	return next
}

// adopt takes over what an earlier process published: its primary is the last good one
// until a better one is known.
func (p *Publisher) adopt(s seen, now time.Time) {
	if p.last != nil || len(s.own) == 0 {
		return
	}
	own, err := Read(s.own)
	if err != nil {
		p.tell(now, "own", "the published cni conf is not one that can be kept", err)
		return
	}
	p.last = s.own
	if p.primary == nil {
		p.current, p.primary = own.PrimaryConf, own.Primary
		p.log.Info("found the cni conf that was published before", "primary", own.PrimaryConf)
	}
}

// choose brings current and primary up to date. What is left as it was because of a doubt
// that time resolves gives a wait.
func (p *Publisher) choose(s seen, now time.Time) (wait time.Duration, err error) {
	if p.opts.PrimaryConf != "" && p.current != p.opts.PrimaryConf {
		p.current = filepath.Clean(p.opts.PrimaryConf)
	}
	c := Find(s.files, p.current)
	p.tell(now, "skipped", "a broken conf is passed over", errors.Join(c.Skipped...))
	if c.Primary == nil {
		clear(p.candidates)
		return 0, p.absent(c, s)
	}
	if c.Path != p.current && (len(c.Skipped) > 0 || p.current != "" && !there(s.files, p.current)) {
		maps.DeleteFunc(p.candidates, func(path string, _ time.Time) bool { return !there(s.files, path) })
		if _, known := p.candidates[c.Path]; !known {
			p.candidates[c.Path] = now
		}
		if wait := p.times.settle - now.Sub(p.candidates[c.Path]); wait > 0 {
			return wait, p.absent(Choice{Fault: ErrNone, Skipped: c.Skipped}, s)
		}
	}
	clear(p.candidates)
	o := p.opts
	o.PrimaryConf = c.Path
	if _, err := Render(o, c.Primary); err != nil {
		return 0, fmt.Errorf("%w: %s: %w", ErrBroken, c.Path, err)
	}
	if c.Path != p.current {
		p.log.Info("chose the primary conf", "primary", c.Path, "before", p.current, "others", len(s.files)-len(c.Own)-1)
	}
	p.current, p.primary = c.Path, c.Primary
	return 0, nil
}

// absent says why there is no primary on the disk.
func (p *Publisher) absent(c Choice, s seen) error {
	switch {
	case s.err != nil:
		return fmt.Errorf("%w: %w", ErrNone, s.err)
	case c.Path != "":
		return c.Fault
	case p.opts.PrimaryConf != "" && len(c.Own) > 0:
		return fmt.Errorf("primaryConf: %s %w", c.Own[0], errOwn)
	case p.current != "" && !there(s.files, p.current):
		return fmt.Errorf("%w: %s", ErrGone, p.current)
	case len(c.Skipped) > 0:
		return fmt.Errorf("%w: %w", c.Fault, errors.Join(c.Skipped...))
	}
	return c.Fault
}

func there(files []File, path string) bool {
	for _, f := range files {
		if f.Path == path {
			return true
		}
	}
	return false
}

// publish writes what should stand in the published file, when it is not there.
func (p *Publisher) publish(s seen, now time.Time, st *Status) (wait time.Duration, err error) {
	p.mu.Lock()
	allowed := p.allowed
	p.mu.Unlock()
	want := p.last
	if allowed && p.primary != nil {
		o := p.opts
		o.PrimaryConf = p.current
		if want, err = Render(o, p.primary); err != nil {
			return 0, err
		}
	}
	same := bytes.Equal(s.own, p.last) && s.mode == confMode
	st.Published = len(s.own) > 0 && bytes.Equal(s.own, p.last)
	switch {
	case want == nil:
		return 0, nil // nothing to publish, or not yet: the primary's fault and the gate say why
	case s.mode == confMode && bytes.Equal(s.own, want):
		p.last, st.Published = want, true // by us, or by another publisher
		return 0, nil
	}
	foreign := p.last != nil && !same
	if foreign {
		if wait := p.pause - now.Sub(p.restored); !p.restored.IsZero() && wait > 0 {
			return wait, errors.New("another tool keeps changing it")
		}
	}
	if wait, err := p.write(want, now); err != nil {
		return wait, err
	}
	p.last, st.Published = want, true
	if !foreign {
		p.log.Info("published the cni conf", "primary", p.current, "bytes", len(want))
		return 0, nil
	}
	p.restoredOnce(s, now, st)
	return 0, nil
}

// write puts the file there. One that failed is not tried again before its time: its own temporary
// file has the disk looked at again at once.
func (p *Publisher) write(want []byte, now time.Time) (wait time.Duration, err error) {
	if wait := p.retryAt.Sub(now); p.failed != nil && wait > 0 {
		return min(wait, p.times.retry), p.failed
	}
	if err := replace.File(p.opts.path(), confMode, bytes.NewReader(want)); err != nil {
		p.failed, p.retryAt = fmt.Errorf("publish: %w", nameless(err)), now.Add(p.times.retry)
		return p.times.retry, p.failed
	}
	p.failed = nil
	return 0, nil
}

// nameless is a fault of the temporary file without the file's name, which is another each time:
// the same fault is told once.
func nameless(err error) error {
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	return err
}

// restoredOnce counts a restoring and sets how long the next one has to wait: two that
// want different things must not keep each other, and the runtime, busy.
func (p *Publisher) restoredOnce(s seen, now time.Time, st *Status) {
	what := "was changed"
	if s.own == nil {
		what = "was removed or renamed"
	}
	st.Restored++
	if now.Sub(p.restored) > 2*p.times.restoreMost {
		p.pause = p.times.restore
	} else {
		p.pause = min(2*p.pause, p.times.restoreMost)
	}
	p.restored = now
	p.log.Warn("restored the cni conf", "reason", what, "count", st.Restored)
}

// tell logs an error of one kind when it is another than before. What was told just now is told
// again only after a while, when it is so then.
func (p *Publisher) tell(now time.Time, kind, what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if p.told[kind] == text {
		return
	}
	maps.DeleteFunc(p.toldAt, func(_ [2]string, at time.Time) bool { return now.Sub(at) >= p.times.repeat })
	if _, recently := p.toldAt[[2]string{kind, text}]; recently {
		return
	}
	p.told[kind], p.toldAt[[2]string{kind, text}] = text, now
	if err == nil {
		p.log.Info("a fault of the cni conf is over", "fault", kind)
		return
	}
	p.log.Warn("the cni conf has a fault", "fault", kind, "what", what, "error", err)
}

// set stores the status and tells who wants to know.
func (p *Publisher) set(st Status) {
	p.mu.Lock()
	before := p.status
	p.status = st
	p.mu.Unlock()
	same := before.Published == st.Published && before.Primary == st.Primary && before.Restored == st.Restored &&
		text(before.PrimaryErr) == text(st.PrimaryErr) && text(before.Err) == text(st.Err)
	if same {
		return
	}
	for _, f := range p.notify {
		f()
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
