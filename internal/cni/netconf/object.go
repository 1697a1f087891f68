// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weftnet/weft/internal/cni/fault"
)

// Object is a JSON object that is edited without loss: keys keep their order and
// every value its bytes, as far as nobody set it. It is not safe for use by
// several goroutines while one of them edits.
type Object struct {
	raw     []byte // what was parsed; nil after an edit
	members []member
}

type member struct {
	key   []byte // as written, quotes included; nil for one that Set added
	plain bool   // the text between the quotes is the name itself
	added string // the name of that one
	value json.RawMessage
}

// name is the key as a string. Invalid JSON does not get here.
func (m *member) name() string {
	if m.key == nil {
		return m.added
	}
	s, _ := Decode[string](m.key, "a string")
	return s
}

// is compares without making a string, since that is most of what is done to keys.
func (m *member) is(name string) bool {
	switch {
	case m.key == nil:
		return m.added == name
	case m.plain:
		return string(m.key[1:len(m.key)-1]) == name
	}
	return m.name() == name
}

// same says whether two members have one name.
func (m *member) same(other member) bool {
	switch {
	case m.plain && other.plain:
		return string(m.key) == string(other.key)
	case m.key == nil:
		return other.is(m.added)
	}
	return other.is(m.name())
}

// ParseObject takes one JSON object. b must not change afterwards. The error
// says what b is instead.
func ParseObject(b []byte) (*Object, error) {
	if err := CheckJSON(b); err != nil {
		return nil, err
	}
	return Inner(bytes.TrimSpace(b))
}

// Inner is ParseObject for a value inside JSON that was parsed before: what is known to
// be valid is not checked again.
func Inner(raw json.RawMessage) (*Object, error) {
	o := &Object{}
	if err := o.Reset(raw); err != nil {
		return nil, err
	}
	return o, nil
}

// Reset is Inner into an Object that is there: its edits go, its memory is used again.
func (o *Object) Reset(raw json.RawMessage) error {
	o.raw, o.members = nil, o.members[:0]
	if err := CheckObject(raw); err != nil {
		return err
	}
	if o.members == nil {
		o.members = make([]member, 0, min(8, len(raw)/16+1))
	}
	b := []byte(raw)
	for i := skipSpace(b, 1); b[i] != '}'; {
		end := skipValue(b, i)
		key := b[i:end:end]
		i = skipSpace(b, skipSpace(b, end)+len(":"))
		end = skipValue(b, i)
		o.members = append(o.members, member{key: key, plain: plain(key[1 : len(key)-1]), value: raw[i:end:end]})
		i = skipComma(b, end)
	}
	o.raw = b
	return nil
}

// CheckObject says what a value inside JSON that was parsed before is instead of an object.
func CheckObject(raw json.RawMessage) error {
	if len(raw) == 0 || raw[0] != '{' {
		return fmt.Errorf("is %s, an object is needed", Kind(raw))
	}
	return nil
}

// CheckJSON says whether b is one JSON value, and if not, where it stops being one.
func CheckJSON(b []byte) error {
	if valid(b) || json.Valid(b) {
		return nil
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return fmt.Errorf("is empty, JSON is needed")
	}
	var raw json.RawMessage
	err := json.Unmarshal(b, &raw)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("is not JSON, at byte %d: %w", syntax.Offset, err)
	}
	return fmt.Errorf("is not JSON: %w", err)
}

// Elements splits a JSON array into its values' bytes. The error says what b is instead.
func Elements(b []byte) ([]json.RawMessage, error) {
	if err := CheckJSON(b); err != nil {
		return nil, err
	}
	return elementsOf(bytes.TrimSpace(b))
}

func elementsOf(b []byte) ([]json.RawMessage, error) {
	if err := checkArray(b); err != nil {
		return nil, err
	}
	var all []json.RawMessage
	for i := skipSpace(b, 1); b[i] != ']'; {
		end := skipValue(b, i)
		all = append(all, b[i:end:end])
		i = skipComma(b, end)
	}
	return all, nil
}

func checkArray(raw []byte) error {
	if len(raw) == 0 || raw[0] != '[' {
		return fmt.Errorf("is %s, an array is needed", Kind(raw))
	}
	return nil
}

// Get gives the value of a key; of a key written twice the last one, as
// encoding/json has it.
func (o *Object) Get(key string) (json.RawMessage, bool) {
	for i := range slices.Backward(o.members) {
		if m := &o.members[i]; m.is(key) {
			return m.value, true
		}
	}
	return nil, false
}

// Set gives a key a value, which must be valid JSON: in the place where the key
// stands first, dropping its duplicates, or at the end.
func (o *Object) Set(key string, value json.RawMessage) { o.set(member{added: key, value: value}) }

// Merge sets every key of another object, in its order and as it is written there.
func (o *Object) Merge(other *Object) {
	for _, m := range other.members {
		o.set(m)
	}
}

func (o *Object) set(m member) {
	o.raw = nil
	at := slices.IndexFunc(o.members, m.same)
	if at < 0 {
		o.members = append(o.members, m)
		return
	}
	o.members[at].value = m.value
	rest := slices.DeleteFunc(o.members[at+1:], m.same)
	o.members = o.members[:at+1+len(rest)]
}

// Delete removes a key and its duplicates.
func (o *Object) Delete(key string) {
	o.raw = nil
	o.members = slices.DeleteFunc(o.members, func(m member) bool { return m.is(key) })
}

