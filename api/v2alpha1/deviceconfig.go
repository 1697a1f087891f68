// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// DeviceConfig is what a claim asks of a device: the opaque parameters of a ResourceClaim or
// DeviceClass, merged. As JSON it is the Config of the claim's status entry.
type DeviceConfig struct {
	// PodIfName is the link's name in the pod; "" keeps the name that it has on the host.
	PodIfName string `json:"podIfName,omitempty"`
	// VLAN is the VLAN that the PF puts the VF in, 1 to 4094; 0 leaves it alone.
	VLAN int32 `json:"vlan,omitempty"`
}

// MaxVLAN is the largest VLAN that a frame can be in.
const MaxVLAN = 4094

// PodIfNamePrefix is what no podIfName begins with: the cluster network's own links do.
const PodIfNamePrefix = "cilium_"

// ParameterError is what is wrong with one key of opaque parameters.
//
// +kubebuilder:object:generate=false
type ParameterError struct {
	Key  string // "" = the parameters as such
	Text string
}

func (e *ParameterError) Error() string {
	if e.Key == "" {
		return "parameters: " + e.Text
	}
	return e.Key + ": " + e.Text
}

// EntryError is what is wrong with one entry of those that Merge was given.
//
// +kubebuilder:object:generate=false
type EntryError struct {
	Entry int // its index
	Err   error
}

func (e *EntryError) Error() string {
	return fmt.Sprintf("entry %d: %s", e.Entry, strings.ReplaceAll(e.Err.Error(), "\n", "; "))
}

// Unwrap gives what is wrong.
func (e *EntryError) Unwrap() error { return e.Err }

// ParseParameters reads the opaque parameters of one entry for this driver: a JSON object with the
// keys podIfName and vlan, in exactly these letters, each at most once; apiVersion and kind may be
// there and must then be this group's and DeviceConfig. Nothing else is: a key that is misspelt
// would otherwise leave a pod without what it asked for. The error joins a *ParameterError for
// each fault, of which it names MaxFaults.
func ParseParameters(raw []byte) (DeviceConfig, error) { return Merge([][]byte{raw}) }

// Merge reads the parameters of several entries, in their order: those of the DeviceClass first,
// those of the claim after. It goes by keys: what a later entry says of a key counts, also
// "vlan": 0 and "podIfName": "", which take back what an earlier one has asked for; a key that it
// does not have stays as it was. Every entry has to be right, also where a later one counts. With
// more than one entry each error that is joined is an *EntryError.
func Merge(entries [][]byte) (DeviceConfig, error) {
	var c DeviceConfig
	var faults []error
	for i, raw := range entries {
		p, err := ReadParameters(raw)
		if err != nil && len(entries) > 1 {
			err = &EntryError{Entry: i, Err: err}
		}
		faults = append(faults, err)
		p.Over(&c)
	}
	if err := errors.Join(faults...); err != nil {
		return DeviceConfig{}, err
	}
	return c, nil
}

// Parameters is what one entry says; nil: it does not have the key.
//
// +kubebuilder:object:generate=false
type Parameters struct {
	podIfName *string
	vlan      *int32
}

// MaxFaults is how many faults of one entry are named: what a user writes is to cost no more to
// refuse than to take.
const MaxFaults = 8

// ReadParameters reads one entry as ParseParameters does, to be merged by Over: an entry for many
// devices need be read but once.
func ReadParameters(raw []byte) (Parameters, error) {
	var p Parameters
	all, err := members(raw)
	if err != nil {
		return p, err
	}
	var faults []error
	seen := make(map[string]bool, min(len(all), 2*MaxFaults))
	for _, m := range all {
		err := p.set(m)
		if seen[m.key] {
			err = &ParameterError{Key: shown(m.key), Text: "stands there twice"}
		}
		seen[m.key] = true
		if err == nil {
			continue
		}
		if len(faults) == MaxFaults {
			faults = append(faults, &ParameterError{Text: "have more faults than are named here"})
			break
		}
		faults = append(faults, err)
	}
	return p, errors.Join(faults...)
}

// Over puts what the entry says over what earlier ones have said.
func (p Parameters) Over(c *DeviceConfig) {
	if p.podIfName != nil {
		c.PodIfName = *p.podIfName
	}
	if p.vlan != nil {
		c.VLAN = *p.vlan
	}
}

// ParseStored reads the Config of a claim's status entry, whoever wrote it and whenever: keys that
// are not known and other cases of letters are passed over, nothing and null are an empty
// DeviceConfig, and values are not judged: what was done has to be undone.
func ParseStored(raw []byte) (DeviceConfig, error) {
	var c DeviceConfig
	if len(bytes.TrimSpace(raw)) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return DeviceConfig{}, fmt.Errorf("read stored device configuration: %w", err)
	}
	return c, nil
}

