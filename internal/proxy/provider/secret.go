package provider

// SecretRef names a Secret and a key in it, in the operator's own namespace.
type SecretRef struct{ Name, Key string }
