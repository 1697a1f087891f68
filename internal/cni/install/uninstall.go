// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/host/replace"
)

// passes bounds how often the records are gone through: an ADD that began before the conf
// was moved aside may finish while the first are undone.
const passes = 3

// Uninstall takes Weft off the node, telling progress what it does. What is not there is
// fine. While records are left and Force is not set, the error is a *LeftError and nothing
// was touched, nor is anything when the published conf names other places than the options.
func Uninstall(ctx context.Context, o Options, progress io.Writer) error {
	o, err := o.filled()
	if err != nil {
		return err
	}
	u := &uninstall{Options: o, out: progress}
	if err := u.readConf(); err != nil {
		return err
	}
	if err := u.elsewhere(); err != nil {
		return err
	}
	if err := u.agentAway(ctx); err != nil {
		return err
	}
	if err := u.mayGo(o.Force); err != nil {
		return err
	}
	if err := u.park(); err != nil {
		return err
	}
	err = u.undoAll(ctx)
	if err == nil {
		err = u.mayGo(false)
	}
	if err != nil {
		return errors.Join(err, u.unpark())
	}
	return u.remove()
}

// uninstall is one run.
type uninstall struct {
	Options
	out io.Writer
	// conf is the published conf, nil when there is none or it is another's.
	conf    []byte
	foreign bool // what stands in the published conf's place is not Weft's
}

func (u *uninstall) say(format string, args ...any) { fmt.Fprintf(u.out, format+"\n", args...) }

func (u *uninstall) confPath() string { return filepath.Join(u.ConfDir, u.ConfName) }

// parked is where the conf is while records are undone: no runtime reads a name that ends so.
func (u *uninstall) parked() string { return filepath.Join(u.ConfDir, "."+u.ConfName+".uninstall") }

// readConf reads the published conf, or the one that an earlier run moved aside.
func (u *uninstall) readConf() error {
	for _, path := range []string{u.confPath(), u.parked()} {
		b, err := read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("confDir: %w", err)
		}
		if c := confpub.Find([]confpub.File{{Path: path, Data: b}}, ""); c.Primary != nil {
			u.foreign = true
			u.say("%s is not of Weft's making and stays", path)
			return nil
		}
		u.conf = b
		return nil
	}
	return nil
}

// pluginConf is the published conf as the runtime would hand it to weft-cni, nil when it cannot
// be read.
func (u *uninstall) pluginConf() *netconf.Object {
	var list struct{ Plugins []json.RawMessage }
	if json.Unmarshal(u.conf, &list) != nil || len(list.Plugins) == 0 {
		return nil
	}
	o, err := netconf.ParseObject(list.Plugins[0])
	if err != nil {
		return nil
	}
	return o
}

// elsewhere refuses places that are not those of the published conf: the records that are left and
// the agent that lives would be passed over.
func (u *uninstall) elsewhere() error {
	conf := u.pluginConf()
	if conf == nil {
		return nil
	}
	var faults []error
	for _, p := range []struct{ key, asked, def string }{
		{"stateDir", u.StateDir, netconf.DefaultStateDir},
		{"agentSocket", u.AgentSocket, netconf.DefaultAgentSocket},
		{"binDir", u.BinDir, netconf.Defaults().BinDir},
	} {
		there := p.def
		if raw, ok := conf.Get(p.key); ok {
			s, err := netconf.Decode[string](raw, "a string")
			if err != nil {
				s = string(raw) // no place that can be asked for
			}
			there = cmp.Or(s, p.def)
		}
		if p.asked != "" && filepath.Clean(p.asked) != filepath.Clean(there) {
			faults = append(faults, fmt.Errorf("%s is %q, not %q", p.key, there, p.asked))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("the published conf says otherwise where things are, name the agent's configuration by --config: %w", errors.Join(faults...))
}

// agentAway refuses while an agent answers: it would publish the conf again.
func (u *uninstall) agentAway(ctx context.Context) error {
	socket := cmp.Or(u.AgentSocket, netconf.DefaultAgentSocket)
	if o := u.pluginConf(); o != nil && u.AgentSocket == "" {
		raw, _ := o.Get("agentSocket")
		if s, err := netconf.Decode[string](raw, "a string"); err == nil && s != "" {
			socket = s
		}
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil //nolint:nilerr // nobody answers, which is what is needed
	}
	_ = conn.Close()
	return fmt.Errorf("an agent answers on %s and would publish the conf again: delete its DaemonSet first", socket)
}

// mayGo refuses while something is left; records are no reason when they are to be undone.
func (u *uninstall) mayGo(undo bool) error {
	records, err := u.left()
	if err != nil {
		return err
	}
	devices, err := u.devices()
	if err != nil {
		return err
	}
	if undo {
		records = nil
	}
	if len(records)+len(devices) > 0 {
		return &LeftError{Records: records, Devices: devices}
	}
	return nil
}

// park moves the conf aside.
func (u *uninstall) park() error {
	if u.conf == nil {
		return nil
	}
	err := os.Rename(u.confPath(), u.parked())
	if errors.Is(err, fs.ErrNotExist) {
		return nil // an earlier run did
	}
	if err != nil {
		return fmt.Errorf("confDir: %w", err)
	}
	u.say("took %s away: the runtime attaches new pods by the pod network's own conf", u.confPath())
	return replace.SyncDir(u.ConfDir)
}

// unpark puts the conf back.
func (u *uninstall) unpark() error {
	if u.conf == nil {
		return nil
	}
	if err := os.Rename(u.parked(), u.confPath()); err != nil {
		return fmt.Errorf("put the conf back: %w", err)
	}
	u.say("put %s back", u.confPath())
	return replace.SyncDir(u.ConfDir)
}

// remove takes away what is left when no record is.
func (u *uninstall) remove() error {
	var faults []error
	for _, path := range []string{u.parked(), u.plugin()} {
		if _, err := replace.Leftovers(path); err != nil {
			faults = append(faults, err)
		}
		switch err := os.Remove(path); {
		case err == nil:
			u.say("removed %s", path)
		case !errors.Is(err, fs.ErrNotExist):
			faults = append(faults, err)
		}
	}
	if !u.foreign {
		_, err := replace.Leftovers(u.confPath())
		faults = append(faults, err)
	}
	faults = append(faults, u.removeState())
	return errors.Join(faults...)
}

// removeState removes what Weft keeps in the state directory, and the directory when
// nothing else is in it.
func (u *uninstall) removeState() error {
	root, err := os.OpenRoot(u.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stateDir: %w", err)
	}
	defer root.Close()
	var faults []error
	// What an earlier boot or call needs of these is nothing when there are no records.
	for _, name := range []string{"lanes", "sweep", "boot", "gc.gate", "gc.turnstile"} {
		faults = append(faults, root.RemoveAll(name))
	}
	for _, name := range []string{"attachments", "devices", "quarantine"} {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			u.say("left %s, which is not empty", filepath.Join(u.StateDir, name))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("stateDir: %w", err)
	}
	switch err := os.Remove(u.StateDir); {
	case err == nil:
		u.say("removed %s", u.StateDir)
	case !errors.Is(err, fs.ErrNotExist):
		u.say("left %s: %v", u.StateDir, err)
	}
	return nil
}
