// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package screen draws pictures on a terminal, again and again, until somebody has seen enough.
//
// It owns the terminal meanwhile: it shows the second screen, where a terminal has one, takes
// keys one by one without showing them, and follows changes of the size.
//
// Invariants: the terminal is as it was before when Run returns, whatever ended it: a key, the
// context, a fault, a panic of what draws. A line is never wider than the terminal, and a picture never
// higher, as long as what draws keeps to the size it was given.
//
// It must not know what is drawn.
//
// Implements: architecture 4.6 (weft top).
package screen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoTerminal says that a file is no terminal.
var ErrNoTerminal = errors.New("is no terminal")

// What a terminal is told, in the words that all understand.
const (
	begin = "\x1b[?1049h\x1b[?7l\x1b[?25l\x1b[2J" // second screen, no wrapping, no cursor, empty
	end   = "\x1b[?25h\x1b[?7h\x1b[?1049l"
	home  = "\x1b[H"
	rest  = "\x1b[K" // the line's is emptied
	below = "\x1b[J" // and what is below
)

// What a terminal without a size has.
const (
	usualWidth  = 80
	usualHeight = 24
)

// Run draws what draw gives, every now and then and when the size changes, until the key q, the
// end of ctx or an error of draw, which is returned. Keys are read from in. Ctx of draw ends
// with the key as well.
func Run(ctx context.Context, in, out *os.File, every time.Duration, draw func(ctx context.Context, width, height int) ([]string, error)) (err error) {
	if _, err := unix.IoctlGetTermios(int(out.Fd()), unix.TCGETS); err != nil {
		return fmt.Errorf("draw on %s: it %w", out.Name(), ErrNoTerminal)
	}
	back, err := takeKeys(in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back()) }()
	// The context ends first, and the keys with it.
	ctx, cancel := context.WithCancel(ctx)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	keys, err := readKeys(ctx, in, cancel)
	if err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		<-keys
	}()
	if _, err := out.WriteString(begin); err != nil {
		return fmt.Errorf("draw on %s: %w", out.Name(), err)
	}
	defer out.WriteString(end) //nolint:errcheck // a terminal that is gone needs nothing
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		width, height := size(out)
		lines, err := draw(ctx, width, height)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := out.Write(picture(lines)); err != nil {
			return fmt.Errorf("draw on %s: %w", out.Name(), err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-resized:
		}
	}
}

// picture is what a terminal is told to show lines in place of what it shows. No line break
// follows the last, which would move all up.
func picture(lines []string) []byte {
	var b bytes.Buffer
	b.WriteString(home)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + rest)
	}
	b.WriteString(below)
	return b.Bytes()
}

func size(out *os.File) (width, height int) {
	ws, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 || ws.Row == 0 {
		return usualWidth, usualHeight
	}
	return int(ws.Col), int(ws.Row)
}

// takeKeys has a terminal give each key at once and show none, and gives what undoes that.
// Ctrl-C stays a signal; Ctrl-Z is taken away, since a shell would get the second screen.
func takeKeys(in *os.File) (back func() error, err error) {
	fd := int(in.Fd())
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read keys from %s: it %w", in.Name(), ErrNoTerminal)
	}
	now := *was
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME], now.Cc[unix.VSUSP] = 1, 0, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &now); err != nil {
		return nil, fmt.Errorf("read keys from %s: %w", in.Name(), err)
	}
	return func() error {
		if err := unix.IoctlSetTermios(fd, unix.TCSETS, was); err != nil {
			return fmt.Errorf("give %s back: %w", in.Name(), err)
		}
		return nil
	}, nil
}

// readKeys calls quit once q is pressed or the terminal is gone. The channel is closed when keys
// are read no more, which is so soon after ctx ends.
func readKeys(ctx context.Context, in *os.File, quit func()) (<-chan struct{}, error) {
	// A read of a terminal cannot be broken off without changing it for others who have it
	// open: the end of this pipe is seen beside it.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("read keys from %s: %w", in.Name(), err)
	}
	stop := context.AfterFunc(ctx, func() { w.Close() })
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer r.Close()
		defer quit()
		defer stop()
		key := make([]byte, 16)
		for {
			fds := []unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}, {Fd: int32(r.Fd()), Events: unix.POLLIN}}
			_, err := unix.Poll(fds, -1)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil || fds[1].Revents != 0:
				return
			}
			n, err := unix.Read(int(in.Fd()), key)
			if err != nil || n == 0 || bytes.ContainsAny(key[:n], "qQ\x03") {
				return
			}
		}
	}()
	return over, nil
}
