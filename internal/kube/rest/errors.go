// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Errors that are no answer of an API server.
var (
	// ErrRedirect: the server sends the client elsewhere, and it does not go.
	ErrRedirect = errors.New("redirect is not followed")
	// ErrGarbage: the answer is no JSON object of the kind that was asked for.
	ErrGarbage = errors.New("answer is not of the Kubernetes API")
	// ErrTooLarge: the answer is beyond the bound of a body.
	ErrTooLarge = errors.New("answer is larger than 32 MiB")
	// ErrName: a name that cannot stand in a path; nothing was sent.
	ErrName = errors.New("name is not usable in a request")
	// ErrCredentials: the token file cannot be read; nothing was sent.
	ErrCredentials = errors.New("credentials cannot be read")
)

// Error is a request that did not succeed.
type Error struct {
	Verb   string // get, list, patch, create
	Object string // "pod default/web"
	Server string // scheme and host
	// Status is the server's answer, nil when there was none, or none of an API server.
	Status *Status
	// Late says that the context ended; Err and Status are those of the last try, if there was one.
	Late bool
	Err  error
}

// Status is an answer other than success.
type Status struct {
	Code       int    // HTTP
	Reason     string // "NotFound"; "" when the body was no Status object of Kubernetes
	Message    string // bounded
	RetryAfter time.Duration
}

func (s *Status) String() string {
	text := fmt.Sprintf("%d %s", s.Code, http.StatusText(s.Code))
	if s.Message != "" {
		text += ": " + s.Message
	}
	return text
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s at %s: ", e.Verb, e.Object, e.Server)
	switch {
	case e.Late && e.Status != nil:
		text += "no other answer in time than " + e.Status.String()
	case e.Late && e.Err != nil && !errors.Is(e.Err, context.DeadlineExceeded) && !errors.Is(e.Err, context.Canceled):
		text += fmt.Sprintf("no answer in time: %v", e.Err)
	case e.Late:
		text += "no answer in time"
	case e.Status != nil:
		text += "answer " + e.Status.String()
	default:
		text += e.Err.Error()
	}
	return text
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Code is the HTTP status code of err's answer, 0 when there was none.
func Code(err error) int {
	if e, ok := errors.AsType[*Error](err); ok && e.Status != nil {
		return e.Status.Code
	}
	return 0
}

// NotFound says that the server knows the resource, and has no such object: a plain
// 404, as from a server that does not serve the resource, is none.
func NotFound(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status != nil && e.Status.Code == http.StatusNotFound && e.Status.Reason == "NotFound"
}

// Untrusted says that the two sides do not accept each other's certificates, which no
// waiting mends.
func Untrusted(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if errors.Is(err, http.ErrSchemeMismatch) { // the server speaks no TLS
		return true
	}
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error" // so crypto/tls hands on the other side's refusal
}
