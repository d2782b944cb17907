package proxyprovider

// Waiting is how many changes of a provider's abandoned instances wait for
// their turn.
func Waiting(r *Reconciler, name string) int {
	b := r.open(name)
	defer r.close(name, b)
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// Remembered is how many things are kept in memory of providers.
func Remembered(r *Reconciler) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.asked) + len(r.books) + len(r.others) + len(r.untold)
}
