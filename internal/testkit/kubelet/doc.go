// Package kubelet stands in for nodes, their kubelets and the scheduler beside
// a real API server that has none of them.
//
// It registers Nodes, binds Pods of one namespace to them, and runs each Pod's
// only container as a forward proxy: a real local process on an address of its
// own in 127.64.0.0/10, with the port that the Pod's container has and the users
// that are in the Secret that it mounts. The Pod's probes are run for real, as
// commands on this machine; what they find becomes the Pod's status. Processes
// end with their Pods, and all of them with the test.
//
//	func TestMain(m *testing.M) {
//		kubelet.Child(os.Args) // does not return in a proxy's process
//		…
//	}
//
//	k := kubelet.Start(t, kubelet.Options{Config: cfg, Namespace: ns})
//
// What it cannot show: containers, images and network namespaces. Every image
// is the same proxy; 127.0.0.1 in a container's environment becomes the Pod's
// address. A proxy here reaches loopback, where tests have their origins, which
// a real one refuses.
package kubelet
