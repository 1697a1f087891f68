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
	"strings"
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
	if err := u.readConfs(); err != nil {
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
	// confs are the published confs: the one of confName, and those that were published under
	// other names before that was changed.
	confs   []published
	foreign bool // what stands in the published conf's place is not Weft's
}

// published is a conf of Weft's, in its place or moved aside by an earlier run.
type published struct {
	name string
	data []byte
}

func (u *uninstall) say(format string, args ...any) { fmt.Fprintf(u.out, format+"\n", args...) }

func (u *uninstall) confPath(name string) string { return filepath.Join(u.ConfDir, name) }

// parked is where a conf is while records are undone: no runtime reads a name that ends so.
func (u *uninstall) parked(name string) string { return filepath.Join(u.ConfDir, "."+name+aside) }

const aside = ".uninstall"

// readConfs reads the published confs, or what an earlier run moved aside.
func (u *uninstall) readConfs() error {
	for _, path := range []string{u.confPath(u.ConfName), u.parked(u.ConfName)} {
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
			break
		}
		u.confs = append(u.confs, published{u.ConfName, b})
		break
	}
	return u.readFormer()
}

// readFormer reads what was published under other names. A runtime takes the first conf of its
// directory, which would be one that names a plugin that is gone.
func (u *uninstall) readFormer() error {
	entries, err := os.ReadDir(u.ConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("confDir: %w", err)
	}
	known := map[string]bool{u.ConfName: true}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), aside)
		if ok {
			name, ok = strings.CutPrefix(name, ".")
		} else {
			ok = !strings.HasPrefix(name, ".")
		}
		if !ok || known[name] || filepath.Ext(name) != ".conflist" || !e.Type().IsRegular() {
			continue
		}
		b, err := read(u.confPath(e.Name()))
		if err != nil {
			return fmt.Errorf("confDir: %w", err)
		}
		// One that somebody wrote by hand does not say where its pod network was found.
		if p, err := confpub.Read(b); err == nil && p.PrimaryConf != "" {
			known[name] = true
			u.confs = append(u.confs, published{name, b})
		}
	}
	return nil
}

// pluginConf is the published conf as the runtime would hand it to weft-cni, nil when there is none
// that can be read.
func (u *uninstall) pluginConf() *netconf.Object {
	for _, c := range u.confs {
		if o := c.plugin(); o != nil {
			return o
		}
	}
	return nil
}

func (p published) plugin() *netconf.Object {
	var list struct{ Plugins []json.RawMessage }
	if json.Unmarshal(p.data, &list) != nil || len(list.Plugins) == 0 {
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
	var faults []error
	for _, c := range u.confs {
		if conf := c.plugin(); conf != nil {
			faults = append(faults, u.elsewhereIn(c.name, conf)...)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("the published conf says otherwise where things are, name the agent's configuration by --config: %w", errors.Join(faults...))
}

func (u *uninstall) elsewhereIn(name string, conf *netconf.Object) (faults []error) {
	where := ""
	if name != u.ConfName {
		where = name + ": "
	}
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
			faults = append(faults, fmt.Errorf("%s%s is %q, not %q", where, p.key, there, p.asked))
		}
	}
	return faults
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

// park moves the confs aside.
func (u *uninstall) park() error {
	for _, c := range u.confs {
		err := os.Rename(u.confPath(c.name), u.parked(c.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // an earlier run did
		}
		if err != nil {
			return errors.Join(fmt.Errorf("confDir: %w", err), u.unpark())
		}
		u.say("took %s away: the runtime attaches new pods by the pod network's own conf", u.confPath(c.name))
	}
	if len(u.confs) == 0 {
		return nil
	}
	return replace.SyncDir(u.ConfDir)
}

// unpark puts the confs back, the one that a runtime takes first.
func (u *uninstall) unpark() error {
	var faults []error
	for _, c := range u.confs {
		err := os.Rename(u.parked(c.name), u.confPath(c.name))
		switch {
		case err == nil:
			u.say("put %s back", u.confPath(c.name))
		case !errors.Is(err, fs.ErrNotExist): // else it was not taken away
			faults = append(faults, fmt.Errorf("put the conf back: %w", err))
		}
	}
	if len(u.confs) > 0 {
		faults = append(faults, replace.SyncDir(u.ConfDir))
	}
	return errors.Join(faults...)
}

// remove takes away what is left when no record is.
func (u *uninstall) remove() error {
	var faults []error
	own := []string{u.parked(u.ConfName)}
	for _, c := range u.confs {
		if c.name != u.ConfName {
			own = append(own, u.parked(c.name))
		}
	}
	for _, path := range append(own, u.plugin()) {
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
	for _, c := range u.confs {
		_, err := replace.Leftovers(u.confPath(c.name))
		faults = append(faults, err)
	}
	if !u.foreign {
		_, err := replace.Leftovers(u.confPath(u.ConfName))
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
