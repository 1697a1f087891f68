// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
)

// maxSocketPath is what the kernel takes as the path of a unix socket, without the suffix
// that the socket has until it listens.
const maxSocketPath = 103

// maxStatusTimeout bounds cni.statusTimeout: runtimes give an ADD no more than minutes,
// and hold a place for it all the while.
const maxStatusTimeout = 30 * time.Second

func checkNodeName(c *Config) error {
	name := c.NodeName
	switch {
	case name == "":
		return errors.New("is not given: neither by the file, nor by --node-name, nor by NODE_NAME, and the host has no name")
	case len(name) > 253:
		return fmt.Errorf("%s is longer than 253 characters", fault.Quote(name))
	}
	for label := range strings.SplitSeq(name, ".") {
		ok := label != "" && label[0] != '-' && label[len(label)-1] != '-'
		for _, r := range label {
			ok = ok && (r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z')
		}
		if !ok {
			return fmt.Errorf("%s is no name of a node: small letters, digits, '-' and '.'", fault.Quote(name))
		}
	}
	return nil
}

func checkSocketDir(c *Config) error {
	if err := absolute(func(c *Config) *string { return &c.SocketDir }, false)(c); err != nil {
		return err
	}
	if path := c.DebugSocket(); len(path) > maxSocketPath {
		return fmt.Errorf("%s is too long: a socket's path has at most %d bytes", fault.Quote(c.SocketDir), maxSocketPath)
	}
	return nil
}

func checkMetricsAddress(c *Config) error {
	if c.MetricsAddress == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(c.MetricsAddress)
	if err == nil && host != "" && net.ParseIP(host) == nil && host != "localhost" {
		err = errors.New("the host is no address")
	}
	if n, perr := strconv.ParseUint(port, 10, 16); err == nil && (perr != nil || n == 0 && port != "0") {
		err = errors.New("the port is no number from 0 to 65535")
	}
	if err != nil {
		if e, ok := errors.AsType[*net.AddrError](err); ok {
			err = errors.New(e.Err)
		}
		return fmt.Errorf("%s is no address with a port such as 127.0.0.1:9479: %w", fault.Quote(c.MetricsAddress), err)
	}
	return nil
}

func checkEnabled(c *Config) error {
	if !c.CNI.Enabled && !c.NetworkDriver.Enabled && c.VMI.Mode == VMIDisabled {
		return errors.New("is false, which leaves nothing to do")
	}
	return nil
}

func checkConfName(c *Config) error {
	name := c.CNI.ConfName
	switch {
	case name != filepath.Base(name) || strings.HasPrefix(name, "."):
		return fmt.Errorf("%s is no plain file name", fault.Quote(name))
	case filepath.Ext(name) != ".conflist":
		return fmt.Errorf("%s does not end in .conflist, which tells runtimes that it is a list", fault.Quote(name))
	}
	return nil
}

func checkStatusTimeout(c *Config) error {
	if d := c.CNI.StatusTimeout; d < 0 || d > maxStatusTimeout {
		return fmt.Errorf("%s is not between 0s and %s", d, maxStatusTimeout)
	}
	return nil
}

func checkCRISocket(c *Config) error {
	if c.CNI.CRISocket != "" {
		return errors.New("is not used by this build, which never asks the runtime: leave it out")
	}
	return nil
}

func checkPollInterval(c *Config) error {
	if d := c.VMI.PollInterval; d < time.Second || d > time.Hour {
		return fmt.Errorf("%s is not between 1s and 1h", d)
	}
	return nil
}