// Validate finds every fault of a configuration: the errors are those of ParseParameters.
func (c DeviceConfig) Validate() error {
	var faults []error
	if reason := podIfNameFault(c.PodIfName); reason != "" {
		faults = append(faults, &ParameterError{Key: "podIfName", Text: fmt.Sprintf("%q %s", c.PodIfName, reason)})
	}
	if c.VLAN < 0 || c.VLAN > MaxVLAN {
		faults = append(faults, vlanFault(strconv.Itoa(int(c.VLAN))))
	}
	return errors.Join(faults...)
}

// member is one key of an object and its value.
type member struct {
	key string
	raw json.RawMessage
}

// members reads an object's keys in their order; every one of them, since a decoder would keep the
// last of two.
func members(raw []byte) ([]member, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, &ParameterError{Text: "are empty, must be an object such as {}"}
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	open, err := d.Token()
	if err != nil {
		return nil, broken(err)
	}
	if open != json.Delim('{') {
		return nil, &ParameterError{Text: "are no object"}
	}
	var all []member
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, broken(err)
		}
		m := member{key: fmt.Sprint(key)} // the decoder takes none but strings here
		if err := d.Decode(&m.raw); err != nil {
			return nil, broken(err)
		}
		all = append(all, m)
	}
	if _, err := d.Token(); err != nil {
		return nil, broken(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, &ParameterError{Text: "have more than one value"}
	}
	return all, nil
}

func broken(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &ParameterError{Text: fmt.Sprintf("are no JSON: %v", err)}
}

func (p *Parameters) set(m member) error {
	switch m.key {
	case "podIfName":
		return p.setPodIfName(m)
	case "vlan":
		return p.setVLAN(m)
	case "apiVersion":
		return constant(m, Group+"/"+Version)
	case "kind":
		return constant(m, "DeviceConfig")
	}
	text := "is no parameter of this driver, which has podIfName and vlan"
	for _, known := range []string{"podIfName", "vlan", "apiVersion", "kind"} {
		if strings.EqualFold(known, m.key) {
			text = "is written " + known
		}
	}
	return &ParameterError{Key: shown(m.key), Text: text}
}

func (p *Parameters) setPodIfName(m member) error {
	name, err := text(m)
	if err != nil {
		return err
	}
	if reason := podIfNameFault(name); reason != "" {
		return &ParameterError{Key: m.key, Text: fmt.Sprintf("%q %s", name, reason)}
	}
	p.podIfName = &name
	return nil
}

// podIfNameFault says why a link cannot have a name in a pod, "" when it can.
func podIfNameFault(name string) string {
	switch {
	case name == "":
		return ""
	case len(name) > maxIfName:
		return fmt.Sprintf("has %d bytes, the name of an interface at most %d", len(name), maxIfName)
	case name == "." || name == "..":
		return "cannot be the name of an interface"
	case name == "lo" || name == "eth0":
		return "is the name of an interface that every pod has"
	case strings.HasPrefix(name, PodIfNamePrefix):
		return "begins with " + PodIfNamePrefix + ", as the cluster network's own interfaces do"
	}
	for _, r := range name {
		if !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", r) {
			return "must be of letters, digits, dots, underscores and hyphens"
		}
	}
	return ""
}

func (p *Parameters) setVLAN(m member) error {
	value := string(m.raw)
	n, err := strconv.ParseInt(value, 10, 32)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && (n < 0 || n > MaxVLAN):
		return vlanFault(value)
	case err != nil:
		return &ParameterError{Key: m.key, Text: shown(value) + " is no whole number"}
	}
	p.vlan = new(int32(n))
	return nil
}

func vlanFault(value string) error {
	return &ParameterError{Key: "vlan", Text: fmt.Sprintf("%s is no VLAN, which is 1 to %d, or 0 to leave it alone", shown(value), MaxVLAN)}
}

func constant(m member, want string) error {
	value, err := text(m)
	if err == nil && value != want {
		return &ParameterError{Key: m.key, Text: fmt.Sprintf("%q is not %q, which this driver's parameters are", shown(value), want)}
	}
	return err
}

func text(m member) (string, error) {
	var s *string
	if err := json.Unmarshal(m.raw, &s); err != nil || s == nil {
		return "", &ParameterError{Key: m.key, Text: shown(string(m.raw)) + " is no string"}
	}
	return *s, nil
}

// shown keeps messages readable, whatever a claim says.
func shown(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
