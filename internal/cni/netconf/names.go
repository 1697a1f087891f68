// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// NetworkName says why name is none that CNI allows for a network (letters, digits,
// '_', '.', '-', not starting with one of the last three). CNI's rule also keeps a
// name from leaving the directories in which plugins make files of it.
// Source: containernetworking/cni pkg/utils.
func NetworkName(name string) error {
	if name == "" {
		return errors.New("is empty")
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		case i == 0:
			return errors.New("does not start with a letter or a digit")
		default:
			return errors.New("holds other characters than letters, digits, '_', '.' and '-'")
		}
	}
	if len(name) > maxName {
		return fmt.Errorf("is longer than %d bytes", maxName)
	}
	return nil
}

// maxName is what every file system takes as a file name.
const maxName = 255

// PluginType says why name is no bare file name, which a plugin type must be.
func PluginType(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case name == "." || name == "..":
		return errors.New("is a directory, the name of a program is needed")
	case strings.ContainsRune(name, '/'):
		return errors.New("holds a slash, a bare file name is needed")
	case len(name) > maxName:
		return fmt.Errorf("is longer than %d bytes", maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("holds characters that are not printable")
	}
	return nil
}
