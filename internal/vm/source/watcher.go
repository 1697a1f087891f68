// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/weftnet/weft/internal/host/wake"
)

// Times say how often and how long. Those that are 0 are the usual ones.
type Times struct {
	Fast  time.Duration // between two looks while the guest has no address
	Slow  time.Duration // between two looks otherwise
	Limit time.Duration // for libvirt's own part of one look
	Agent time.Duration // for the guest agent's part of it
	Grace time.Duration // for which an agent that is away is believed
}

const (
	usualFast  = 5 * time.Second
	usualSlow  = 2 * time.Minute
	usualLimit = 15 * time.Second
	usualAgent = 8 * time.Second // libvirt gives an agent 5 s to wake up, and any time to answer
	usualGrace = time.Minute

	// burst is how many looks events cause at once; afterwards there is one each fast interval.
	burst = 5

	// settle is how long events gather before they are looked at.
	settle = 500 * time.Millisecond
	// firstRetry and lastRetry bound the pause before libvirt is connected to again.
	firstRetry, lastRetry = time.Second, 30 * time.Second
)

func (t Times) usual() Times {
	return Times{
		Fast: cmp.Or(t.Fast, usualFast), Slow: cmp.Or(t.Slow, usualSlow),
		Limit: cmp.Or(t.Limit, usualLimit), Agent: cmp.Or(t.Agent, usualAgent), Grace: cmp.Or(t.Grace, usualGrace),
	}
}

// Config says which machine is watched.
type Config struct {
	// Dial connects to libvirt.
	Dial func(ctx context.Context) (net.Conn, error)
	// URIs are tried in their order: whether libvirt is a session's or the system's is not seen
	// from its socket.
	URIs []string
	// Domain is the machine's name.
	Domain string
	// Changed is told what is known; it is not called by two goroutines at once.
	Changed func(Snapshot)
	Times   Times
	Log     *slog.Logger
}

// Watcher keeps what is known of one machine current.
type Watcher struct {
	cfg   Config
	times Times
	event wake.Signal // has one when something may have changed
	uri   int         // of the URIs, which libvirt answered last

	now  Snapshot  // as it was read, which is not what is told once it is old
	away time.Time // since when its agent is; zero: it is not
	told string    // the last fault that was logged
	pace Pace      // of looks that events cause

	mute  time.Duration // how long the agent is not asked, since it ended a connection
	until time.Time     // when it is asked again
}

// NewWatcher makes a watcher. It touches nothing.
func NewWatcher(cfg Config) *Watcher {
	times := cfg.Times.usual()
	return &Watcher{cfg: cfg, times: times, event: wake.New(), pace: Pace{Every: times.Fast, Burst: burst}}
}

// Poke has it look soon.
func (w *Watcher) Poke() { w.event.Raise() }

// errAgent says that the connection ended by a question to the agent: libvirt is not to blame.
var errAgent = errors.New("the guest agent's answer ended the connection to libvirt") //nolint:gochecknoglobals // a sentinel

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	for retry := firstRetry; ctx.Err() == nil; retry = min(2*retry, lastRetry) {
		begun := time.Now()
		err := w.follow(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // that it was told to end is no fault
		}
		w.note(ctx, err)
		agents := errors.Is(err, errAgent)
		if !agents {
			w.publish(w.now.aged(err))
		}
		if agents || time.Since(begun) > lastRetry {
			retry = firstRetry
		}
		w.pause(ctx, retry)
	}
	return nil
}

// note logs a fault once.
func (w *Watcher) note(ctx context.Context, err error) {
	if text := err.Error(); text != w.told {
		w.told = text
		w.cfg.Log.DebugContext(ctx, "libvirt cannot be asked", "domain", w.cfg.Domain, "error", err)
	}
}

// pause waits before the next connection, and lets what is known grow old meanwhile.
func (w *Watcher) pause(ctx context.Context, retry time.Duration) {
	timer := time.NewTimer(retry)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-w.ends():
			w.publish(w.now)
		}
	}
}

// ends is when the time of grace ends; never while it does not run.
func (w *Watcher) ends() <-chan time.Time {
	if w.away.IsZero() {
		return nil
	}
	if left := time.Until(w.away.Add(w.times.Grace)); left > 0 {
		return time.After(left)
	}
	return nil // it was said already
}

