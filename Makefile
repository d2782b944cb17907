# The two commands to know: `make demo` and `make test`. Each does all of its own set-up.

# One set of build flags for everything: -trimpath and CGO_ENABLED are part of a package's build id, so another value
# anywhere would compile Kubernetes a second time. The race lane alone turns cgo on (hack/lanes).
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath -buildvcs=false
export GOWORK      := off

# Binaries without debugger tables are a third smaller; `make build LDFLAGS=` keeps them.
LDFLAGS ?= -s -w

DEMO_DATA ?= $(CURDIR)/.demo
GENERATED := api config

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-builtin-rules --no-print-directory
.PHONY: help demo qasight smoke test check bench bench-operator bench-leases bench-select bench-qasight bench-kvm waterfall drill-gcp drill-leases drill-operator generate drift fmt lint vuln build kube-assets kvm-images test-integration-kvm lanes clean \
	setup-go setup-demo setup-test setup-kvm setup-crawlers standalone controller-gen gofumpt golangci-lint

help: ## Print this help.
	@awk 'BEGIN { FS = ":.*## " } \
		/^[a-z][a-z-]*:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

## What people type

demo: setup-demo ## Start a Kubernetes API, the operator and three real proxies here.
	@[ -x bin/proxy-operator-standalone ] || \
		echo "The first build compiles a Kubernetes API server: about six minutes on two cores. Later runs start in seconds." >&2
	@$(MAKE) standalone kube-assets
	@exec bin/proxy-operator-standalone --demo --data-dir "$(DEMO_DATA)"

smoke: setup-go standalone ## The demo without a person: start, fetch through each proxy, stop.
	@go build -o bin/tools/ ./hack/smoke
	@bin/tools/smoke bin/proxy-operator-standalone

test: setup-test lanes ## Run every test that needs no root; ends with a table of lanes.
	@bin/tools/lanes test

check: setup-test lanes ## Run what CI runs: test, lint, drift of generated files, root lanes, smoke.
	@bin/tools/lanes check

