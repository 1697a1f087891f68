// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/host/kernel"
)

const fakePod = "net1" // what a link is called in a pod

// wantClash wants a ClashError about exactly that.
func wantClash(t *testing.T, err error, want kernel.ClashError) {
	t.Helper()
	clash, ok := errors.AsType[*kernel.ClashError](err)
	if !ok || *clash != want {
		t.Errorf("error is %v, not %v", err, &want)
	}
}

// clashes tries to move a link to where its name is taken, and wants it to be what it was.
func clashes(t *testing.T, b bench, pod kernel.Namespace, want kernel.ClashError, move func(kernel.Namespace, int, kernel.Namespace, string) (kernel.Link, error)) {
	t.Helper()
	l := b.subject(t)
	must(t, b.SetUp(host, l.Index, true))
	before := find(t, b, host, l.Index)
	_, err := move(host, l.Index, pod, fakePod)
	wantClash(t, err, want)
	alike(t, "the link", find(t, b, host, l.Index), before)
	all, err := b.Links(pod)
	must(t, err)
	if slices.ContainsFunc(all, func(o kernel.Link) bool { return o.Name == l.Name || o.MAC.String() == l.MAC.String() && l.MAC != nil }) {
		t.Errorf("it is in the pod: %v", all)
	}
}

func moveRules() []rule {
	return []rule{
		{name: "a moved link is down and has no addresses; MTU, own address, alternative names and index stay", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, pod := b.subject(t), b.namespace(t)
			b.addAltName(t, host, l.Name, "an-alternative-name")
			want := kernel.StateOf(l)
			want.MTU, want.Up, want.AltNames = 1400, true, []string{"an-alternative-name"}
			before, err := b.Restore(host, l.Index, want)
			must(t, err)
			b.addAddr(t, host, l.Name, "10.9.0.1/24")
			b.addAddr(t, host, l.Name, "fd09::1/64")
			moved, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			before.Name, before.Up, before.Addrs = fakePod, false, nil
			alike(t, "moved", moved, before)
			alike(t, "found", find(t, b, pod, l.Index), before)
			if _, err := b.LinkByIndex(host, l.Index); !errors.Is(err, kernel.ErrNoLink) {
				t.Errorf("still there: %v", err)
			}
		}},
		{name: "the index changes when it is taken", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, pod := b.subject(t), b.namespace(t)
			b.other(t, pod, "other", l.Index)
			moved, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			if moved.Index == l.Index || moved.Name != fakePod || moved.MAC.String() != l.MAC.String() {
				t.Errorf("%+v became %+v", l, moved)
			}
		}},
		{name: "an old name that is taken over there is no obstacle", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, pod := b.subject(t), b.namespace(t)
			b.other(t, pod, l.Name, 0)
			moved, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			if moved.Name != fakePod {
				t.Errorf("it is %+v", moved)
			}
		}},
		{name: "move: the new name is taken", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pod := b.namespace(t)
			b.other(t, pod, fakePod, 0)
			clashes(t, b, pod, kernel.ClashError{Name: fakePod}, b.Move)
		}},
		{name: "move: the new name is taken as an alternative one", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pod := b.namespace(t)
			b.other(t, pod, "other", 0)
			b.addAltName(t, pod, "other", fakePod)
			clashes(t, b, pod, kernel.ClashError{Name: fakePod, AltName: true}, b.Move)
		}},
		{name: "move: an alternative name is taken", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pod := b.namespace(t)
			b.other(t, pod, "other", 0)
			l := b.subject(t)
			b.addAltName(t, host, l.Name, "other")
			clashes(t, &same{bench: b, link: l}, pod, kernel.ClashError{Name: "other"}, b.Move)
		}},
		{name: "move: the new name is taken after it was looked for", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pod := b.namespace(t)
			b.other(t, pod, fakePod, 0)
			clashes(t, b, pod, kernel.ClashError{Name: fakePod}, b.moveUnchecked)
		}},
		{name: "move: an alternative name is taken after it was looked for", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pod := b.namespace(t)
			b.other(t, pod, "other", 0)
			l := b.subject(t)
			b.addAltName(t, host, l.Name, "other")
			clashes(t, &same{bench: b, link: l}, pod, kernel.ClashError{Name: "other"}, b.moveUnchecked)
		}},
		{name: "there and back", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, pod := b.subject(t), b.namespace(t)
			moved, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			must(t, b.SetUp(pod, moved.Index, true))
			b.addAddr(t, pod, fakePod, "10.9.0.1/24")
			back, err := b.Move(pod, moved.Index, host, l.Name)
			must(t, err)
			alike(t, "back", back, l)
		}},
		{name: "a link that is not there", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pod := b.namespace(t)
			const none = 4711
			_, move := b.Move(host, none, pod, fakePod)
			_, byIndex := b.LinkByIndex(pod, none)
			_, byName := b.Link(pod, "none")
			_, byPCI := b.LinkOf(pod, "0000:ff:1f.7")
			_, restore := b.Restore(pod, none, kernel.LinkState{Name: fakePod})
			for i, err := range []error{move, byIndex, byName, byPCI, restore, b.SetUp(pod, none, true), b.Rename(pod, none, "x"), b.Remove(pod, none)} {
				if !errors.Is(err, kernel.ErrNoLink) {
					t.Errorf("%d: %v", i, err)
				}
			}
		}},
		{name: "a link has its alternative names, too", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			b.addAltName(t, host, l.Name, "short")
			b.addAltName(t, host, l.Name, "an-alternative-name-is-longer")
			for _, alt := range []string{"short", "an-alternative-name-is-longer"} {
				found, err := b.Link(host, alt)
				if err != nil || found.Index != l.Index {
					t.Errorf("%s: %+v, %v", alt, found, err)
				}
			}
		}},
		{name: "rename, also while it is up", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			must(t, b.SetUp(host, l.Index, true))
			must(t, b.Rename(host, l.Index, "renamed"))
			want := l
			want.Name, want.Up = "renamed", true
			alike(t, "renamed", find(t, b, host, l.Index), want)
			must(t, b.Rename(host, l.Index, l.Name))
		}},
		{name: "rename: the name is taken, by name and by alternative name", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			b.other(t, host, "other", 0)
			b.addAltName(t, host, "other", "an-alt")
			wantClash(t, b.Rename(host, l.Index, "other"), kernel.ClashError{Name: "other"})
			wantClash(t, b.Rename(host, l.Index, "an-alt"), kernel.ClashError{Name: "an-alt", AltName: true})
			alike(t, "the link", find(t, b, host, l.Index), l)
		}},
		{name: "names that no link can have", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, pod := b.subject(t), b.namespace(t)
			for _, name := range []string{"..", "a/b", "a b", "a:b"} {
				if err := b.Rename(host, l.Index, name); !errors.Is(err, syscall.EINVAL) {
					t.Errorf("rename to %q: %v", name, err)
				}
				if _, err := b.Move(host, l.Index, pod, name); !errors.Is(err, syscall.EINVAL) {
					t.Errorf("move as %q: %v", name, err)
				}
			}
			alike(t, "the link", find(t, b, host, l.Index), l)
		}},
		{name: "a link that goes down keeps its IPv4 addresses and loses those of IPv6", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			must(t, b.SetUp(host, l.Index, true))
			b.addAddr(t, host, l.Name, "10.9.0.1/24")
			b.addAddr(t, host, l.Name, "fd09::1/64")
			must(t, b.SetUp(host, l.Index, false))
			if is := find(t, b, host, l.Index); len(is.Addrs) != 1 || is.Addrs[0].String() != "10.9.0.1/24" {
				t.Errorf("it has %v", is.Addrs)
			}
		}},
	}
}

