// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/internal/agent/debug"
	"github.com/weftnet/weft/internal/kube/rest"
	"github.com/weftnet/weft/internal/sandbox"
)

// sources are the flags that say who is asked: the node's agent, or an API server.
type sources struct {
	kubeconfig, socket string
	timeout            time.Duration
	getenv             func(string) string
}

// defaultSocket is where an agent with the default socketDir listens.
const defaultSocket = "/run/weft/debug.sock"

func (s *sources) flags(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, else ~/.kube/config)")
	flags.StringVar(&s.socket, "socket", "", "debug socket of this node's agent (default: "+defaultSocket+", where it is there)")
	flags.DurationVar(&s.timeout, "timeout", 30*time.Second, "give up after this time")
}

func (s *sources) context(cmd *cobra.Command) (context.Context, context.CancelFunc, error) {
	if s.timeout <= 0 {
		return nil, nil, &sandbox.UsageError{Err: fmt.Errorf("timeout %s is not above 0", s.timeout)}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
	return ctx, cancel, nil
}

// agent is the agent to ask, nil when none is named and none is there.
func (s *sources) agent() *debug.Client {
	path := s.socket
	if path == "" {
		path = defaultSocket
		if _, err := os.Lstat(path); err != nil {
			return nil
		}
	}
	return debug.NewClient(path)
}

// instead asks the agent, where one is to be asked in place of the API server. done says
// that this is the end: it answered, or it was asked for by name.
func (s *sources) instead(cmd *cobra.Command, ask func(*debug.Client) error) (done bool, err error) {
	switch {
	case s.socket != "" && s.kubeconfig != "":
		return true, &sandbox.UsageError{Err: errors.New("--socket names an agent and --kubeconfig an API server: which one?")}
	case s.kubeconfig != "":
		return false, nil
	}
	client := s.agent()
	if client == nil {
		return false, nil
	}
	defer client.Close()
	err = ask(client)
	if err == nil || errors.Is(err, errFound) {
		fmt.Fprintf(cmd.ErrOrStderr(), "weft: as the %s says\n", client)
		return true, err
	}
	if s.socket == "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "weft: %v; asking the API server\n", err)
		return false, nil
	}
	return true, err
}

// kubeconfigPath is the kubeconfig to use, "" when there is none.
func (s *sources) kubeconfigPath() (string, error) {
	path := s.kubeconfig
	if path == "" {
		path = s.getenv("KUBECONFIG")
		if files := filepath.SplitList(path); len(files) > 1 {
			return "", &sandbox.UsageError{Err: fmt.Errorf("$KUBECONFIG names %d files; name one with --kubeconfig", len(files))}
		}
	}
	if home := s.getenv("HOME"); path == "" && home != "" {
		path = filepath.Join(home, ".kube", "config")
	}
	return path, nil
}

// client is the API server's.
func (s *sources) client() (*rest.Client, error) {
	path, err := s.kubeconfigPath()
	if err != nil {
		return nil, err
	}
	if path == "" {
		return nil, &sandbox.UsageError{Err: errors.New("which server? Name a kubeconfig with --kubeconfig")}
	}
	cfg, err := rest.Load(path)
	if err != nil {
		return nil, &sandbox.UsageError{Err: fmt.Errorf("read kubeconfig %s: %w; name another with --kubeconfig", path, err)}
	}
	return rest.New(cfg), nil
}

// hasClient says that a kubeconfig is named, by flag or environment, or is in its usual place.
func (s *sources) hasClient() bool {
	if s.kubeconfig != "" || s.getenv("KUBECONFIG") != "" {
		return true
	}
	path, err := s.kubeconfigPath()
	if err != nil || path == "" {
		return false
	}
	_, err = os.Stat(path)
	return err == nil
}
