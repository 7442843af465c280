# Every target works on a fresh clone with nothing installed but Go, make, bash
# and git. The tools are built by Go at the pinned versions below.

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

GO            ?= go
GOLANGCI_LINT ?= $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
SYFT          ?= $(GO) run github.com/anchore/syft/cmd/syft@v1.57.1
BENCHSTAT     ?= $(GO) run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
APIDIFF       ?= $(GO) run golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e

# A folder whose files `make run` sends; empty: samples that the program generates.
DIR :=
# The steps of CI that `make check` runs, and the parts that `make torture` runs; empty: all of them.
STEP :=
PART :=
# With anything in it, make test has the race detector.
RACE :=
# What `make dist` builds.
TARGETS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
# What `make fuzz` spends on each fuzz target after the build, in seconds.
FUZZSECONDS ?= 20
# The commit that `make apidiff` compares with; empty: where this branch left main, or on
# main the commit before.
BASE      ?=
# Benchmarks that `make bench` runs, how often, and for how long each time.
BENCH     ?= .
COUNT     ?= 6
BENCHTIME ?= 500ms

# Of `make torture`. How many messages a row of the fault matrix sends: a multiple of 200.
MESSAGES  ?= 2000
# How many seeds of chaos (one with SEED), with how many messages each.
SEEDS     ?= $(if $(SEED),1,20)
N         ?= 20000
# How long the soak takes, and how many messages it sends per second.
T         ?= 30m
RATE      ?= 200
# How many random runs of order there are in memory, and for each sink and ingest.
PROGRAMS  ?= 1000
ORDER     ?= 20
# How often ha does what, with which TTL of the lease and how many messages per second, for how long
# NATS is away, and what is added to the bounds of its figures; how far the clocks of the two are apart
# in the rows about that (empty: without these rows), and how many runs of a row are made at a time.
RUNS      ?= 30
TTL       ?= 5s
HARATE    ?= 2000
AWAY      ?= 60s
SLACK     ?= 0s
CLOCKS    ?= 1h
TOGETHER  ?= 1

# $(call build,WHAT,HOW LONG,COMMAND) runs a command that builds WHAT, and says so, also every ten
# seconds while it takes. It ends the recipe when the command fails. The ticker holds no output
# open, so that nobody who reads that waits for it.
define build
echo 'building $(1), $(2) the first time' >&2; \
while sleep 10 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do echo "still building, $$SECONDS s" >&2; done & \
ticker=$$!; trap 'kill $$ticker 2>/dev/null || true' EXIT; \
$(3); \
kill $$ticker 2>/dev/null || true; trap - EXIT
endef

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET [VARIABLE=value]\n"} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: ## Send farm files through the gateway into JetStream (DIR=path: your own files)
	@dir="$$(mktemp -d)"; \
	$(call build,the program,a minute,$(GO) build -o "$$dir/agrimill" ./cmd/agrimill || { rm -r "$$dir"; exit 1; }); \
	trap 'rm -r "$$dir"' EXIT; \
	"$$dir/agrimill" demo --once --config "$$dir/demo.yaml" --address 127.0.0.1:0 $(if $(strip $(DIR)),--files '$(DIR)')

# Tests wait more than they compute, so five packages run at a time, with four tests each, on
# however few cores. The packages that take longest are named first, because go test starts
# them in this order: in alphabetical order, the last of them would run alone. Everything is
# compiled before, so that no test runs beside a compiler. The race detector makes tests compute four times
# as long and needs a C compiler, so it has a run of its own, in CI as well, without what has no goroutines
# or measures memory. A program with it waits a second at its end for a race of what still runs: nothing
# does at the end of a test. secretcheck prints what go test would, with the command that repeats a
# failure, and fails when a line tells a secret.
LONGEST := ./subscriber/internal/core ./cmd/agrimill/internal/pipeline ./subscriber ./cmd/agrimill/internal/command ./internal/test/endtoend \
	./sources/kafka ./sinks/kafka ./sinks/nats ./sources/nats ./internal/test/peakmem ./farmdata/content ./publisher ./router ./sinks ./gateway