// same is a bench whose subject is one link.
type same struct {
	bench
	link kernel.Link
}

func (s *same) subject(*testing.T) kernel.Link { return s.link }

func restoreRules() []rule {
	return []rule{
		{name: "restore: name, alternative names, own address, MTU, up, no addresses", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			b.addAltName(t, host, l.Name, "to-stay")
			b.addAltName(t, host, l.Name, "to-go")
			b.addAddr(t, host, l.Name, "10.9.0.1/24")
			must(t, b.SetUp(host, l.Index, true))
			b.addAddr(t, host, l.Name, "fd09::1/64")
			want := kernel.LinkState{Name: "restored", AltNames: []string{"to-come", "to-stay"}, MAC: mac("02:12:34:56:78:9a"), MTU: 1400}
			for _, up := range []bool{true, false} {
				want.Up = up
				restored, err := b.Restore(host, l.Index, want)
				must(t, err)
				l.Name, l.AltNames, l.MAC, l.MTU, l.Up = want.Name, want.AltNames, want.MAC, want.MTU, up
				alike(t, "restored", restored, l)
				alike(t, "found", find(t, b, host, l.Index), l)
			}
		}},
		{name: "restore: what is left empty stays", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			restored, err := b.Restore(host, l.Index, kernel.LinkState{})
			must(t, err)
			alike(t, "restored", restored, l)
		}},
		{name: "restore: the name is taken, the rest is done", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			b.other(t, host, "other", 0)
			restored, err := b.Restore(host, l.Index, kernel.LinkState{Name: "other", MTU: 1400, Up: true})
			wantClash(t, err, kernel.ClashError{Name: "other"})
			l.MTU, l.Up = 1400, true
			alike(t, "restored", restored, l)
		}},
		{name: "restore: an alternative name is taken, the rest is done", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			b.other(t, host, "other", 0)
			b.addAltName(t, host, "other", "an-alt")
			restored, err := b.Restore(host, l.Index, kernel.LinkState{AltNames: []string{"an-alt", "free"}, MTU: 1400})
			wantClash(t, err, kernel.ClashError{Name: "an-alt", AltName: true})
			l.MTU, l.AltNames = 1400, []string{"free"}
			alike(t, "restored", restored, l)
		}},
	}
}

