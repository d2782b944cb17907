// Package proxyset is the controller of ProxySet objects: it makes Proxies from
// a template, replaces them within bounds, and gives up those that are too many.
//
// What to do is decided by one pure function (plan) from what is known of the
// set's Proxies; the rest of the package looks and acts. docs/proxysets.md says
// what users may rely on.
package proxyset
