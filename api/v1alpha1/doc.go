// Package v1alpha1 has the objects of group crawl.example.com: what people
// declare (Proxy, ProxyPool) and what the operator answers in their status.
//
// +kubebuilder:object:generate=true
// +groupName=crawl.example.com
package v1alpha1