func namespaceRules() []rule {
	return []rule{
		{name: "the identity of a namespace", on: links, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			first, second := b.namespace(t), b.namespace(t)
			for _, ns := range []kernel.Namespace{first, second} {
				if id, err := b.NamespaceID(ns.Path); err != nil || id != ns.ID || id == 0 {
					t.Errorf("%+v: %d, %v", ns, id, err)
				}
			}
			if first.ID == second.ID {
				t.Errorf("two have %d", first.ID)
			}
			wrong := kernel.Namespace{Path: first.Path, ID: second.ID}
			if _, err := b.Links(wrong); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("another one at the path: %v", err)
			}
			b.destroy(t, first)
			if _, err := b.NamespaceID(first.Path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("gone: %v", err)
			}
			l := b.subject(t)
			for _, ns := range []kernel.Namespace{first, wrong} {
				if _, err := b.Move(host, l.Index, ns, fakePod); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("move to %+v: %v", ns, err)
				}
			}
			alike(t, "the link", find(t, b, host, l.Index), l)
		}},
		{name: "a virtual link ends with its namespace", on: virtual, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pod := b.namespace(t)
			b.other(t, pod, "other", 0)
			before, err := b.Links(host)
			must(t, err)
			b.destroy(t, pod)
			b.settle(t)
			after, err := b.Links(host)
			must(t, err)
			if len(after) != len(before) {
				t.Errorf("%v became %v", before, after)
			}
		}},
		{name: "a VF comes home from a namespace that ends: down, without addresses, by the name that it had there", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, pod := b.subject(t), b.namespace(t)
			b.addAltName(t, host, l.Name, "an-alternative-name")
			moved, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			must(t, b.SetUp(pod, moved.Index, true))
			b.addAddr(t, pod, fakePod, "10.9.0.1/24")
			b.destroy(t, pod)
			l.Name, l.AltNames = fakePod, []string{"an-alternative-name"}
			alike(t, "home", linkOf(t, b, host, l.PCI), l)
		}},
		{name: "a second VF comes home as devN when its name is taken", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			first, second := b.namespace(t), b.namespace(t)
			addrs := vfAddrs(t, b, b.pf(0))
			for i, ns := range []kernel.Namespace{first, second} {
				_, err := b.Move(host, linkOf(t, b, host, addrs[i]).Index, ns, fakePod)
				must(t, err)
			}
			b.destroy(t, first)
			if l := linkOf(t, b, host, addrs[0]); l.Name != fakePod {
				t.Errorf("the first is %+v", l)
			}
			index := must1(b.LinkOf(second, addrs[1]))(t).Index
			b.destroy(t, second)
			if l := linkOf(t, b, host, addrs[1]); l.Name != devName(index) {
				t.Errorf("the second is %+v, and had the index %d", l, index)
			}
		}},
		{name: "an alternative name that is taken at home is lost", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l, pod := b.subject(t), b.namespace(t)
			moved, err := b.Move(host, l.Index, pod, fakePod)
			must(t, err)
			b.addAltName(t, pod, fakePod, "other")
			b.addAltName(t, pod, fakePod, "free")
			b.other(t, host, "other", 0)
			b.destroy(t, pod)
			home := linkOf(t, b, host, moved.PCI)
			if home.Name != fakePod || !slices.Equal(home.AltNames, []string{"free"}) {
				t.Errorf("it came as %+v", home)
			}
		}},
		{name: "a dummy is made once, and removed", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			pod := b.namespace(t)
			d, err := b.AddDummy(pod, "dummy0")
			must(t, err)
			if d.Name != "dummy0" || d.Kind != "dummy" || d.Up || d.PCI != "" || d.MTU != 1500 {
				t.Errorf("made %+v", d)
			}
			b.addAltName(t, pod, "dummy0", "an-alt")
			for _, name := range []string{"dummy0", "an-alt"} {
				if _, err := b.AddDummy(pod, name); !errors.Is(err, fs.ErrExist) {
					t.Errorf("%s again: %v", name, err)
				}
			}
			must(t, b.Remove(pod, d.Index))
			if _, err := b.Link(pod, "dummy0"); !errors.Is(err, kernel.ErrNoLink) {
				t.Errorf("removed: %v", err)
			}
		}},
		{name: "a link that is no virtual one is not removed", on: vfs, vfs: 2, run: func(on trial) {
			t, b := on.t, on.bench
			l := b.subject(t)
			lo, err := b.Link(host, "lo")
			must(t, err)
			for _, index := range []int{l.Index, lo.Index} {
				if err := b.Remove(host, index); !errors.Is(err, syscall.EOPNOTSUPP) {
					t.Errorf("%d: %v", index, err)
				}
			}
		}},
	}
}