// Keys gives the keys in the order in which they are written, duplicates included.
func (o *Object) Keys() []string {
	keys := make([]string, len(o.members))
	for i := range o.members {
		keys[i] = o.members[i].name()
	}
	return keys
}

// Bytes gives the object as JSON: the very bytes that were parsed when nothing
// was edited, else compact between the members and unchanged inside them.
func (o *Object) Bytes() []byte {
	if o.raw != nil {
		return o.raw
	}
	size := 2
	for _, m := range o.members {
		size += len(m.key) + len(m.added) + len(m.value) + len(`"":,`)
	}
	b := append(make([]byte, 0, size), '{')
	for i, m := range o.members {
		if i > 0 {
			b = append(b, ',')
		}
		if m.key != nil {
			b = append(b, m.key...)
		} else {
			b = appendString(b, m.added)
		}
		b = append(append(b, ':'), m.value...)
	}
	return append(b, '}')
}

// Kind names the type of a JSON value for a message: "a string", "an array", "null".
func Kind(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// IsNull says whether raw is null, which everywhere here means the same as an absent key.
func IsNull(raw []byte) bool { return string(bytes.TrimSpace(raw)) == "null" }

// Decode reads raw strictly as a T; want names T for the message ("a string").
func Decode[T any](raw json.RawMessage, want string) (T, error) {
	var v T // stays off the heap
	if s, ok := any(&v).(*string); ok && len(raw) >= 2 && raw[0] == '"' && plain(raw[1:len(raw)-1]) {
		*s = string(raw[1 : len(raw)-1]) // most values are such strings
		return v, nil
	}
	return decodeAny[T](raw, want)
}

func decodeAny[T any](raw json.RawMessage, want string) (T, error) {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fmt.Errorf("is %s, %s is needed", describe(raw), want)
	}
	// The decoder puts U+FFFD in place of what is no text: another value than was written.
	if s, ok := any(v).(string); ok && strings.ContainsRune(s, utf8.RuneError) && !isText(raw) {
		return v, errors.New("holds half a surrogate pair, or bytes that are no UTF-8")
	}
	return v, nil
}

// isText says whether every character of a JSON string is one: no half of a surrogate pair is
// written alone, and all bytes are UTF-8.
func isText(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		r, ok := utf16Escape(raw[i:])
		switch {
		case !ok:
			i++ // \n and the like
		case utf16.IsSurrogate(r):
			low, _ := utf16Escape(raw[i+utf16Len:])
			if utf16.DecodeRune(r, low) == utf8.RuneError {
				return false
			}
			i += 2*utf16Len - 1
		default:
			i += utf16Len - 1
		}
	}
	return utf8.Valid(raw)
}

// utf16Len is the length of an escape that gives one unit of UTF-16.
const utf16Len = len(`\u0000`)

// utf16Escape is the unit that such an escape at the beginning of raw gives.
func utf16Escape(raw []byte) (unit rune, ok bool) {
	if len(raw) < utf16Len || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(raw[2:utf16Len]), 16, 16)
	return rune(n), err == nil
}

// Known maps, in values, those of names that are keys of o to their values, without the
// null ones, and warns of every other key, of duplicates (the last one counts) and of
// names in other capitals: Multus takes those, so manifests with them live. What values
// held goes.
func Known(values map[string]json.RawMessage, o *Object, names []string, warn func(key, text string)) {
	clear(values)
	for i := range o.members {
		m := &o.members[i]
		at := slices.IndexFunc(names, m.is)
		if at < 0 {
			spelled := m.name()
			if at = slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, spelled) }); at < 0 {
				warn(fault.Bound(spelled, maxName), "is a key that Weft does not know; it has no effect")
				continue
			}
			warn(fault.Bound(spelled, maxName), "is read as "+names[at])
		}
		name := names[at]
		if _, twice := values[name]; twice {
			warn(name, "is written twice; the last one counts")
		}
		values[name] = m.value
	}
	maps.DeleteFunc(values, func(_ string, v json.RawMessage) bool { return IsNull(v) })
}

// describe is Kind, with the value itself where that is short and says more.
func describe(raw json.RawMessage) string {
	if kind := Kind(raw); kind == "a number" && len(raw) <= 32 {
		return string(raw)
	}
	return Kind(raw)
}

// String writes s as JSON.
func String(s string) json.RawMessage {
	return appendString(make([]byte, 0, len(s)+len(`""`)), s)
}

// StringList writes a list of strings as JSON.
func StringList(all []string) json.RawMessage {
	size := len("[]")
	for _, s := range all {
		size += len(s) + len(`"",`)
	}
	b := append(make([]byte, 0, size), '[')
	for i, s := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

func appendString(b []byte, s string) []byte {
	if plain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string cannot fail
	return append(b, bytes.TrimSpace(text.Bytes())...)
}

// plain says whether the text of a JSON string is the string itself.
func plain[T ~string | ~[]byte](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// The four below walk JSON that is known to be valid.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipComma goes from the end of a member to the next one, or to the closing bracket.
func skipComma(b []byte, i int) int {
	if i = skipSpace(b, i); b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	return i
}

func skipString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func skipValue(b []byte, i int) int {
	depth := 0
	for {
		switch b[i] {
		case '"':
			i = skipString(b, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		default:
			i++
			if depth == 0 { // a number or a word: up to what follows it
				for i < len(b) && bytes.IndexByte([]byte(",]} \t\r\n"), b[i]) < 0 {
					i++
				}
			}
		}
		if depth == 0 {
			return i
		}
	}
}