UNRACED := /subscriber/internal/core$$|/farmdata/(content|geo|isoxml)(/|$$)|/internal/test/(archtest|peakmem)$$|/internal/tool/

.PHONY: test
test: ## Run every test; no output may tell a secret (RACE=1: with the race detector)
	@test="$(GO) test$(if $(RACE), -race)"; \
	packages="$$({ printf '%s\n' $(LONGEST); $(GO) list ./...; } | grep -vE '$(if $(RACE),$(UNRACED),^$$)' | tr '\n' ' ')"; \
	$(call build,the tests,four minutes,$(GO) list -e -export -test $(if $(RACE),-race) $$packages >/dev/null 2>&1 || true); \
	GORACE=atexit_sleep_ms=0 $$test -vet=off -p 5 -parallel 4 -timeout 30m -json $$packages | \
		$(GO) run ./internal/tool/secretcheck -repeat "$$test"

.PHONY: check
check: ## Everything that CI runs; STEP=kafka: a step (.ci/run --list)
	@bash .ci/run $(STEP)

.PHONY: lint
lint: ## Run golangci-lint (pinned, built by Go)
	$(GOLANGCI_LINT) run ./...
	cd cmd/agrimill/deploy/linttest && $(GOLANGCI_LINT) run -c ../../../../.golangci.yml ./...
	cd internal/test/outbox && $(GOLANGCI_LINT) run -c ../../../.golangci.yml ./...

.PHONY: fmt
fmt: ## Format the Go files
	gofmt -w $$(git ls-files '*.go')

.PHONY: dist
dist: ## Build dist/: binaries for TARGETS, each with its SBOM; licenses, checksums
	@$(call build,the binaries and syft,ten minutes,$(GO) run ./internal/tool/dist -o dist -sbom '$(SYFT)' $(TARGETS))

# A shallow clone may lack the commit before; one that cannot be fetched, as in a repository
# of one commit, leaves nothing to compare.
.PHONY: apidiff
apidiff: ## List incompatible changes of the Go API since BASE; each needs an entry in CHANGELOG.md
	@base='$(BASE)'; head="$$(git rev-parse HEAD)"; \
	for main in origin/main main; do base="$${base:-$$(git merge-base HEAD "$$main" 2>/dev/null || true)}"; done; \
	if [ -z "$$base" ] || [ "$$base" = "$$head" ]; then \
		git rev-parse -q --verify HEAD^ >/dev/null || git fetch -q --deepen=1 || true; \
		base="$$(git rev-parse -q --verify HEAD^)" || { echo "==> NOT RUN: there is no commit before HEAD to compare with"; exit 0; }; \
	fi; \
	dir="$$(mktemp -d)"; trap 'rm -rf "$$dir"' EXIT; mkdir "$$dir/base"; \
	git archive "$$base" | tar -x -C "$$dir/base"; \
	echo "API compared with $$(git log -1 --format='%h %s' "$$base")"; \
	(cd "$$dir/base" && $(APIDIFF) -m -w "$$dir/api" github.com/agrimill/agrimill); \
	$(APIDIFF) -m -incompatible "$$dir/api" github.com/agrimill/agrimill >"$$dir/changes" 2> >(grep -v '^Ignoring internal' >&2); \
	$(GO) run ./internal/tool/apicheck CHANGELOG.md <"$$dir/changes"

