//go:build linux

package main

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// report serves at port 8099 what the seed held, byte for byte: GET
// /seed/user-data, /seed/meta-data, /seed/vendor-data, …; 404 for a file that it
// does not have. GET /seed/ lists them, a line each.
func report(s *seed) {
	files := map[string][]byte{}
	if s != nil {
		files = s.files
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /seed/{$}", func(w http.ResponseWriter, _ *http.Request) {
		var names []string
		for name := range files {
			names = append(names, name+"\n")
		}
		slices.Sort(names)
		_, _ = w.Write([]byte(strings.Join(names, "")))
	})
	mux.HandleFunc("GET /seed/{name}", func(w http.ResponseWriter, r *http.Request) {
		text, ok := files[r.PathValue("name")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(text)
	})
	server := http.Server{Addr: ":8099", Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	say("report: %v", server.ListenAndServe())
}
