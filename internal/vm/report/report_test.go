// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
)

// Another writer of the status is given way to for longer and longer; the watch that is behind a
// write is none.
func TestWrites(t *testing.T) {
	own := []vmistatus.Interface{{Name: "default", IP: "10.0.0.5"}}
	other := []vmistatus.Interface{{Name: "default", IP: "10.0.0.6"}}
	object := func(version string, value []vmistatus.Interface) *v1.VirtualMachineInstance {
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
		vmi.Status.Interfaces = value
		return vmi
	}
	now := time.Unix(1000, 0)
	var w writes
	if d := w.wait(object("1", nil), minor, now); d != 0 {
		t.Errorf("the first write waits %s", d)
	}
	w.wrote("1", own, now)
	if d := w.wait(object("1", nil), minor, now); d != retry {
		t.Errorf("a write before the watch tells of the last one waits %s, want %s", d, retry)
	}
	if d := w.wait(object("2", own), minor, now); d != 0 || w.replaced != 0 {
		t.Errorf("a change of the sources waits %s and is taken for another writer (%d)", d, w.replaced)
	}
	var waits []time.Duration
	for i := range 10 {
		version := string(rune('a' + i))
		w.wrote(version, own, now)
		waits = append(waits, w.wait(object(version+"x", other), minor, now))
	}
	want := []time.Duration{0, 0, 5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 320 * time.Second, lastWait}
	if d := cmp.Diff(want, waits); d != "" {
		t.Error("waits against another writer (-want +got):\n", d)
	}
	if d := w.wait(object("z", other), minor, now.Add(3*lastWait)); d != 0 {
		t.Errorf("long after that a write waits %s", d)
	}
}

// A guest that changes something every second has its status written a few times at once, and seldom
// then. A write that the API server refuses is tried again later and later.
func TestWritesArePaced(t *testing.T) {
	now := time.Unix(1000, 0)
	w := newWrites()
	vmi := &v1.VirtualMachineInstance{}
	n := 0
	for i := range 600 {
		now = now.Add(time.Second)
		if w.wait(vmi, minor, now) == 0 {
			vmi.ResourceVersion = strconv.Itoa(i)
			w.tries(minor, now)
			w.wrote(vmi.ResourceVersion, nil, now)
			vmi.ResourceVersion += "x"
			n++
		}
	}
	if n < 15 || n > 25 {
		t.Errorf("%d writes in ten minutes", n)
	}
	if d := w.wait(vmi, minor, now.Add(30*time.Second)); d != 0 {
		t.Errorf("half a minute later the last change waits %s more", d)
	}
	now = now.Add(time.Hour)
	for i := range 6 {
		if d := w.wait(vmi, minor, now); (d == 0) != (i < 5) {
			t.Errorf("after an hour of quiet the write %d waits %s", i, d)
		}
		w.tries(minor, now)
	}
	w = newWrites()
	var waits []time.Duration
	for range 9 {
		w.refused(now)
		waits = append(waits, w.wait(vmi, minor, now))
	}
	want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 320 * time.Second, lastWait, lastWait}
	if d := cmp.Diff(want, waits); d != "" {
		t.Error("waits after refusals (-want +got):\n", d)
	}
	if w.wrote("1", nil, now); w.wait(vmi, minor, now) != 0 {
		t.Error("a write that succeeded leaves a wait")
	}
}

// While something that nobody acts on changes all the time, what others act on is written at once; a guest
// that changes that all the time has no more than a few writes by it.
func TestMajorChangesAreNotStarved(t *testing.T) {
	now := time.Unix(1000, 0)
	w, vmi := newWrites(), &v1.VirtualMachineInstance{}
	try := func(what change) bool {
		if w.wait(vmi, what, now) > 0 {
			return false
		}
		w.tries(what, now)
		return true
	}
	n := 0
	for i := range 600 {
		now = now.Add(time.Second)
		try(minor)
		if i%120 == 119 && !try(major) {
			t.Errorf("after %d s a change that others act on waits", i)
		}
	}
	now = now.Add(time.Hour)
	for range 600 {
		now = now.Add(time.Second)
		if try(major) {
			n++
		}
	}
	if n < 40 || n > 50 {
		t.Errorf("%d writes in ten minutes", n)
	}
}