# Each package with targets is built once. A target runs in rounds of a number of inputs until
# its time is over: a run that is given a time may report its end as a failure. Targets whose
# inputs are requests (FuzzHTTP...) have smaller rounds. What fails is kept in testdata/fuzz.
.PHONY: fuzz
fuzz: ## Run every fuzz target for at least FUZZSECONDS (default 20)
	@dir="$$(mktemp -d)"; trap 'rm -rf "$$dir"' EXIT; cache="$$($(GO) env GOCACHE)/fuzz"; \
	declaration='^func Fuzz[A-Za-z0-9]+'; \
	grep -rlE "$$declaration" --include='*_test.go' . | xargs -n 1 dirname | sort -u >"$$dir/packages"; \
	while read -r pkg; do \
		$(GO) test -c -fuzz . -o "$$dir/fuzz.test" "$$pkg"; \
		for target in $$(grep -hoE "$$declaration" "$$pkg"/*_test.go | cut -d ' ' -f 2); do \
			echo "fuzz $$pkg $$target"; \
			case $$target in FuzzHTTP*) round=500x;; *) round=5000x;; esac; \
			end=$$((SECONDS + $(FUZZSECONDS))); \
			while [ $$SECONDS -lt $$end ]; do \
				(cd "$$pkg" && "$$dir/fuzz.test" -test.run '^$$' -test.fuzz "^$$target\$$" -test.fuzztime $$round \
					-test.fuzzminimizetime 1s -test.fuzzcachedir "$$cache/$${pkg#./}") </dev/null; \
			done; \
		done; \
	done <"$$dir/packages"

.PHONY: bench
bench: ## Print the medians of COUNT (6) runs of the benchmarks, by benchstat: 6 minutes
	@{ for ((i = 0; i < $(COUNT); i++)); do \
		$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -cpu 1 ./internal/test/bench || exit; \
	done; \
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 1x ./internal/test/peakmem; } \
	| tee /dev/stderr | $(BENCHSTAT) -

# Everything in its whole length. A part is a target torture-PART below.
PARTS := core identity order power faults partial-faults chaos stress yield order-kafka soak ha taskdata peer

.PHONY: torture
torture: ## Everything whole, for hours; PART=chaos SEED=7: a part, of which CONTRIBUTING.md has a list
	@for part in $(or $(PART),$(PARTS)); do echo "==> $$part"; $(MAKE) --no-print-directory "torture-$$part"; done

.PHONY: $(PARTS:%=torture-%)

# A million random programs for the core of the subscriber, and each mutant of it.
torture-core:
	$(GO) test -count 1 -timeout 24h ./subscriber/internal/core -programs 1000000 -mutants

# 100,000 random programs against the rules of docs/identity.md, 1,000 with each broker, and each mutant.
torture-identity:
	$(GO) test -count 1 -timeout 1h -parallel 8 ./internal/test/identitytest -programs 100000 -jetstream 1000 -kafka 1000 -switches 300 -mutants

# Several messages of a key on their way: random runs in memory, and with each broker while it is cut,
# frozen, full and restarted, with three servers whose leader moves, and on the way back. Runs wait more
# than they compute, so eight are made at a time, but for those with three servers.
torture-order:
	$(GO) test -race -vet=off -count 1 -timeout 30m -parallel 8 -run '^TestPipelinedPrograms$$' ./router -pipelined $(PROGRAMS)
	$(GO) test -race -vet=off -count 1 -timeout 120m -parallel 8 -run '^TestOrder(InACluster|Out)?$$' ./internal/test/endtoend -order $(ORDER)

# The same with a real Kafka broker; needs JDK 17 and Maven.
torture-order-kafka:
	$(GO) test -race -tags kafkabroker -vet=off -count 1 -timeout 60m -run '^TestBrokerOrder$$' ./internal/test/endtoend -order $(ORDER)

# A nats-server whose power is cut 200 times with traffic: its files are made what it had synced. A third of the times agrimill is
# killed in the same moment. The same 20 times with one of three servers, with a Kafka broker, and with one of three; for Kafka it
# needs JDK 17, Maven and a C compiler. CUTS=5: fewer; SEED=7: from the round "seed 7" on.
torture-power:
	$(GO) test -tags powercut -vet=off -count 1 -timeout 120m -v ./internal/test/powercut -cuts $(or $(CUTS),200) -seed $(or $(SEED),1)

FAULTS       := $(GO) test -race -tags faults -count 1 -timeout 40m -json
FAULTS_CHECK := $(GO) run ./internal/tool/secretcheck -repeat '$(GO) test -race -tags faults'

# Every row of the fault matrix but the partial faults. They wait more than they compute, so four run at a
# time, each in a process of its own.
torture-faults:
	MESSAGES=$(MESSAGES) $(FAULTS) -parallel 4 -skip '^TestPartialFaults$$' ./internal/test/faulttest | $(FAULTS_CHECK)

# One thing is broken at a time, and what the others keep is measured: wants a quiet machine.
torture-partial-faults:
	$(FAULTS) -run '^TestPartialFaults$$' ./internal/test/faulttest | $(FAULTS_CHECK)
	$(GO) test -tags faults -count 1 -timeout 10m -json -run '^TestTenThousandTenants$$' ./internal/test/faulttest | $(GO) run ./internal/tool/secretcheck -repeat '$(GO) test -tags faults'

# Random faults. SEED=7 repeats those of seed 7; KILL=0: without kill -9.
torture-chaos:
	SEEDS=$(SEEDS) N=$(N) $(if $(SEED),SEED=$(SEED)) $(if $(KILL),KILL=$(KILL)) \
	$(GO) test -tags faults,chaos -count 1 -timeout 24h -run '^TestChaos$$' -v ./internal/test/faulttest \
	| { grep --line-buffered -v -e 'level=' -e '^=== ' || true; }

# Memory, goroutines and throughput over time; BROKER=kafka: with that broker.
torture-soak:
	T=$(T) RATE=$(RATE) $(if $(BROKER),BROKER=$(BROKER)) \
	$(GO) test -tags faults,soak -count 1 -timeout 24h -run '^TestSoak$$' -v ./internal/test/faulttest \
	| { grep --line-buffered -v -e 'level=' -e '^=== ' || true; }

# Builds in which goroutines give way at random: tests of what has goroutines, with one and more processors.
# SEED=7: once, with the places of seed 7; PKG=./router: of one package.
YIELD := ./subscriber ./router ./internal/keyqueue ./sources/nats ./gateway ./publisher
torture-yield:
	@dir="$$(mktemp -d)"; trap 'rm -rf "$$dir"' EXIT; \
	$(GO) run ./internal/tool/yield -o "$$dir" $(YIELD); \
	for seed in $(or $(SEED),1 2 3 4 5); do echo "seed $$seed"; \
		YIELD_SEED=$$seed $(GO) test -overlay "$$dir/overlay.json" -race -vet=off -cpu 1,2,4 -count 1 -timeout 30m $(or $(PKG),$(YIELD)); \
	done

# The stress variant of Watermill's Pub/Sub suite.
torture-stress:
	$(GO) test -race -tags stress -timeout 30m -run Stress ./subscriber

# Takes life, time, NATS and the gateway from one of two instances under load, and prints figures: wants
# a quiet machine.
torture-ha:
	RUNS=$(RUNS) TTL=$(TTL) RATE=$(HARATE) AWAY=$(AWAY) SLACK=$(SLACK) CLOCKS=$(CLOCKS) \
	$(GO) test -tags ha -count 1 -timeout 24h -parallel $(TOGETHER) -run '^Test(HighAvailability|KilledConsumer)$$' -v ./cmd/agrimill/internal/command \
	| { grep --line-buffered -v -e '^=== ' || true; }

# A million random sets of TaskData are written and read again.
torture-taskdata:
	$(GO) test -count 1 -timeout 4h -run '^TestWriteOfRandomSets$$' ./farmdata/isoxml -sets 1000000

# Farm data record by record, and in speed, beside the npm package isoxml, which also reads what was written; GeoParquet opened elsewhere.
# Needs Node with npm, the files in ../shared/data, and PYTHON (python3) with isoxml, GeoPandas and DuckDB; says
# loudly what is absent.
torture-peer:
	$(GO) test -tags peer -count 1 -timeout 10m -run '^TestPeer' -v ./farmdata/isoxml ./farmdata/geo/geoparquet ./router/farm/internal/prescription
