// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scratch reads what Multus left on a node about the attachments that it made, so
// that DEL and GC can take them over: <cniDir>/<containerID>, a JSON array with a conf an
// attachment, and libcni's <cniDir>/results/<conf name>-<containerID>-<ifName>, which has
// what each was called with and answered.
//
// Invariants: any bytes in these files give attachments or an error, never a panic; nothing
// outside cniDir is read or removed, whatever a file holds or links to; one broken entry, or
// a torn result, does not hide the others. Weft never writes these files.
//
// It knows nothing of Weft's own records, and runs nothing.
//
// Implements: spec/cni.md 1.16 and 1.9 (interface names), architecture 4.3 (take-over on
// DEL). The result file's form is libcni's cniCacheV1.
package scratch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/selection"
)

// Entry is one element of a scratch file: one attachment, in the order of making.
type Entry struct {
	Index        int    // place in the file, from 0, which is the pod network
	Name         string // as in network-status: namespace/name of the NAD, or the conf's name
	IfName       string // interface name that was asked for, "" for none
	MAC          string
	GUID         string // InfiniBand
	IPs          []string
	Gateways     []netip.Addr
	DeviceID     string
	ResourceName string
	Conf         []byte // conf or conflist, byte for byte
}

// element is an Entry as Multus writes it. Its Conf and ConfList are parsed forms of
// Bytes that lost what Multus does not know.
type element struct {
	Name         string       `json:"Name"`
	IfName       string       `json:"ifnameRequest"`
	MAC          string       `json:"macRequest"`
	GUID         string       `json:"infinibandGUIDRequest"`
	IPs          []string     `json:"ipRequest"`
	Gateways     []netip.Addr `json:"default-route"`
	DeviceID     string       `json:"deviceID"`
	ResourceName string       `json:"resourceName"`
	Bytes        []byte       `json:"Bytes"` // in JSON: base64
}

// Parse reads a scratch file. "[]" and "null" hold nothing. Elements that cannot be used
// are named in the error; the entries that come with it are the others.
func Parse(data []byte) ([]Entry, error) {
	var raws []json.RawMessage
	if err := json.Unmarshal(data, &raws); err != nil {
		return nil, fmt.Errorf("read scratch file: %w", err)
	}
	var entries []Entry
	var errs []error
	for i, raw := range raws {
		var e element
		err := json.Unmarshal(raw, &e)
		if err == nil && len(e.Bytes) == 0 {
			err = errors.New("it holds no conf")
		}
		if err == nil && e.IfName != "" {
			err = selection.InterfaceName(e.IfName)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read scratch file: element %d: %w", i, err))
			continue
		}
		e.Gateways = slices.DeleteFunc(e.Gateways, func(a netip.Addr) bool { return !a.IsValid() }) // "" is read as none
		entries = append(entries, Entry{
			Index: i, Name: e.Name, IfName: e.IfName, MAC: e.MAC, GUID: e.GUID, IPs: e.IPs,
			Gateways: e.Gateways, DeviceID: e.DeviceID, ResourceName: e.ResourceName, Conf: e.Bytes,
		})
	}
	return entries, errors.Join(errs...)
}

// ifName is the interface of an attachment: the one asked for, else the pod network's, else
// one that counts all attachments.
func (e *Entry) ifName(podNetwork string) string {
	switch {
	case e.IfName != "":
		return e.IfName
	case e.Index == 0:
		return podNetwork
	}
	return "net" + strconv.Itoa(e.Index)
}

// attachment makes a plan's attachment of an entry alone, without what it was called with.
func (e *Entry) attachment(podNetwork string) (Attachment, error) {
	object := fmt.Sprintf("scratch file element %d", e.Index)
	network, err := netconf.ParseNetwork(e.Conf, object)
	if err != nil {
		return Attachment{}, err
	}
	// A conf without a name has that of its NAD; the other way round too.
	if name := path.Base(e.Name); network.Name == "" && netconf.NetworkName(name) == nil {
		network.Name = name
	}
	return Attachment{Attachment: plan.Attachment{
		Network: cmp.Or(e.Name, network.Name), IfName: e.ifName(podNetwork), Default: e.Index == 0, Conf: network,
		RuntimeConfig: e.runtimeConfig(), Gateways: e.Gateways,
		DeviceID: e.DeviceID, ResourceName: e.ResourceName,
	}}, nil
}

// runtimeConfig has the capability arguments that an entry remembers; port mappings and
// bandwidth are not among them.
func (e *Entry) runtimeConfig() map[string]json.RawMessage {
	args := map[string]json.RawMessage{}
	text := func(capability, value string) {
		if value != "" {
			args[capability] = encode(value)
		}
	}
	text("mac", e.MAC)
	text("infinibandGUID", e.GUID)
	text("deviceID", e.DeviceID)
	if len(e.IPs) > 0 {
		args["ips"] = encode(e.IPs)
	}
	if len(args) == 0 {
		return nil
	}
	return args
}

// encode is for strings and lists of them, which always have a JSON form.
func encode[T string | []string](v T) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return bytes.TrimSpace(b.Bytes())
}