func TestChangeOf(t *testing.T) {
	before := func() []vmistatus.Interface {
		return []vmistatus.Interface{
			{Name: "default", IP: "10.0.0.5", IPs: []string{"10.0.0.5", "10.0.0.6"}, LinkState: "up", InterfaceName: "eth0"},
			{Name: "red", LinkState: "up"},
			{InterfaceName: "br0", IP: "172.17.0.1", IPs: []string{"172.17.0.1"}},
		}
	}
	for name, c := range map[string]struct {
		change func(s []vmistatus.Interface) []vmistatus.Interface
		want   change
	}{
		"nothing":             {func(s []vmistatus.Interface) []vmistatus.Interface { return s }, unchanged},
		"the first address":   {func(s []vmistatus.Interface) []vmistatus.Interface { s[0].IP = "10.0.0.6"; return s }, major},
		"another address":     {func(s []vmistatus.Interface) []vmistatus.Interface { s[0].IPs[1] = "10.0.0.7"; return s }, minor},
		"a name in the guest": {func(s []vmistatus.Interface) []vmistatus.Interface { s[0].InterfaceName = "eth9"; return s }, minor},
		"a link":              {func(s []vmistatus.Interface) []vmistatus.Interface { s[1].LinkState = "down"; return s }, major},
		"an interface less":   {func(s []vmistatus.Interface) []vmistatus.Interface { return append(s[:1], s[2]) }, major},
		"an interface more": {func(s []vmistatus.Interface) []vmistatus.Interface {
			return append(s, vmistatus.Interface{Name: "blue"})
		}, major},
		"one of the guest alone":  {func(s []vmistatus.Interface) []vmistatus.Interface { s[2].IP = "172.17.0.2"; return s }, minor},
		"none of the guest alone": {func(s []vmistatus.Interface) []vmistatus.Interface { return s[:2] }, minor},
		"another one of the guest": {func(s []vmistatus.Interface) []vmistatus.Interface {
			return append(s, vmistatus.Interface{InterfaceName: "br1"})
		}, minor},
	} {
		if got := changeOf(before(), c.change(before())); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// Case 21 of section 6: while a machine migrates its agent is believed though it fails, and not where its
// channel is closed or libvirt is away.
func TestMigrating(t *testing.T) {
	fault := errors.New("it rests")
	failing := source.Snapshot{Domain: &vmistatus.Domain{Agent: vmistatus.AgentDisconnected, GuestErr: fault}}
	closed := source.Snapshot{Domain: &vmistatus.Domain{Agent: vmistatus.AgentDisconnected}}
	away := source.Snapshot{Err: fault, Domain: failing.Domain}
	dropped := failing
	dropped.Dropped = time.Unix(1000, 0)
	begun := func(seconds int64) *v1.VirtualMachineInstanceMigrationState {
		return &v1.VirtualMachineInstanceMigrationState{StartTimestamp: new(metav1.Unix(seconds, 0))}
	}
	for name, c := range map[string]struct {
		state    *v1.VirtualMachineInstanceMigrationState
		s        source.Snapshot
		believed bool
	}{
		"migrating":                  {&v1.VirtualMachineInstanceMigrationState{}, failing, true},
		"it never migrated":          {nil, failing, false},
		"it has migrated":            {&v1.VirtualMachineInstanceMigrationState{Completed: true}, failing, false},
		"the migration failed":       {&v1.VirtualMachineInstanceMigrationState{Failed: true}, failing, false},
		"its agent has gone":         {&v1.VirtualMachineInstanceMigrationState{}, closed, false},
		"libvirt is away":            {&v1.VirtualMachineInstanceMigrationState{}, away, false},
		"it fails since it migrates": {begun(999), dropped, true},
		"it has failed before":       {begun(1001), dropped, false},
		"nothing is known of it so":  {&v1.VirtualMachineInstanceMigrationState{}, source.Snapshot{}, false},
	} {
		whole := &v1.VirtualMachineInstance{}
		whole.Status.MigrationState = c.state
		obj, err := trim(whole)
		if err != nil {
			t.Fatal(err)
		}
		s := asMigrating(obj.(*v1.VirtualMachineInstance), c.s)
		if got := s.Domain != nil && s.Domain.Agent == vmistatus.AgentSilent; got != c.believed {
			t.Errorf("%s: believed: %t", name, got)
		}
	}
	if failing.Domain.Agent != vmistatus.AgentDisconnected {
		t.Error("what the watcher knows was changed")
	}
}

// What this version of KubeVirt's types does not know stays where it stands.
func TestWithUnknown(t *testing.T) {
	want := []vmistatus.Interface{{Name: "default", IP: "10.0.0.5", IPs: []string{"10.0.0.5"}}, {Name: "red", MAC: "02:00:00:00:00:02"}, {MAC: "02:00:00:00:00:03", InterfaceName: "br0"}}
	const before = `[{"name":"red","mac":"x","newer":{"a":[1]},"queueCount":0},{"mac":"02:00:00:00:00:03","interfaceName":"br0","newer":2},{"name":"gone","newer":3}]`
	got, err := withUnknown(want, json.RawMessage(before))
	if err != nil {
		t.Fatal(err)
	}
	const after = `[{"ipAddress":"10.0.0.5","ipAddresses":["10.0.0.5"],"name":"default"},{"mac":"02:00:00:00:00:02","name":"red","newer":{"a":[1]}},{"interfaceName":"br0","mac":"02:00:00:00:00:03","newer":2}]`
	if d := cmp.Diff(after, string(got)); d != "" {
		t.Error("(-want +got):\n", d)
	}
	for _, none := range []string{"", "null", "[]"} {
		if got, err := withUnknown(nil, json.RawMessage(none)); err != nil || string(got) != "[]" {
			t.Errorf("%q gives %s, %v", none, got, err)
		}
	}
}

func TestFromPod(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
	multus := func(name, nad string) v1.Network {
		return v1.Network{Name: name, NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: nad}}}
	}
	one := func(ip string) vmistatus.PodRead { return vmistatus.PodRead{PodIP: ip, PodIPs: []string{ip}} }
	const (
		red, green, blue = `{"name":"ns/shared","interface":"podb1f51a511f1","ips":["192.0.2.1"]}`,
			`{"name":"ns/shared","interface":"podba4788b226a","ips":["192.0.2.2"]}`, `{"name":"ns/shared","interface":"pod16477688c0e","ips":["192.0.2.3"]}`
		net1, net2 = `{"name":"ns/shared","interface":"net1","ips":["192.0.2.1"]}`, `{"name":"ns/shared","interface":"net2","ips":["192.0.2.2"]}`
	)
	shared := []v1.Network{multus("red", "shared"), multus("green", "shared"), multus("blue", "ns/shared")}
	cached := vmistatus.PodRead{PodIP: "198.51.100.1"}
	for name, c := range map[string]struct {
		networks []v1.Network
		status   string
		want     map[string]vmistatus.PodRead // besides what is cached
	}{
		"each of its own": {
			[]v1.Network{multus("red", "shared"), multus("blue", "shared"), multus("green", "ns/one"), *v1.DefaultPodNetwork(), multus("cached", "one2")},
			`[{"name":"kindnet","ips":["10.244.0.9","fd00::9"],"default":true},` + red + `,` + net2 +
				`,{"name":"ns/one","interface":"net3","ips":["192.0.2.3"]},{"name":"ns/one2","ips":["192.0.2.4"]}]`,
			map[string]vmistatus.PodRead{
				"default": {PodIP: "10.244.0.9", PodIPs: []string{"10.244.0.9", "fd00::9"}},
				"red":     one("192.0.2.1"), "blue": one("192.0.2.2"), "green": one("192.0.2.3"),
			},
		},
		"three hashed ones of one definition": {
			shared, "[" + blue + "," + red + "," + green + "]",
			map[string]vmistatus.PodRead{"red": one("192.0.2.1"), "green": one("192.0.2.2"), "blue": one("192.0.2.3")},
		},
		"only one of them is attached": {shared, "[" + red + "]", map[string]vmistatus.PodRead{"red": one("192.0.2.1")}},
		"ordinal ones": {
			shared, "[" + net2 + "," + net1 + "]", map[string]vmistatus.PodRead{"red": one("192.0.2.1"), "green": one("192.0.2.2")},
		},
		"nothing":               {shared, "", nil},
		"torn":                  {shared, "[{", nil},
		"null":                  {shared, "null", nil},
		"an object":             {shared, "{}", nil},
		"null in it":            {shared, "[null]", nil},
		"without addresses":     {shared, `[{"name":"ns/shared","interface":"net1","ips":[]}]`, nil},
		"nothing but addresses": {[]v1.Network{multus("red", "one")}, `[{"ips":["192.0.2.1"]}]`, nil},
	} {
		vmi.Spec.Networks = c.networks
		in := vmistatus.Input{Networks: c.networks, PodCache: map[string]vmistatus.PodRead{"cached": cached}}
		addFromPod(in, vmi, c.status)
		delete(in.PodCache, "cached")
		if d := cmp.Diff(c.want, in.PodCache, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: addresses (-want +got):\n%s", name, d)
		}
	}
}