bench: $(filter bench-%,$(shell sed -n 's/^\(bench-[a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))) ## Run every bench-… target; each prints lines "BENCH name value unit".

bench-operator: setup-go kube-assets ## Convergence, memory and calls with up to 1,000 Proxies; what one bad host of 50 costs the others.
	@go test -run "^$$" -bench "Operator|Isolation" -benchtime 1x -timeout 30m ./internal/proxy/controller/proxy ./test/fleet | grep --line-buffered -Ev "^(goos|goarch|pkg|cpu): |^(PASS|ok |Benchmark)"

bench-leases: setup-test ## Take and release by 1 to 256 clients, on SQLite and PostgreSQL, through the engine and through HTTP.
	@go test -run "^$$" -bench Leases -benchtime 1x -timeout 20m ./test/leases | grep --line-buffered -Ev "^(goos|goarch|pkg|cpu): |^(PASS|ok |Benchmark)"

bench-select: setup-test ## Pick proxies for targets: 100 and 10,000 proxies x 1,000 targets with bans, on SQLite and PostgreSQL.
	@go test -run "^$$" -bench Select -benchtime 1x -timeout 30m ./test/selection | grep --line-buffered -Ev "^(goos|goarch|pkg|cpu): |^(PASS|ok |Benchmark)"

bench-qasight: setup-go ## `qasight pool status` on 50 pools with 2,000 keys: wall time against the sum of the lists' own.
	@go test -run "^$$" -bench Status -benchtime 1x -timeout 10m ./internal/qasight/cli/poolcmd | grep --line-buffered -Ev "^(goos|goarch|pkg|cpu): |^(PASS|ok |Benchmark)"

waterfall: setup-go ## Simulate sites that ban by rate: good answers with our choice beside random, round robin and least recently used.
	@go test -count=1 -run '^TestWaterfall$$' -v -timeout 15m ./test/waterfall -print | grep --line-buffered -Ev "^(=== RUN|PASS|ok )"

drill-leases: setup-test ## Five minutes of random kills: 4 servers on one PostgreSQL, 200 clients, and a checker of what they saw.
	@go test -count=1 -run '^TestDrill$$' -v -timeout 15m ./test/leases -for 5m

drill-operator: setup-go kube-assets ## Kills at each effect of the operator, five minutes of random faults on two installations, and a site that is down.
	@go test -count=1 -v -timeout 40m ./test/fleet -for 5m | grep --line-buffered -E "DRILL|seed|^ *--- |^(FAIL|ok)"

drill-gcp: setup-go ## 200 instances at once on the fake Compute Engine with a quota of 20 calls a second: time, calls, refusals, no duplicate.
	@go test -count=1 -run '^TestDrillCreates$$' -v -timeout 15m ./internal/proxy/provider/gcp -quota 20 | grep --line-buffered -E "DRILL|^ *--- |^(FAIL|ok)"

bench-kvm: setup-go kvm-images ## Calls to libvirt of each operation, checks beside an upload on a slow link, an upload beside virsh's (root).
	@go test -tags=integration -run "^$$" -bench Real -benchtime 1x -timeout 20m ./internal/proxy/provider/kvm | grep --line-buffered -Ev "^(goos|goarch|pkg|cpu): |^(PASS|ok |Benchmark)"

test-integration-kvm: setup-go lanes $(if $(KVM_TEST_HOST),,kvm-images standalone kube-assets) ## Run the kvm provider against real libvirt hosts in namespaces (root), or against KVM_TEST_HOST.
	@$(if $(KVM_TEST_HOST),go test -tags=integration -count=1 -run '^TestForeignHost' -v -timeout 30m ./internal/proxy/provider/kvm,bin/tools/lanes check kvm)

generate: setup-go controller-gen ## Write deep copies, CRDs and roles anew from the markers in the code.
	@bin/tools/controller-gen object paths=./api/... crd output:crd:artifacts:config=config/crd/bases
	@bin/tools/controller-gen rbac:roleName=proxy-operator paths=./internal/proxy/operator output:rbac:dir=config/rbac

drift: controller-gen ## Fail when generated files are out of date.
	@MAKE="$(MAKE)" hack/drift.sh $(GENERATED)

fmt: setup-go gofumpt ## Format all Go files.
	@bin/tools/gofumpt -w .

lint: setup-go golangci-lint ## Run golangci-lint over all modules.
	@bin/tools/golangci-lint run ./...
	@cd standalone && ../bin/tools/golangci-lint run --config ../.golangci.yml ./...
	@cd hack/kvm/tinyguest && ../../../bin/tools/golangci-lint run --config ../../../.golangci.yml ./...

vuln: setup-go ## Look known vulnerabilities up (needs vuln.go.dev, or GOVULNDB=file:///a/mirror).
	@cd tools/vuln && go build -o ../../bin/tools/ tool
	@bin/tools/govulncheck -db "$${GOVULNDB:-https://vuln.go.dev}" ./...

qasight: setup-go ## Build bin/qasight alone.
	@hack/progress.sh "building qasight" go build -v -ldflags="$(LDFLAGS)" -o bin/ ./cmd/qasight
	@echo "built bin/qasight"

build: setup-go standalone ## Build the programs into bin/.
	@hack/progress.sh "building proxy-operator and qasight" go build -v -ldflags="$(LDFLAGS)" -o bin/ ./cmd/...

kube-assets: setup-go ## Build etcd, kube-apiserver and kubectl into bin/k8s/ (for tests and for you).
	@hack/kube-assets.sh

kvm-images: setup-go setup-kvm ## Build the disks of the real lane's guests (kept in ~/.cache/fleetdesk; see hack/kvm/images.sh).
	@hack/kvm/images.sh

clean: ## Remove what builds left in bin/ (the demo's data in .demo/ stays).
	rm -rf bin

## What they are made of. No stamps: go knows what is up to date, and says so in under a second.

setup-go:
	@hack/setup.sh go certs
setup-demo:
	@hack/setup.sh go certs curl
setup-test:
	@hack/setup.sh go certs curl cc python postgresql
setup-kvm:
	@hack/setup.sh kvm
setup-crawlers:
	@hack/setup.sh go crawlers && test/crawlers/npm/install.sh

standalone:
	@cd standalone && ../hack/progress.sh "building proxy-operator-standalone" go build -v -ldflags="$(LDFLAGS)" -o ../bin/ ./cmd/...

lanes:
	@go build -o bin/tools/ ./hack/lanes

controller-gen:
	@cd tools/gen && ../../hack/progress.sh "building controller-gen" go build -v -o ../../bin/tools/ tool
gofumpt:
	@cd tools/lint && ../../hack/progress.sh "building gofumpt" go build -v -o ../../bin/tools/ mvdan.cc/gofumpt
golangci-lint:
	@cd tools/lint && ../../hack/progress.sh "building golangci-lint" go build -v -o ../../bin/tools/ tool
