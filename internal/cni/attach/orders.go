// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/brief"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/internal/host/proc"
)

// applyCommand is the argument with which the agent runs weft-cni.
const applyCommand = "apply"

// obey carries out one order of the agent (architecture 4.4). It is one more verb of the
// hands: the same locks, lanes, record and undoing as the runtime's calls.
func obey(ctx context.Context, p Process, _ string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(p.Stdin, apply.MaxOrder+1))
	if err != nil {
		return nil, fault.New(fault.Environment, "stdin", "", "read order: %v", err)
	}
	if len(b) > apply.MaxOrder {
		return nil, fault.New(fault.Config, "order", "", "longer than %d bytes", apply.MaxOrder)
	}
	o, err := apply.Parse(b)
	if err != nil {
		return nil, fault.New(fault.Environment, "stdin", "", "%w", err)
	}
	h := newHands(p, request{command: applyCommand, stdin: o.Conf})
	defer h.close()
	answer, err := h.obey(ctx, o)
	if err != nil {
		h.log.error(err.Error())
		return nil, err
	}
	answer.Version = apply.Version
	return json.Marshal(answer)
}

func (h *hands) obey(ctx context.Context, o apply.Order) (apply.Answer, error) {
	if err := h.configure(); err != nil {
		return apply.Answer{}, err
	}
	timeout := delTimeout
	if o.Task == apply.Plug {
		timeout = h.conf.Timeout
	}
	ctx = brief.WithTimeout(ctx, timeout)
	if err := h.open(); err != nil {
		return apply.Answer{}, err
	}
	rec, err := h.takeIdle(ctx, o.Key, h.patience(o.Key))
	switch {
	case errors.Is(err, journal.ErrBusy):
		return apply.Answer{Outcome: apply.Busy}, nil
	case err != nil:
		return apply.Answer{}, err
	case rec == nil:
		return apply.Answer{Outcome: apply.Gone}, nil
	}
	defer rec.Close() //nolint:errcheck // an empty record is removed, another one is left
	intents := rec.State().Intents
	if len(intents) == 0 {
		return apply.Answer{Outcome: apply.Gone}, nil
	}
	if !intents[0].Time.Equal(o.Begun) {
		return apply.Answer{Outcome: apply.Gone, Reason: "the record is of another sandbox by now"}, nil
	}
	s, err := decode(rec, h.boot)
	if err != nil {
		return apply.Answer{}, err
	}
	h.req.sandbox = s.Body.Sandbox
	if o.Task == apply.Plug {
		return h.plug(ctx, rec, s)
	}
	return h.undoOrphan(ctx, rec, s, o)
}

// undoOrphan undoes a record whose sandbox is gone without a DEL.
func (h *hands) undoOrphan(ctx context.Context, rec *journal.Record, s *record.Sandbox, o apply.Order) (apply.Answer, error) {
	if outcome, reason := h.orphaned(s); outcome != apply.Done {
		return apply.Answer{Outcome: outcome, Reason: reason}, nil
	}
	if _, err := h.undo(ctx, rec, false); err != nil {
		return apply.Answer{}, fmt.Errorf("sandbox %s: %w", o.Key, err)
	}
	h.note(h.sweep.Done(o.Key))
	if err := forgetResult(o.ResultsDir, s); err != nil {
		h.log.warn(err.Error()) // a file of a container that is gone harms nobody
	}
	return apply.Answer{Outcome: apply.Done}, nil
}

// orphaned says whether a sandbox is known to be gone (Done): by the boot, else by its
// network namespace. Both are judged only in the namespaces in which a runtime of this boot
// has run Weft: from a container, or without mount propagation, a namespace that lives
// looks like one that is gone, and DEL would find other address pools than ADD did.
func (h *hands) orphaned(s *record.Sandbox) (apply.Outcome, string) {
	here := hostID()
	if here == "" || h.boot == "" {
		return apply.Unsure, "the kernel does not say which namespaces or which boot these are"
	}
	const outside = "this is not known to be the host as the runtime sees it"
	if s.Boot != h.boot && s.Boot != unknownBoot {
		if !h.witnessed(here) {
			return apply.Unsure, outside
		}
		return apply.Done, ""
	}
	sb := s.Body.Sandbox
	switch {
	case s.Body.Host != here:
		return apply.Unsure, outside
	case sb.Netns == "" || s.Body.NetnsID == "":
		return apply.Unsure, "the record does not say which network namespace it was"
	}
	_, err := os.Stat(sb.Netns)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return apply.Done, ""
	case err != nil:
		return apply.Unsure, err.Error()
	case !netnsAt(sb.Netns).is(&s.Body):
		return apply.Done, "" // another one has taken its name
	}
	return apply.Kept, "network namespace " + fault.Quote(sb.Netns) + " is there"
}

// witnessed says whether a runtime of this boot has run Weft in these namespaces.
func (h *hands) witnessed(here string) bool {
	keys, err := h.store.Keys()
	if err != nil {
		return false
	}
	for _, key := range keys {
		st, err := h.store.Read(key)
		if err != nil || len(st.Intents) == 0 {
			continue
		}
		s, err := record.Decode(st, h.boot)
		if err == nil && s.Boot == h.boot && s.Body.Host == here {
			return true
		}
	}
	return false
}

// hostID identifies the namespaces that this call is in, "" when the kernel does not say.
func hostID() string {
	id, err := proc.Namespaces("thread-self")
	if err != nil {
		return ""
	}
	return id
}

// forgetResult removes what the runtime's CNI library has cached of a sandbox, which it does
// itself when it says DEL.
func forgetResult(dir string, s *record.Sandbox) error {
	name := s.Body.ConfName + "-" + s.Body.Sandbox.ContainerID + "-" + s.Body.Sandbox.IfName
	if dir == "" || strings.ContainsRune(name, '/') {
		return nil
	}
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cached result of an orphan: %w", err)
	}
	return nil
}

// yields says whether a holder of a lock is weft-cni at work in the background and this call
// is the runtime's DEL: a pod that ends wins. Its record undoes it, wherever it was ended.
func (h *hands) yields(p journal.Holder) bool {
	if h.req.command != "DEL" {
		return false
	}
	b, err := brief.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
	return err == nil && strings.HasSuffix(string(b), "\x00"+applyCommand+"\x00")
}
