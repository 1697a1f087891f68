// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/host/brief"
)

// logger tells warnings and errors on stderr and in the conf's logFile. One call of
// weft-cni writes a line or none, so that is all it is: a line is one write(2), and
// many processes append to one file. Until the conf is read it writes to stderr,
// so that a broken conf is told as well.
type logger struct {
	stderr io.Writer
	file   *os.File
	level  int
	prefix string
	told   []string // warnings about what was read, which the plan has again
}

// Warnings and errors are always told. Of Multus' logLevel words, "verbose" and
// "debug" add the steps.
const (
	levelWarn = iota
	levelDebug
)

func newLogger(stderr io.Writer, req request) *logger {
	prefix := "weft-cni " + req.command
	if req.sandbox.ContainerID != "" {
		prefix += " container_id=" + fault.Bound(req.sandbox.ContainerID, 64) + " if_name=" + fault.Bound(req.sandbox.IfName, 16)
	}
	return &logger{stderr: stderr, level: levelWarn, prefix: prefix}
}

func (l *logger) configure(c netconf.Log) {
	if c.Level == "debug" || c.Level == "verbose" {
		l.level = levelDebug
	}
	if c.File != "" {
		rotate(c)
		file, err := openLog(c.File)
		if err != nil {
			l.warn(fmt.Sprintf("logFile: %v", err))
		} else {
			l.file = file
		}
	}
	if !c.ToStderr && l.file != nil {
		l.stderr = io.Discard
	}
}

// openLog opens a file, a terminal or the like. A FIFO is refused: nobody may read it, and
// no call is to wait for that.
func openLog(path string) (*os.File, error) {
	file, err := brief.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		err = fmt.Errorf("%s is a FIFO", path)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// rotate moves a log file that grew beyond maxSize MB aside, keeping maxBackups.
// Two processes may both try: the second finds a small file and leaves it.
func rotate(c netconf.Log) {
	info, err := os.Stat(c.File)
	if err != nil || c.MaxSize <= 0 || info.Size() < int64(c.MaxSize)<<20 {
		return
	}
	for i := c.MaxBackups; i > 0; i-- {
		from := c.File
		if i > 1 {
			from = fmt.Sprintf("%s.%d", c.File, i-1)
		}
		_ = os.Rename(from, fmt.Sprintf("%s.%d", c.File, i)) // a missing older file is the usual case
	}
}

func (l *logger) close() {
	if l.file != nil {
		_ = l.file.Close()
	}
}

func (l *logger) warnings(ws []fault.Warning) {
	for _, w := range ws {
		text := w.Object
		if w.Field != "" {
			text += ": " + w.Field
		}
		text += ": " + w.Text
		if slices.Contains(l.told, text) {
			continue
		}
		l.told = append(l.told, text)
		l.warn(text)
	}
}

func (l *logger) error(text string) { l.write(levelWarn, "error", text) }
func (l *logger) warn(text string)  { l.write(levelWarn, "warning", text) }
func (l *logger) debug(text string) { l.write(levelDebug, "debug", text) }

func (l *logger) write(level int, word, text string) {
	if level > l.level {
		return
	}
	line := fmt.Sprintf("%s %s %s: %s\n", time.Now().UTC().Format(time.RFC3339Nano), l.prefix, word, fault.Bound(text, maxErrorText))
	_, _ = io.WriteString(l.stderr, line)
	if l.file != nil {
		_, _ = io.WriteString(l.file, line)
	}
}
