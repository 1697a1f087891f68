// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of names: the kernel's IFNAMSIZ without its NUL, and those of Kubernetes.
const (
	maxInterface = 15
	maxLabel     = 63
	maxSubdomain = 253
	maxAddress   = 8 // bytes of the longest hardware address
)

// InterfaceName says why the kernel would not take name for an interface. The rules
// are those of dev_valid_name and of names that the kernel keeps for itself: '%' makes
// a name a pattern, and "all" and "default" are directories beside the interfaces' own
// in /proc/sys/net. What cannot be shown is refused as well.
func InterfaceName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case len(name) > maxInterface:
		return fmt.Errorf("is longer than %d bytes", maxInterface)
	case name == "." || name == ".." || name == "all" || name == "default":
		return errors.New("is a name that the kernel does not allow")
	case strings.ContainsAny(name, "/:%"):
		return errors.New("holds one of '/', ':' and '%'")
	case strings.ContainsRune(name, utf8.RuneError): // what half a surrogate pair in JSON is read as
		return errors.New("holds U+FFFD, or bytes that are no UTF-8")
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }):
		return errors.New("holds space or characters that are not printable")
	}
	return nil
}

// Namespace says why name is no namespace: a DNS-1123 label.
func Namespace(name string) error {
	if len(name) > maxLabel {
		return fmt.Errorf("is longer than %d bytes", maxLabel)
	}
	if !label(name) {
		return errors.New("is no namespace: lower-case letters, digits and '-', the first and the last a letter or a digit")
	}
	return nil
}

// ObjectName says why name is no name of a NetworkAttachmentDefinition (or of a
// pod): a DNS-1123 subdomain, as Kubernetes checks it.
func ObjectName(name string) error {
	if name == "" {
		return errors.New("is empty")
	}
	if len(name) > maxSubdomain {
		return fmt.Errorf("is longer than %d bytes", maxSubdomain)
	}
	for part := range strings.SplitSeq(name, ".") {
		if !label(part) {
			return errors.New("is no object name: lower-case letters, digits, '-' and '.', the first and the last of each part a letter or a digit")
		}
	}
	return nil
}

func label(s string) bool {
	for i := range len(s) {
		c := s[i]
		if alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'; !alnum && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return s != ""
}

// hardwareAddress reads an address of n bytes in one of the three usual forms: 00:11:22:33:44:55, 00-11-22-33-44-55, 0011.2233.4455.
func hardwareAddress(s string, n int) (address [maxAddress]byte, err error) {
	digits, sep := 2, ":"
	switch {
	case strings.Contains(s, "-"):
		sep = "-"
	case strings.Contains(s, "."):
		digits, sep = 4, "."
	}
	b := address[:0]
	for part := range strings.SplitSeq(s, sep) {
		if len(part) != digits {
			return address, fmt.Errorf("is not %d bytes in hexadecimal, written as 00:11:…", n)
		}
		for i := 0; i < digits; i += 2 {
			hi, lo := nibble(part[i]), nibble(part[i+1])
			if hi < 0 || lo < 0 {
				return address, fmt.Errorf("is not %d bytes in hexadecimal, written as 00:11:…", n)
			}
			b = append(b, byte(hi<<4|lo))
		}
	}
	if len(b) != n {
		return address, fmt.Errorf("is not %d bytes but %d", n, len(b))
	}
	return address, nil
}

func nibble(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
