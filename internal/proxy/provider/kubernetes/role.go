package kubernetes

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Role is all that a provider may do, in its namespace alone: with a Service for
// each instance, or without. docs/kubernetes-provider.md shows it.
func Role(namespace string, service bool) *rbacv1.Role {
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "fleetdesk-provider", Namespace: namespace}}
	for _, r := range rights(service) {
		last := len(role.Rules) - 1
		if last >= 0 && role.Rules[last].APIGroups[0] == r.group && role.Rules[last].Resources[0] == r.resource {
			role.Rules[last].Verbs = append(role.Rules[last].Verbs, r.verb)
			continue
		}
		rule := rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{r.resource}, Verbs: []string{r.verb}}
		if r.resource == namespaces {
			rule.ResourceNames = []string{namespace}
		}
		role.Rules = append(role.Rules, rule)
	}
	return role
}