// publish tells what is known, with an agent that is away grown old. Before the agent is asked it is
// as much away as it was, and so is one that was away for the time of grace when its machine is paused:
// what was dropped does not come back by that.
func (w *Watcher) publish(s Snapshot) {
	w.now = s
	switch away := s.agentAway(); {
	case away && w.away.IsZero():
		w.away = time.Now()
	case !away && !s.asking && (s.State != Paused || !w.gone()):
		w.away = time.Time{}
	}
	if !w.away.IsZero() {
		s = s.agentless(w.gone())
		s.Dropped = w.away.Add(w.times.Grace)
	}
	w.cfg.Changed(s)
}

// gone says that the agent was away for the time of grace.
func (w *Watcher) gone() bool { return !w.away.IsZero() && time.Since(w.away) >= w.times.Grace }

// follow connects and looks until the connection ends.
func (w *Watcher) follow(ctx context.Context) error {
	c, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // it always succeeds
	for {
		var wait time.Duration
		done := make(chan error, 1)
		go func() { // the stack that this needs is not kept while nothing happens
			var err error
			wait, err = w.look(ctx, c)
			done <- err
		}()
		if err := <-done; err != nil {
			return err
		}
		w.told = ""
		c.Rest()
		if err := w.wait(ctx, c, wait); err != nil {
			return err
		}
	}
}

func (w *Watcher) connect(ctx context.Context) (c *Conn, err error) {
	for range w.cfg.URIs {
		c, err = w.connectTo(ctx, w.cfg.URIs[w.uri])
		if err == nil {
			return c, nil
		}
		w.uri = (w.uri + 1) % len(w.cfg.URIs)
	}
	return nil, err
}

func (w *Watcher) connectTo(ctx context.Context, uri string) (*Conn, error) {
	ctx, cancel := w.limited(ctx)
	defer cancel()
	conn, err := w.cfg.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return Dial(ctx, conn, uri, w.Poke)
}

func (w *Watcher) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, w.times.Limit, fmt.Errorf("libvirt does not answer within %s", w.times.Limit))
}

// look reads everything once and says when to do so again. What libvirt says is told before the
// agent is asked, who may take long.
func (w *Watcher) look(ctx context.Context, c *Conn) (time.Duration, error) {
	d, s, err := w.lookDomain(ctx, c)
	if err != nil {
		return 0, err
	}
	w.publish(s)
	if !s.asking {
		return w.times.Slow, nil
	}
	if left := time.Until(w.until); left > 0 {
		return min(left, w.times.Slow), nil
	}
	guest, cancel := agentLimited(ctx, w.times.Agent)
	defer cancel()
	ended := c.readGuest(guest, d, &s)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	w.publish(s)
	if ended != nil {
		w.mute = min(max(2*w.mute, w.times.Fast), w.times.Slow)
		w.until = time.Now().Add(w.mute)
		return 0, fmt.Errorf("%w: %w", errAgent, ended)
	}
	w.mute = 0
	failing := s.Domain.GuestErr != nil && time.Since(w.away) < w.times.Grace
	lacking := s.Domain.GuestErr == nil && s.Domain.Channel == channelConnected && !s.hasAddress()
	if failing || lacking {
		return w.times.Fast, nil
	}
	return w.times.Slow, nil
}

func (w *Watcher) lookDomain(ctx context.Context, c *Conn) (Domain, Snapshot, error) {
	ctx, cancel := w.limited(ctx)
	defer cancel()
	d, err := c.Find(ctx, w.cfg.Domain)
	if err != nil {
		return d, Snapshot{}, err
	}
	s, err := c.readDomain(ctx, d, w.now, time.Now())
	return d, s, err
}

// wait waits until it is time to look again: that of d, or soon after an event.
func (w *Watcher) wait(ctx context.Context, c *Conn, d time.Duration) error {
	due := time.Now().Add(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	byEvent := false
	for {
		event := w.event
		if byEvent {
			event = nil // one is enough
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.Done():
			return fmt.Errorf("the connection to libvirt ended: %w", c.guard.fault())
		case <-timer.C:
			w.event.Clear()
			if byEvent {
				w.pace.Done(time.Now())
			}
			return nil
		case <-w.ends():
			w.publish(w.now)
		case <-event:
			byEvent = true
			timer.Reset(min(max(settle, w.pace.Wait(time.Now())), time.Until(due)))
		}
	}
}
