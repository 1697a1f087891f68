// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/planner/report"
	"github.com/weftnet/weft/internal/cni/reconcile"
	"github.com/weftnet/weft/internal/host/replace"
)

const (
	// memoryName is a file of socketDir, the one place where an agent may write, and empty after a
	// reboot: then the records of the last boot tell.
	memoryName = "status.json"
	maxMemory  = 16 << 20
)

// memory is the file of what the reconciler remembers for the next agent.
type memory struct {
	socketDir, stateDir string
	log                 *slog.Logger
	last                []byte // what was written
	failed              bool
}

// memoryFile is the file's JSON.
type memoryFile struct {
	// StateDir is where the records were: those of another place say nothing about these.
	StateDir string      `json:"stateDir"`
	Pods     []memoryPod `json:"pods"`
}

type memoryPod struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	UID       string        `json:"uid"`
	Entries   []memoryEntry `json:"entries"`
}

type memoryEntry struct {
	Network   string `json:"network"`
	Interface string `json:"interface,omitempty"`
	Container string `json:"containerID"`
}

// remembering is where the reconciler puts down what it remembers.
func (a *Agent) remembering(log *slog.Logger) *reconcile.Memory {
	m := &memory{socketDir: a.cfg.SocketDir, stateDir: filepath.Clean(a.cfg.StateDir), log: log}
	return &reconcile.Memory{Load: m.load, Save: m.save, After: []<-chan struct{}{a.observer.Synced(), a.cluster.Synced()}}
}

// load reads what an earlier agent of this boot left.
func (m *memory) load() []reconcile.Remembered {
	if _, err := replace.Leftovers(m.path()); err != nil {
		m.log.Warn("temporary files of an earlier process are not removed", "error", err)
	}
	b, err := m.read()
	var file memoryFile
	if err == nil {
		err = json.Unmarshal(b, &file)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("what an earlier agent knew of network-status cannot be read: entries of sandboxes that went meanwhile stay", "error", err)
		}
		return nil
	}
	// Without the folder of the records, which another mount would be, all would be gone.
	if _, err := os.Stat(filepath.Join(m.stateDir, "attachments")); err != nil || file.StateDir != m.stateDir {
		return nil
	}
	var all []reconcile.Remembered
	for _, p := range file.Pods {
		one := reconcile.Remembered{Pod: planner.PodRef{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
		for _, e := range p.Entries {
			one.Had = append(one.Had, reconcile.Had{Name: report.Name{Network: e.Network, Interface: e.Interface}, Container: e.Container})
		}
		if p.UID != "" {
			all = append(all, one)
		}
	}
	return all
}

func (m *memory) path() string { return filepath.Join(m.socketDir, memoryName) }

func (m *memory) read() ([]byte, error) {
	root, err := os.OpenRoot(m.socketDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return hostfiles.ReadRegular(root, memoryName, maxMemory)
}

// save writes it down for the next agent, if it is not what is there.
func (m *memory) save(all []reconcile.Remembered) {
	file := memoryFile{StateDir: m.stateDir, Pods: make([]memoryPod, 0, len(all))}
	for _, one := range all {
		p := memoryPod{Namespace: one.Pod.Namespace, Name: one.Pod.Name, UID: one.Pod.UID}
		for _, h := range one.Had {
			p.Entries = append(p.Entries, memoryEntry{h.Network, h.Interface, h.Container})
		}
		file.Pods = append(file.Pods, p)
	}
	b, err := json.Marshal(file)
	if err == nil && bytes.Equal(b, m.last) {
		return
	}
	if err == nil {
		err = replace.File(m.path(), socketMode, bytes.NewReader(b))
	}
	switch {
	case err == nil:
		m.last = b
	case !m.failed: // once as long as it lasts
		m.log.Warn("what is known of network-status cannot be kept for the next agent, tried again", "error", err)
	}
	m.failed = err != nil
}
