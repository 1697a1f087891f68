// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	libvirt "github.com/digitalocean/go-libvirt"

	"github.com/weftnet/weft/vmistatus"
)

// Conn is a connection to libvirt. It asks one thing at a time.
type Conn struct {
	guard   *guard
	uri     string
	session *session
	lib     *libvirt.Libvirt // nil while it rests
}

// Dial makes a connection to whom a URI of libvirt's names ("qemu:///system"), over conn, which
// it owns from then on. Event is called, from any goroutine, when something may have changed; nil:
// nobody wants to know.
func Dial(ctx context.Context, conn net.Conn, uri string, event func()) (*Conn, error) {
	g := newGuard(conn, func() {
		if event != nil {
			event()
		}
	})
	go g.pump()
	c := &Conn{guard: g, uri: uri}
	err := c.ask(ctx, "connect to "+uri, func() error { return nil })
	if err == nil && event != nil {
		err = c.subscribe(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// dialer gives a connection that is made already.
type dialer struct{ conn net.Conn }

// Dial implements the library's interface.
func (d dialer) Dial() (net.Conn, error) { return d.conn, nil }

// Events that say that it is time to look. NIC MAC changes are of later versions of libvirt.
const nicMACChange = 27

func (c *Conn) subscribe(ctx context.Context) error {
	for _, id := range []libvirt.DomainEventID{
		libvirt.DomainEventIDLifecycle, libvirt.DomainEventIDAgentLifecycle,
		libvirt.DomainEventIDDeviceAdded, libvirt.DomainEventIDDeviceRemoved, nicMACChange,
	} {
		err := c.ask(ctx, "subscribe to events", func() error {
			_, err := c.lib.ConnectDomainEventCallbackRegisterAny(int32(id), nil)
			return err
		})
		if err != nil && id != nicMACChange {
			return err
		}
	}
	return nil
}

// ask runs one call. At the end of ctx the connection is given up, since nothing else ends a call.
func (c *Conn) ask(ctx context.Context, what string, call func() error) error {
	stop := context.AfterFunc(ctx, func() { c.guard.end(context.Cause(ctx)) })
	defer stop()
	err := c.attach()
	if err == nil {
		err = call()
	}
	if err == nil {
		return nil
	}
	if why := c.guard.fault(); why != nil {
		err = why // which the library does not know
	}
	return fmt.Errorf("%s: %w", what, err)
}

// attach gives the connection to the library, unless it has it.
func (c *Conn) attach() error {
	if c.lib != nil {
		return nil
	}
	c.session = c.guard.session()
	c.lib = libvirt.NewWithDialer(dialer{c.session})
	defer close(c.session.attached)
	return c.lib.ConnectToURI(libvirt.ConnectURI(c.uri))
}

// Rest gives up what is needed to ask, until it is asked again; events are told meanwhile.
func (c *Conn) Rest() {
	if c.lib != nil {
		_ = c.session.Close() // it always succeeds
		c.session, c.lib = nil, nil
	}
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.guard.done }

// Close ends the connection. It tells libvirt nothing: there is nobody who would wait for its answer.
func (c *Conn) Close() error {
	c.guard.end(net.ErrClosed)
	return nil
}

// Domain names a running machine.
type Domain = libvirt.Domain

// maxDomains is more than a node runs; a launcher's libvirt has one.
const maxDomains = 1 << 10

// Domains are the running machines.
func (c *Conn) Domains(ctx context.Context) ([]Domain, error) {
	var all []Domain
	err := c.ask(ctx, "list domains", func() (err error) {
		all, _, err = c.lib.ConnectListAllDomains(1, libvirt.ConnectListDomainsActive)
		return err
	})
	if err == nil && len(all) > maxDomains {
		err = fmt.Errorf("list domains: there are %d, more than %d", len(all), maxDomains)
	}
	return all, err
}

// State of a machine.
type State uint8

// States of a machine, as far as they matter here.
const (
	Unknown State = iota
	Running
	Paused // or suspended: its agent does not answer
	Off
)

// String is the state as a word.
func (s State) String() string {
	switch s {
	case Running:
		return "running"
	case Paused:
		return "paused"
	case Off:
		return "off"
	default:
		return "unknown"
	}
}

// State says whether a machine runs.
func (c *Conn) State(ctx context.Context, d Domain) (State, error) {
	var state int32
	err := c.ask(ctx, "ask for the state of "+d.Name, func() (err error) {
		state, _, err = c.lib.DomainGetState(d, 0)
		return err
	})
	switch libvirt.DomainState(state) {
	case libvirt.DomainRunning, libvirt.DomainBlocked:
		return Running, err
	case libvirt.DomainPaused, libvirt.DomainPmsuspended:
		return Paused, err
	case libvirt.DomainShutdown, libvirt.DomainShutoff, libvirt.DomainCrashed:
		return Off, err
	default:
		return Unknown, err
	}
}

// XML is the definition of a running machine.
func (c *Conn) XML(ctx context.Context, d Domain) ([]byte, error) {
	var text string
	err := c.ask(ctx, "read the XML of "+d.Name, func() (err error) {
		text, err = c.lib.DomainGetXMLDesc(d, 0)
		return err
	})
	return []byte(text), err
}

// guestCommand asks the guest's agent itself.
const guestCommand = `{"execute":"guest-network-get-interfaces"}`

// Guest asks the guest's agent for its interfaces. Libvirt has one call for exactly this, which
// works with every agent that knows interfaces at all. Where libvirt does not know it (before
// 1.2.14), or refuses the whole answer because of a part of it, the agent is asked itself, which
// libvirt notes in its log as a custom command.
func (c *Conn) Guest(ctx context.Context, d Domain) ([]vmistatus.GuestInterface, error) {
	const agent = 1 // the source
	var all []libvirt.DomainInterface
	err := c.ask(ctx, "ask the guest agent", func() (err error) {
		all, err = c.lib.DomainInterfaceAddresses(d, agent, 0)
		return err
	})
	if err != nil {
		if !refused(err) {
			return nil, err
		}
		answer, direct := c.command(ctx, d)
		if direct != nil {
			return nil, err // the first one says more
		}
		return vmistatus.FromGuest([]byte(answer))
	}
	guest := make([]vmistatus.GuestInterface, 0, len(all))
	for _, i := range all {
		g := vmistatus.GuestInterface{Name: i.Name}
		if len(i.Hwaddr) > 0 {
			g.MAC = i.Hwaddr[0]
		}
		for _, a := range i.Addrs {
			g.IPs = append(g.IPs, a.Addr)
		}
		guest = append(guest, g)
	}
	return guest, nil
}

// refused says that libvirt itself, and not the agent, is why there is no answer.
func refused(err error) bool {
	if errors.Is(err, libvirt.ErrUnsupported) {
		return true
	}
	e, ok := errors.AsType[libvirt.Error](err)
	if !ok {
		return false
	}
	code := libvirt.ErrorNumber(e.Code) //nolint:gosec // any number
	return code == libvirt.ErrNoSupport || code == libvirt.ErrInternalError
}

func (c *Conn) command(ctx context.Context, d Domain) (string, error) {
	const seconds = 5 // for the agent's answer
	var answer libvirt.OptString
	err := c.ask(ctx, "ask the guest agent itself", func() (err error) {
		answer, err = c.lib.QEMUDomainAgentCommand(d, guestCommand, seconds, 0)
		return err
	})
	if err != nil || len(answer) == 0 {
		return "", cmp.Or(err, errors.New("the guest agent answers nothing"))
	}
	return answer[0], nil
}

// GuestJSON writes interfaces as the agent itself does; vmistatus.FromGuest reads them.
func GuestJSON(guest []vmistatus.GuestInterface) ([]byte, error) {
	type address struct {
		IP   string `json:"ip-address"`
		Type string `json:"ip-address-type"`
	}
	type record struct {
		Name string    `json:"name"`
		MAC  string    `json:"hardware-address,omitempty"`
		IPs  []address `json:"ip-addresses,omitempty"`
	}
	all := make([]record, len(guest))
	for i, g := range guest {
		all[i] = record{Name: g.Name, MAC: g.MAC}
		for _, ip := range g.IPs {
			kind := "ipv4"
			if strings.Contains(ip, ":") {
				kind = "ipv6"
			}
			all[i].IPs = append(all[i].IPs, address{ip, kind})
		}
	}
	return json.Marshal(all)
}
