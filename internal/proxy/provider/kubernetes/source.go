package kubernetes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// source is one kind of object to follow.
type source struct {
	what  string
	list  func(ctx context.Context, c *conn, o metav1.ListOptions) ([]metav1.Object, metav1.ListMeta, error)
	watch func(ctx context.Context, c *conn, o metav1.ListOptions) (watch.Interface, error)
}

func podSource(ns string) source {
	return source{
		what: "Pods",
		list: func(ctx context.Context, c *conn, o metav1.ListOptions) ([]metav1.Object, metav1.ListMeta, error) {
			l, err := c.core.CoreV1().Pods(ns).List(ctx, o)
			if err != nil {
				return nil, metav1.ListMeta{}, err
			}
			all := make([]metav1.Object, len(l.Items))
			for i := range l.Items {
				all[i] = &l.Items[i]
			}
			return all, l.ListMeta, nil
		},
		watch: func(ctx context.Context, c *conn, o metav1.ListOptions) (watch.Interface, error) {
			return c.core.CoreV1().Pods(ns).Watch(ctx, o)
		},
	}
}

func serviceSource(ns string) source {
	return source{
		what: "Services",
		list: func(ctx context.Context, c *conn, o metav1.ListOptions) ([]metav1.Object, metav1.ListMeta, error) {
			l, err := c.core.CoreV1().Services(ns).List(ctx, o)
			if err != nil {
				return nil, metav1.ListMeta{}, err
			}
			all := make([]metav1.Object, len(l.Items))
			for i := range l.Items {
				all[i] = &l.Items[i]
			}
			return all, l.ListMeta, nil
		},
		watch: func(ctx context.Context, c *conn, o metav1.ListOptions) (watch.Interface, error) {
			return c.core.CoreV1().Services(ns).Watch(ctx, o)
		},
	}
}

var (
	_ metav1.Object = (*corev1.Pod)(nil)
	_ metav1.Object = (*corev1.Service)(nil)
)
