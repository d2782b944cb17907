package client

import "time"

// Proxy is one egress proxy as the desk shows it. It never holds credentials:
// those are handed out with a lease only.
type Proxy struct {
	// Namespace and Name are the Proxy object's.
	Namespace string `json:"namespace" doc:"Namespace of the Proxy object." example:"crawl"`
	Name      string `json:"name" doc:"Name of the Proxy object." example:"home-1"`
	// Provider is the configured provider that makes its machine.
	Provider string `json:"provider" doc:"Configured provider that makes its machine." example:"local"`
	// Phase is Pending, Provisioning, Ready, Unhealthy, Failed or Terminating.
	Phase string `json:"phase" doc:"Pending, Provisioning, Ready, Unhealthy, Failed or Terminating." example:"Ready"`
	// Ready is whether requests through it work now.
	Ready bool `json:"ready" doc:"Whether requests through it work now."`
	// Address and Port are where clients reach it: an IP address or host name,
	// and a TCP port. Empty and 0 until they are known.
	Address string `json:"address,omitempty" doc:"IP address or host name where clients reach it; absent until known." example:"192.0.2.10"`
	Port    int    `json:"port,omitempty" doc:"TCP port where clients reach it; absent until known." example:"3128"`
	// Protocol is what clients speak to it: http, https or socks5.
	Protocol string `json:"protocol,omitempty" doc:"What clients speak to it: http, https or socks5." example:"http"`
	// ExitIP is the address that target sites see; empty when the health URL
	// does not report it.
	ExitIP string `json:"exitIP,omitempty" doc:"Address that target sites see; absent when unknown." example:"203.0.113.7"`
	// ExitIPShared is how many other proxies of the namespace leave by the same
	// address: to a site they are one.
	ExitIPShared int `json:"exitIPShared,omitempty" doc:"How many other proxies of the namespace leave by the same address: to a site they are one." example:"2"`
	// Leaks are the headers with which it tells sites that it is a proxy; empty
	// when there are none, and nil when that is not known.
	Leaks *[]string `json:"leaks,omitempty" doc:"Headers with which it tells sites that it is a proxy: empty for none, absent when that is not known." example:"[\"Via\"]"`
	// LatencyMilliseconds is how long a request through it usually takes to its
	// first byte, rounded up to 125, 250, 500, 1000, 2000, 4000 or 8000; 0 when
	// unknown.
	LatencyMilliseconds int `json:"latencyMilliseconds,omitempty" doc:"How long a request through it usually takes to its first byte, rounded up to 125, 250, 500, 1000, 2000, 4000 or 8000; absent when unknown." example:"250"`
	// ChecksPassedPercent is how many of its last checks passed, rounded down to
	// 0, 25, 50, 75, 90 or 100; nil when unknown.
	ChecksPassedPercent *int `json:"checksPassedPercent,omitempty" doc:"How many of its last checks passed, rounded down to 0, 25, 50, 75, 90 or 100; absent when unknown." example:"100"`
	// Host is where the provider put it, in the provider's own words.
	Host string `json:"host,omitempty" doc:"Host or zone where the provider put it." example:"kvm-home"`
	// Labels are the Proxy object's; never nil in an answer.
	Labels map[string]string `json:"labels" nullable:"false" doc:"Labels of the Proxy object."`
	// Created is when the Proxy object was made (RFC 3339, UTC, seconds).
	Created time.Time `json:"created" doc:"When the Proxy object was made (RFC 3339)." example:"2026-01-02T15:04:05Z"`
	// Conditions say why it is in its phase; never nil in an answer.
	Conditions []Condition `json:"conditions" nullable:"false" doc:"Why it is in its phase."`
}

// Condition is one condition of a Proxy, in short.
type Condition struct {
	// Type is Provisioned, Healthy, Ready or Outdated.
	Type string `json:"type" doc:"Provisioned, Healthy, Ready or Outdated." example:"Healthy"`
	// Status is True, False or Unknown.
	Status string `json:"status" doc:"True, False or Unknown." example:"True"`
	// Reason is a CamelCase word of a closed list.
	Reason string `json:"reason" doc:"CamelCase word of a closed list." example:"ProbeSucceeded"`
	// Message is for people.
	Message string `json:"message,omitempty" doc:"For people."`
}

// ProxyList is one page of proxies, ordered by namespace and name.
type ProxyList struct {
	// Items has at most as many entries as the limit asked for; never nil in
	// an answer.
	Items []Proxy `json:"items" nullable:"false" doc:"Proxies ordered by namespace and name."`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty" doc:"Cursor of the next page; absent on the last one."`
}

// ProxyQuery selects and pages proxies. The zero value is the first page of
// all of them.
type ProxyQuery struct {
	// Namespace keeps one namespace.
	Namespace string
	// Selector is a label selector: "tier=eu,env in (a,b),!old".
	Selector string
	// Provider and Phase keep exact matches.
	Provider, Phase string
	// Limit is the page's size, 1 to 500; 0 leaves it to the server (100).
	Limit int
	// Cursor is the Next of the page before. It stays valid while proxies come
	// and go: a page goes on behind the last proxy of the one before.
	Cursor string
}
