// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"cmp"
	"reflect"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

type key struct{ namespace, name string }

// table is a cache of one resource, in rows that are never changed. It implements
// cache.TransformingStore for the one Reflector that fills it.
type table[T any] struct {
	trim func(any) (*T, error)
	id   func(*T) (Ref, string) // whose row, in which resource version
	// unversioned is a row without its resource version.
	unversioned func(T) T
	complete    chan struct{} // closed with the first complete list
	notify      []func(Ref)
	budget      budget[T]

	mu     sync.RWMutex
	rows   map[key]*T
	size   int // of all rows, as the budget weighs them
	filled bool
}

// budget bounds what rows hold that can be read anew. The zero value bounds nothing.
type budget[T any] struct {
	most   int // of all rows together
	weigh  func(*T) int
	shrink func(*T) *T // the same without that
}

// fit is a row as it is kept beside others of that size, and the size of all then.
func (b budget[T]) fit(r *T, size int) (*T, int) {
	if b.weigh == nil {
		return r, 0
	}
	if size+b.weigh(r) > b.most {
		r = b.shrink(r)
	}
	return r, size + b.weigh(r)
}

func (b budget[T]) of(r *T) int {
	if b.weigh == nil || r == nil {
		return 0
	}
	return b.weigh(r)
}

func newTable[T any](trim func(any) (*T, error), id func(*T) (Ref, string), unversioned func(T) T) *table[T] {
	return &table[T]{trim: trim, id: id, unversioned: unversioned, complete: make(chan struct{}), rows: map[key]*T{}}
}

func (t *table[T]) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.rows)
}

func (t *table[T]) row(k key) (*T, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r, ok := t.rows[k]
	return r, ok
}

// find gives a row that is meant.
func (t *table[T]) find(meant func(*T) bool) (*T, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, r := range t.rows {
		if meant(r) {
			return r, true
		}
	}
	return nil, false
}

func (t *table[T]) all() []*T {
	t.mu.RLock()
	rows := make([]*T, 0, len(t.rows))
	for _, r := range t.rows {
		rows = append(rows, r)
	}
	t.mu.RUnlock()
	slices.SortFunc(rows, func(a, b *T) int {
		x, _ := t.id(a)
		y, _ := t.id(b)
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return rows
}

// put keeps a row, unless what is there is as new or newer, and tells when anything but
// the resource version is another.
func (t *table[T]) put(r *T, known bool) {
	ref, version := t.id(r)
	k := key{ref.Namespace, ref.Name}
	t.mu.Lock()
	old := t.rows[k]
	if old == nil && known {
		t.mu.Unlock()
		return
	}
	if old != nil {
		oldRef, oldVersion := t.id(old)
		if known && oldRef.UID != ref.UID || oldRef.UID == ref.UID && !newer(version, oldVersion) {
			t.mu.Unlock()
			return
		}
	}
	r, t.size = t.budget.fit(r, t.size-t.budget.of(old))
	t.rows[k] = r
	t.mu.Unlock()
	t.changed(old, r)
}

// refresh puts a row that came by other ways than the watch: it never brings back what
// the watch saw go.
func (t *table[T]) refresh(r *T) { t.put(r, true) }

// newer compares resource versions; what cannot be compared counts as newer.
func newer(version, than string) bool {
	c, err := resourceversion.CompareResourceVersion(version, than)
	return err != nil || c > 0
}

// changed tells of a change from old to r, either of which may be nil.
func (t *table[T]) changed(old, r *T) {
	if len(t.notify) == 0 {
		return
	}
	told := func(row *T) {
		ref, _ := t.id(row)
		for _, f := range t.notify {
			f(ref)
		}
	}
	switch {
	case r == nil:
		told(old)
	case old == nil:
		told(r)
	default:
		oldRef, _ := t.id(old)
		ref, _ := t.id(r)
		if oldRef.UID != ref.UID {
			told(old)
		}
		if !t.same(old, r) {
			told(r)
		}
	}
}

// same compares rows but for their resource versions, in which most changes end.
func (t *table[T]) same(a, b *T) bool {
	return reflect.DeepEqual(t.unversioned(*a), t.unversioned(*b))
}

// trimmed is a row on its way through the Reflector's own store, which wants metadata.
type trimmed[T any] struct {
	metav1.ObjectMeta
	row *T
}

// Transformer implements cache.TransformingStore: while a list is streamed, too, only rows
// are kept. It is asked for anew for each list.
func (t *table[T]) Transformer() cache.TransformFunc {
	size := 0
	return func(o any) (any, error) {
		if _, done := o.(*trimmed[T]); done {
			return o, nil
		}
		row, err := t.trim(o)
		if err != nil {
			return nil, err
		}
		row, size = t.budget.fit(row, size)
		ref, version := t.id(row)
		return &trimmed[T]{metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, ResourceVersion: version}, row}, nil
	}
}

func (t *table[T]) rowOf(o any) (*T, error) {
	if done, ok := o.(*trimmed[T]); ok {
		return done.row, nil
	}
	return t.trim(o)
}

// Add implements cache.ReflectorStore.
func (t *table[T]) Add(o any) error {
	r, err := t.rowOf(o)
	if err != nil {
		return err
	}
	t.put(r, false)
	return nil
}

// Update implements cache.ReflectorStore.
func (t *table[T]) Update(o any) error { return t.Add(o) }

// Delete implements cache.ReflectorStore.
func (t *table[T]) Delete(o any) error {
	r, err := t.rowOf(o)
	if err != nil {
		return err
	}
	ref, _ := t.id(r)
	k := key{ref.Namespace, ref.Name}
	t.mu.Lock()
	old := t.rows[k]
	delete(t.rows, k)
	t.size -= t.budget.of(old)
	t.mu.Unlock()
	if old != nil {
		t.changed(old, nil)
	}
	return nil
}

// Replace implements cache.ReflectorStore: a complete list.
func (t *table[T]) Replace(list []any, _ string) error {
	rows, size := make(map[key]*T, len(list)), 0
	for _, o := range list {
		r, err := t.rowOf(o)
		if err != nil {
			return err
		}
		ref, _ := t.id(r)
		rows[key{ref.Namespace, ref.Name}], size = t.budget.fit(r, size)
	}
	t.mu.Lock()
	old := t.rows
	t.rows, t.size = rows, size
	first := !t.filled
	t.filled = true
	t.mu.Unlock()
	for k, r := range old {
		if rows[k] == nil {
			t.changed(r, nil)
		}
	}
	for k, r := range rows {
		t.changed(old[k], r)
	}
	if first {
		close(t.complete)
	}
	return nil
}

// Resync implements cache.ReflectorStore; there is nothing to do.
func (t *table[T]) Resync() error { return nil }
