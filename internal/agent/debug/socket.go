// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"fmt"
	"net"
	"sync"

	"github.com/weftnet/weft/internal/host/socket"
)

// peer is the user at the other end of a connection.
func peer(c net.Conn) (uint32, error) {
	counted, ok := c.(*conn)
	if !ok {
		return 0, fmt.Errorf("read peer credentials: connection is a %T", c)
	}
	cred, err := socket.Peer(counted.UnixConn)
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// limited accepts no more connections at a time than it has slots; others wait in the
// kernel.
type limited struct {
	*socket.Socket
	slots  chan struct{}
	closed chan struct{}
}

// Accept waits for a slot, then for a connection.
func (l limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.AcceptUnix()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &conn{UnixConn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close also ends an Accept that waits for a slot.
func (l limited) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return l.Socket.Close()
}

// conn is a connection that holds a slot.
type conn struct {
	*net.UnixConn
	free func()
}

// Close gives the slot back.
func (c *conn) Close() error {
	defer c.free()
	return c.UnixConn.Close()
}