// Of a machine's pods the one of this node that runs is the launcher.
func TestLauncher(t *testing.T) {
	r := &Reporter{cfg: Config{Node: "here", Pods: func(uid string) (Pod, bool) {
		all := map[string]Pod{"old": {UID: "old", Ended: true}, "going": {UID: "going", Ending: true}, "new": {UID: "new"}, "away": {UID: "away"}, "other": {Namespace: "theirs", UID: "other"}}
		p, ok := all[uid]
		return p, ok
	}}}
	for name, c := range map[string]struct {
		pods map[types.UID]string
		want string
	}{
		"none":                 {nil, ""},
		"elsewhere":            {map[types.UID]string{"away": "there"}, ""},
		"not known yet":        {map[types.UID]string{"unknown": "here"}, ""},
		"one":                  {map[types.UID]string{"new": "here", "away": "there"}, "new"},
		"to and fro":           {map[types.UID]string{"old": "here", "new": "here", "away": "there"}, "new"},
		"one is being deleted": {map[types.UID]string{"going": "here", "new": "here"}, "new"},
		"another namespace's":  {map[types.UID]string{"other": "here"}, ""},
		"the last one goes":    {map[types.UID]string{"going": "here"}, "going"},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Status.ActivePods = c.pods
		if got, _ := r.launcher(vmi); got.UID != c.want {
			t.Errorf("%s: the launcher is %q, want %q", name, got.UID, c.want)
		}
	}
}
