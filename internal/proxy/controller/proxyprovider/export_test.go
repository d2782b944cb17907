package proxyprovider

// Waiting is how many changes of a provider's abandoned instances wait for
// their turn.
func Waiting(r *Reconciler, name string) int {
	b := r.book(name)
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}
