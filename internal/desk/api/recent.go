package api

import (
	"container/list"
	"sync"
)

// recent is a map of at most size entries that forgets the one not used for
// longest. It is safe for concurrent use.
type recent[K comparable, V any] struct {
	size int

	mu    sync.Mutex
	order *list.List // of entry[K, V]; the latest first
	byKey map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func newRecent[K comparable, V any](size int) *recent[K, V] {
	return &recent[K, V]{size: max(1, size), order: list.New(), byKey: map[K]*list.Element{}}
}

func (r *recent[K, V]) get(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byKey[key]; ok {
		r.order.MoveToFront(e)
		return at[K, V](e).value, true
	}
	var zero V
	return zero, false
}

// getOrPut returns the entry's value, made by fresh when there is none.
func (r *recent[K, V]) getOrPut(key K, fresh func() V) V {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byKey[key]; ok {
		r.order.MoveToFront(e)
		return at[K, V](e).value
	}
	v := fresh()
	r.add(key, v)
	return v
}

func (r *recent[K, V]) put(key K, value V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byKey[key]; ok {
		e.Value = entry[K, V]{key, value}
		r.order.MoveToFront(e)
		return
	}
	r.add(key, value)
}

func (r *recent[K, V]) remove(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byKey[key]; ok {
		r.order.Remove(e)
		delete(r.byKey, key)
	}
}

func (r *recent[K, V]) add(key K, value V) {
	for r.order.Len() >= r.size {
		oldest := r.order.Back()
		r.order.Remove(oldest)
		delete(r.byKey, at[K, V](oldest).key)
	}
	r.byKey[key] = r.order.PushFront(entry[K, V]{key, value})
}

// at is what add and put stored in the list.
func at[K comparable, V any](e *list.Element) entry[K, V] {
	v, _ := e.Value.(entry[K, V])
	return v
}
