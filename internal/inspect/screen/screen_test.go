// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// helperEnv makes the test binary draw on its terminal, and says how it ends by itself.
const helperEnv = "SCREEN_TEST_HELPER"

func TestMain(m *testing.M) {
	if how := os.Getenv(helperEnv); how != "" {
		os.Exit(helper(how))
	}
	goleak.VerifyTestMain(m)
}

// helper draws its size and a number; "panic" and "error" are how its third picture ends it.
func helper(how string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	n := 0
	err := Run(ctx, os.Stdin, os.Stdout, 10*time.Millisecond, func(ctx context.Context, width, height int) ([]string, error) {
		n++
		switch {
		case n == 3 && how == "panic":
			panic("broken picture")
		case n == 3 && how == "error":
			return nil, errors.New("refused")
		case n == 3 && how == "hang": // until it is told to end
			<-ctx.Done()
		}
		return []string{fmt.Sprintf("%dx%d", width, height), fmt.Sprintf("picture %d", n)}, nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	stop()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	return 0
}

// terminal is a pseudo-terminal with a program on it.
type terminal struct {
	t             *testing.T
	master, slave *os.File
	cmd           *exec.Cmd
	stderr        strings.Builder

	mu   sync.Mutex
	seen string
}

func openTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(n)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	term := &terminal{t: t, master: master, slave: slave}
	term.resize(80, 24)
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := unix.Read(int(master.Fd()), b)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n == 0 {
				return
			}
			term.mu.Lock()
			term.seen += string(b[:n])
			term.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		slave.Close() // the last one: the read above ends
		<-read
		master.Close()
	})
	return term
}

func (term *terminal) resize(width, height uint16) {
	term.t.Helper()
	if err := unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		term.t.Fatal(err)
	}
}

func (term *terminal) mode() unix.Termios {
	term.t.Helper()
	mode, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return *mode
}

func (term *terminal) start(how string) {
	term.t.Helper()
	term.cmd = exec.CommandContext(term.t.Context(), os.Args[0])
	term.cmd.Env = append(os.Environ(), helperEnv+"="+how) //nolint:forbidigo // the helper's
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = term.slave, term.slave, &term.stderr
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		term.t.Fatal(err)
	}
}

func (term *terminal) text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.seen
}

func (term *terminal) await(text string) {
	term.t.Helper()
	for ends := time.Now().Add(time.Minute); !strings.Contains(term.text(), text); {
		if time.Now().After(ends) {
			seen := term.text()
			term.t.Fatalf("never shows %q, at last %q", text, seen[max(0, len(seen)-300):])
		}
		<-time.After(time.Millisecond)
	}
}

// ended waits for the program's end and says its exit code.
func (term *terminal) ended() int {
	term.t.Helper()
	err := term.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok && err != nil || ok && !exit.Exited() {
		term.t.Errorf("it ended by %v", err)
	}
	return term.cmd.ProcessState.ExitCode()
}

// However it ends, the terminal is as it was before.
func TestTerminalIsGivenBack(t *testing.T) {
	for _, c := range []struct {
		how, key string
		code     int
		stderr   string
	}{
		{how: "run", key: "q"},
		{how: "run", key: "\x03"}, // Ctrl-C
		{how: "hang", key: "q"},
		{how: "hang", key: "\x03"},
		{how: "error", code: 3, stderr: "refused"},
		{how: "panic", code: 2, stderr: "broken picture"},
	} {
		t.Run(fmt.Sprintf("%s%q", c.how, c.key), func(t *testing.T) {
			term := openTerminal(t)
			before := term.mode()
			term.start(c.how)
			term.await("picture 2")
			if c.key != "" {
				if during := term.mode(); during.Lflag&(unix.ICANON|unix.ECHO) != 0 || during.Cc[unix.VSUSP] != 0 {
					t.Errorf("keys are not taken: %+v", during)
				}
				if _, err := term.master.WriteString("x\x1b[A\x1a" + c.key); err != nil { // others do nothing
					t.Fatal(err)
				}
			}
			if code := term.ended(); code != c.code || !strings.Contains(term.stderr.String(), c.stderr) {
				t.Errorf("exit code %d, want %d: %s", code, c.code, term.stderr.String())
			}
			term.await(end)
			if !strings.HasPrefix(term.text(), begin) || !strings.HasSuffix(term.text(), end) {
				t.Error("screens are not changed")
			}
			if after := term.mode(); after != before {
				t.Errorf("the terminal is %+v after it, was %+v", after, before)
			}
		})
	}
}

// A picture is drawn in place of the one before, in the size that the terminal has then.
func TestPicturesFollowTheSize(t *testing.T) {
	term := openTerminal(t)
	term.start("run")
	term.await("\x1b[H80x24\x1b[K\r\r\npicture 2\x1b[K\x1b[J") // the kernel adds a return of its own
	term.resize(33, 7)
	term.await("\x1b[H33x7\x1b[K\r\r\n")
	if _, err := term.master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if code := term.ended(); code != 0 {
		t.Errorf("exit code %d: %s", code, term.stderr.String())
	}
}

func TestNoTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	draw := func(context.Context, int, int) ([]string, error) {
		t.Error("something is drawn")
		return nil, nil
	}
	if err := Run(t.Context(), f, f, time.Second, draw); !errors.Is(err, ErrNoTerminal) {
		t.Errorf("of a file: %v", err)
	}
	term := openTerminal(t)
	if err := Run(t.Context(), f, term.slave, time.Second, draw); !errors.Is(err, ErrNoTerminal) {
		t.Errorf("keys of a file: %v", err)
	}
}
