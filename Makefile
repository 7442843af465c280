# Every target works on a fresh clone with nothing installed but Go, make, bash
# and git. The tools are built by Go at the pinned versions below.

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

GO            ?= go
GOLANGCI_LINT ?= $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# A folder whose files `make run` sends; empty: samples that the program generates.
DIR :=
# What `make fuzz` spends on each fuzz target after the build, in seconds.
FUZZSECONDS ?= 20
# How many seeds `make chaos` runs (one with SEED), with how many messages each.
SEEDS     ?= $(if $(SEED),1,20)
N         ?= 20000
# How long `make soak` takes, and how many messages it sends per second.
T         ?= 30m
RATE      ?= 200
# Where `make test-browser` leaves its pictures.
SCREENSHOTS ?= artifacts
# Benchmarks that `make bench` runs, how often, and for how long each time.
BENCH     ?= .
COUNT     ?= 5
BENCHTIME ?= 500ms

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET [VARIABLE=value]\n"} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: ## Send farm files through the gateway into JetStream (DIR=path: your own files)
	@$(GO) run ./examples/quickstart $(if $(strip $(DIR)),-dir '$(DIR)')

# secretcheck prints what go test would, and fails when a line tells a secret.
.PHONY: test
test: ## Vet, then run every test with the race detector; no output may tell a secret
	$(GO) vet ./...
	$(GO) test -race -timeout 5m -json ./... | $(GO) run ./internal/secretcheck

.PHONY: test-kafka
test-kafka: ## Test against a real Kafka broker (needs JDK 17 and Maven, or KAFKA_BROKERS=host:port)
	$(GO) vet -tags kafkabroker ./sinks/kafka/... ./internal/kafkatest/...
	$(GO) test -race -tags kafkabroker -count 1 -timeout 15m -run '^TestBroker' ./sinks/kafka/...

.PHONY: test-browser
test-browser: ## Test the bridge and its status page in Chromium; pictures go to SCREENSHOTS (artifacts)
	$(GO) vet -tags browser ./internal/browsertest ./examples/bridge/...
	mkdir -p '$(SCREENSHOTS)'
	SCREENSHOTS='$(abspath $(SCREENSHOTS))' \
	$(GO) test -race -tags browser -count 1 -timeout 10m -run '^TestBrowser' ./examples/bridge/...

# A module of its own, because the libraries that read these files are many.
.PHONY: test-deploy
test-deploy: ## Check the deployment files of the bridge with the libraries of the programs that read them
	cd examples/bridge/deploy/linttest && $(GO) vet ./... && $(GO) test -count 1 ./...

.PHONY: lint
lint: ## Run golangci-lint (pinned, built by Go)
	$(GOLANGCI_LINT) run ./...
	cd examples/bridge/deploy/linttest && $(GOLANGCI_LINT) run -c ../../../../.golangci.yml ./...

.PHONY: fmt
fmt: ## Format the Go files
	gofmt -w $$(git ls-files '*.go')

.PHONY: fmt-check
fmt-check:
	@unformatted="$$(gofmt -l $$(git ls-files '*.go'))"; \
	if [ -n "$$unformatted" ]; then printf 'gofmt would change:\n%s\n' "$$unformatted"; exit 1; fi

.PHONY: tidy-check
tidy-check:
	$(GO) mod tidy -diff
	cd examples/bridge/deploy/linttest && $(GO) mod tidy -diff

# `go test -list` prints the targets of a package and then its "ok" line, so
# every target is paired with the package that follows it. A target runs in
# rounds of a number of inputs until its time is over: go test may report the end
# of a time it was given as a failure of the target. Targets whose inputs are
# requests (FuzzHTTP...) have smaller rounds.
.PHONY: fuzz
fuzz: ## Run every fuzz target for at least FUZZSECONDS (default 20)
	@$(GO) test -race -list '^Fuzz' ./... \
	| awk '/^Fuzz/ {name[++n] = $$1} /^ok/ {for (i = 1; i <= n; i++) print $$2, name[i]; n = 0}' \
	| while read -r pkg target; do \
		echo "fuzz $$pkg $$target"; \
		end=$$((SECONDS + $(FUZZSECONDS))); \
		case $$target in FuzzHTTP*) round=2000x;; *) round=20000x;; esac; \
		while [ $$SECONDS -lt $$end ]; do \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $$round -fuzzminimizetime 1s "$$pkg" </dev/null; \
		done; \
	done

.PHONY: stress
stress: ## Run the stress variant of Watermill's Pub/Sub suite (several minutes)
	$(GO) test -race -tags stress -timeout 30m -run Stress ./subscriber

.PHONY: faults
faults: ## Run every row of docs/fault-matrix.md once, with the race detector (4 minutes)
	$(GO) vet -tags faults,chaos,soak ./internal/faulttest
	$(GO) test -race -tags faults -count 1 -timeout 10m -json ./internal/faulttest | $(GO) run ./internal/secretcheck

# `make chaos SEED=7` repeats the faults of seed 7.
.PHONY: chaos
chaos: ## Run random faults: SEEDS (20) of them, N (20000) messages each; KILL=0: without kill -9
	SEEDS=$(SEEDS) N=$(N) $(if $(SEED),SEED=$(SEED)) $(if $(KILL),KILL=$(KILL)) \
	$(GO) test -tags faults,chaos -count 1 -timeout 24h -run '^TestChaos$$' -v ./internal/faulttest \
	| { grep --line-buffered -v -e 'level=' -e '^=== ' || true; }

.PHONY: soak
soak: ## Print memory, goroutines and throughput over the time T (30m), RATE (200) messages per second
	T=$(T) RATE=$(RATE) $(if $(BROKER),BROKER=$(BROKER)) \
	$(GO) test -tags faults,soak -count 1 -timeout 24h -run '^TestSoak$$' -v ./internal/faulttest \
	| { grep --line-buffered -v -e 'level=' -e '^=== ' || true; }

.PHONY: bench
bench: ## Print benchmarks beside floors and aims: medians of COUNT (5) runs, 5 minutes
	@{ for ((i = 0; i < $(COUNT); i++)); do \
		$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -cpu 1 ./internal/bench || exit; \
	done; \
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 1x ./internal/peakmem; } \
	| $(GO) run ./internal/bench/report

.PHONY: check
check: ## Everything that CI runs, in the same order
	@bash .ci/run
