// Package kubernetes is the provider whose instances are Pods, in the
// operator's own cluster or in another one.
//
// A provider has one host: a namespace of one cluster, called
// "<cluster>/<namespace>". For each Proxy it makes there a Secret with the
// proxy's configuration, a Service where its section asks for one, and a Pod,
// in this order and under one name that comes from the Proxy's UID and the
// installation. All carry whose they are, in labels and in one annotation, from
// the moment they exist; the Pod is the instance, the others are parts of it.
//
// Get, Create and Delete read the API server itself. ListByTag answers from
// what a watch told, and asks the server for a sign of life each time: a list
// is whole while the server answers and the watch stands (decision 0026).
package kubernetes
