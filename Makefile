# Every target works on a fresh clone with nothing installed but Go, make, bash
# and git. The tools are built by Go at the pinned versions below.

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

GO            ?= go
GOLANGCI_LINT ?= $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
APIDIFF       ?= $(GO) run golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e

# A folder whose files `make run` sends; empty: samples that the program generates.
DIR :=
# What `make fuzz` spends on each fuzz target after the build, in seconds.
FUZZSECONDS ?= 20
# How many seeds `make chaos` runs (one with SEED), with how many messages each.
SEEDS     ?= $(if $(SEED),1,20)
N         ?= 20000
# How many messages a row of `make faults` sends: a multiple of 200.
MESSAGES  ?= 2000
# How long `make soak` takes, and how many messages it sends per second.
T         ?= 30m
RATE      ?= 200
# Where `make test-browser` leaves its pictures.
SCREENSHOTS ?= artifacts
# The commit that `make apidiff` compares with; empty: where this branch left main, or on
# main the commit before.
BASE      ?=
# How often `make ha` does what, with which TTL of the lease and how many messages per second, for
# how long NATS is away, and what is added to the bounds of its figures.
RUNS      ?= 30
TTL       ?= 5s
HARATE    ?= 2000
AWAY      ?= 60s
SLACK     ?= 0s
# How far the clocks of the two are apart in the rows about that (empty: without these rows), and
# how many runs of a row are made at a time.
CLOCKS    ?= 1h
TOGETHER  ?= 1
# How many random runs `make order` makes in memory, and for each sink and ingest.
PROGRAMS  ?= 1000
ORDER     ?= 20
# Benchmarks that `make bench` runs, how often, and for how long each time.
BENCH     ?= .
COUNT     ?= 5
BENCHTIME ?= 500ms

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
	$(call build,the program,a minute,$(GO) build -o "$$dir/quickstart" ./internal/quickstart || { rm -r "$$dir"; exit 1; }); \
	trap 'rm -r "$$dir"' EXIT; \
	"$$dir/quickstart" $(if $(strip $(DIR)),-dir '$(DIR)')

# Tests wait more than they compute, so five packages run at a time, with four tests each, on
# however few cores. The packages that take longest are named first, because go test starts
# them in this order: in alphabetical order, the last of them would run alone. Everything is
# compiled before, so that no test runs beside a compiler. The race detector is left to make long
# where a test only reads files, computes, or measures memory. secretcheck prints what go test
# would, with the command that repeats a failure, and fails when a line tells a secret.
LONGEST := ./subscriber ./sinks/kafka ./cmd/agrimill/... ./sinks/nats/kvstore ./sources/nats ./sinks/nats ./gateway ./internal/test/endtoend
ALONE   := ./farmdata/... ./internal/sse ./internal/test/archtest ./internal/test/speccheck ./internal/test/peakmem ./internal/tool/...
CHECKED := -vet=off -p 5 -parallel 4 -timeout 30m -json

.PHONY: test
test: ## Run every test, with the race detector where goroutines share anything; no output may tell a secret
	@raced="$(LONGEST) $$($(GO) list ./... | grep -vxF "$$($(GO) list $(ALONE))" | tr '\n' ' ')"; \
	compile() { $(GO) list -e -export -test "$$@" >/dev/null 2>&1; }; \
	$(call build,the tests,four minutes,{ compile -race $$raced; compile $(ALONE); } || true); \
	status=0; \
	$(GO) test -race $(CHECKED) $$raced | $(GO) run ./internal/tool/secretcheck -repeat '$(GO) test -race' || status=1; \
	$(GO) test $(CHECKED) $(ALONE) | $(GO) run ./internal/tool/secretcheck -repeat '$(GO) test' || status=1; \
	exit $$status

# A program promises its last line in its first comment.
.PHONY: examples
examples: ## Run each program in examples/ and compare its last line with the one that it promises
	@for dir in examples/*/; do \
		if [ ! -e "$$dir/main.go" ]; then $(GO) test -count 1 "./$$dir"; continue; fi; \
		want="$$(sed -n 's|^//\t\(OK: .*\)|\1|p' "$$dir/main.go")"; \
		got="$$($(GO) run "./$$dir" | tail -n 1)"; \
		echo "$$dir $$got"; \
		if [ -z "$$want" ] || [ "$$got" != "$$want" ]; then echo "$$dir promises: $$want" >&2; exit 1; fi; \
	done

.PHONY: test-kafka
test-kafka: ## Test against a real Kafka broker (needs JDK 17 and Maven, or KAFKA_BROKERS=host:port)
	$(GO) vet -tags kafkabroker ./sinks/kafka/... ./sources/kafka/... ./internal/testkit/kafkatest/... ./internal/test/identitytest ./internal/test/endtoend
	$(GO) vet -tags kafkabroker,reload ./cmd/agrimill/command
	$(GO) test -race -tags kafkabroker -count 1 -timeout 15m -run '^TestBroker' ./sinks/kafka/... ./sources/kafka/...
	$(GO) test -tags kafkabroker -count 1 -timeout 15m -parallel 8 -run '^TestBroker' ./internal/test/identitytest -kafka 150
	$(GO) test -race -tags kafkabroker -count 1 -timeout 15m -run '^TestBrokerOrder$$' ./internal/test/endtoend
	$(GO) test -tags kafkabroker,reload -count 1 -timeout 15m -parallel 2 -run '^Test(KilledConsumer|HighAvailability)$$/^(holder|standby|the_sink_is_in_Kafka)' ./cmd/agrimill/command

.PHONY: test-browser
test-browser: ## Test agrimill and its status page in Chromium, also with axe (needs npm, says so if it is absent); pictures go to SCREENSHOTS (artifacts)
	$(GO) vet -tags browser ./internal/testkit/browsertest ./cmd/agrimill/...
	mkdir -p '$(SCREENSHOTS)'
	SCREENSHOTS='$(abspath $(SCREENSHOTS))' \
	$(GO) test -race -tags browser -count 1 -timeout 10m -run '^TestBrowser' ./cmd/agrimill/...

# Needs Node with npm, the files in ../shared/data, and PYTHON (python3) with GeoPandas
# and DuckDB; says loudly what is absent.
.PHONY: test-farm-peer
test-farm-peer: ## Compare farm data, record by record and in speed, with the npm package isoxml; open GeoParquet elsewhere
	$(GO) vet -tags peer ./farmdata/...
	$(GO) test -tags peer -count 1 -timeout 10m -run '^TestPeer' -v ./farmdata/isoxml ./farmdata/geo/geoparquet

.PHONY: test-reload
test-reload: ## Reload and kill agrimill as real processes, with each dedup store, and one of two that share a consumer group (2 minutes)
	$(GO) vet -tags reload ./cmd/agrimill/command
	$(GO) test -tags reload -count 1 -timeout 10m -run '^Test(ReloadAndKill|KilledConsumer)$$' ./cmd/agrimill/command

# The figures want a quiet machine.
.PHONY: ha
ha: ## Take life, time, NATS and the gateway from one of two instances under load, RUNS (30) times each, and print figures (2 hours; RUNS=1: 10 minutes)
	$(GO) vet -tags reload ./cmd/agrimill/command
	$(GO) vet -tags stoppoints ./internal/stoppoint
	RUNS=$(RUNS) TTL=$(TTL) RATE=$(HARATE) AWAY=$(AWAY) SLACK=$(SLACK) CLOCKS=$(CLOCKS) \
	$(GO) test -tags reload -count 1 -timeout 24h -parallel $(TOGETHER) -run '^TestHighAvailability$$' -v ./cmd/agrimill/command \
	| { grep --line-buffered -v -e '^=== ' || true; }

# A module of its own, because the libraries that read these files are many.
.PHONY: test-deploy
test-deploy: ## Check the deployment files of agrimill with the libraries of the programs that read them
	cd cmd/agrimill/deploy/linttest && $(GO) vet ./... && $(GO) test -count 1 ./...

.PHONY: lint
lint: ## Run golangci-lint (pinned, built by Go)
	$(GOLANGCI_LINT) run ./...
	cd cmd/agrimill/deploy/linttest && $(GOLANGCI_LINT) run -c ../../../../.golangci.yml ./...

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
	cd cmd/agrimill/deploy/linttest && $(GO) mod tidy -diff

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

.PHONY: universal
universal: ## Run Watermill's Pub/Sub suite with all its messages; make test sends fewer (2 minutes)
	$(GO) test -race -vet=off -count 1 -timeout 10m -run '^Test(UniversalSuite(WithALease)?|RestartedGateway)$$' ./subscriber -universal
	$(GO) test -race -vet=off -count 1 -timeout 10m -run '^TestUniversalSuite$$' ./sources/nats -universal

.PHONY: long
long: ## Run whole what make test runs in a short form or without the race detector: 100,000 waiting items, reload with each pair of store and sink (3 minutes)
	$(GO) test -race -vet=off -count 1 -timeout 10m $(ALONE)
	$(GO) test -vet=off -count 1 -timeout 10m -run '^Test(Many|SharesShutManyKeys|.*QueueKeepsEverything)' ./subscriber ./router
	$(GO) test -race -vet=off -count 1 -timeout 10m -parallel 4 -run '^TestReloadKeepsWhatIsUsedOn$$' ./cmd/agrimill/pipeline -all-pairs

.PHONY: stress
stress: ## Run the stress variant of Watermill's Pub/Sub suite (several minutes)
	$(GO) test -race -tags stress -timeout 30m -run Stress ./subscriber

FAULTS       := $(GO) test -race -tags faults -count 1 -timeout 40m -json
FAULTS_CHECK := $(GO) run ./internal/tool/secretcheck -repeat '$(GO) test -race -tags faults'

.PHONY: faults
faults: fault-rows partial-faults ## Run the whole fault matrix, with the race detector

.PHONY: fault-rows
fault-rows: ## Run every row of the fault matrix but the partial faults, MESSAGES (2000) each
	$(GO) vet -tags faults,chaos,soak ./internal/test/faulttest
	$(FAULTS) -run '^TestPauseOfTheServer$$' ./sinks/nats/kvstore | $(FAULTS_CHECK)
	MESSAGES=$(MESSAGES) $(FAULTS) -skip '^TestPartialFaults$$' ./internal/test/faulttest | $(FAULTS_CHECK)

.PHONY: partial-faults
partial-faults: ## Break one thing at a time and measure what the others keep; wants a quiet machine (9 minutes)
	$(FAULTS) -run '^TestPartialFaults$$' ./internal/test/faulttest | $(FAULTS_CHECK)
	$(GO) test -tags faults -count 1 -timeout 10m -json -run '^TestTenThousandTenants$$' ./internal/test/faulttest | $(GO) run ./internal/tool/secretcheck -repeat '$(GO) test -tags faults'

# `make chaos SEED=7` repeats the faults of seed 7.
.PHONY: chaos
chaos: ## Run random faults: SEEDS (20) of them, N (20000) messages each; KILL=0: without kill -9
	SEEDS=$(SEEDS) N=$(N) $(if $(SEED),SEED=$(SEED)) $(if $(KILL),KILL=$(KILL)) \
	$(GO) test -tags faults,chaos -count 1 -timeout 24h -run '^TestChaos$$' -v ./internal/test/faulttest \
	| { grep --line-buffered -v -e 'level=' -e '^=== ' || true; }

.PHONY: identity-ci
identity-ci: ## Run random programs against the rules of docs/identity.md, 10,000 in memory, 2,000 of subscriptions, 1,000 with refusals, and 150 with the gateway and JetStream (30 seconds)
	$(GO) test -count 1 -timeout 10m -parallel 8 -run '^Test(Random|Subscription|Refusal|JetStream)Programs$$' ./internal/test/identitytest -programs 10000 -jetstream 150

.PHONY: identity
identity: ## Run 100,000 random programs against the rules of docs/identity.md and 1,000 with each broker, and look for each mutant
	$(GO) test -count 1 -timeout 1h -parallel 8 ./internal/test/identitytest -programs 100000 -jetstream 1000 -kafka 1000 -switches 300 -mutants

.PHONY: order
order: ## Keep several messages of a key on their way, PROGRAMS (1000) random runs in memory and ORDER (20) with each broker while it is cut, frozen, full and restarted, with three servers whose leader moves, and on the way back (45 minutes)
	$(GO) test -race -vet=off -count 1 -timeout 30m -run '^TestPipelinedPrograms$$' ./router -pipelined $(PROGRAMS)
	$(GO) test -race -vet=off -count 1 -timeout 120m -run '^TestOrder(InACluster|Out)?$$' ./internal/test/endtoend -order $(ORDER)

.PHONY: order-kafka
order-kafka: ## Do the same with a real Kafka broker (20 minutes; needs JDK 17 and Maven)
	$(GO) test -race -tags kafkabroker -vet=off -count 1 -timeout 60m -run '^TestBrokerOrder$$' ./internal/test/endtoend -order $(ORDER)

.PHONY: soak
soak: ## Print memory, goroutines and throughput over the time T (30m), RATE (200) messages per second
	T=$(T) RATE=$(RATE) $(if $(BROKER),BROKER=$(BROKER)) \
	$(GO) test -tags faults,soak -count 1 -timeout 24h -run '^TestSoak$$' -v ./internal/test/faulttest \
	| { grep --line-buffered -v -e 'level=' -e '^=== ' || true; }

.PHONY: bench
bench: ## Print benchmarks beside floors and aims: medians of COUNT (5) runs, 5 minutes
	@{ for ((i = 0; i < $(COUNT); i++)); do \
		$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -cpu 1 ./internal/test/bench || exit; \
	done; \
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 1x ./internal/test/peakmem; } \
	| $(GO) run ./internal/tool/benchreport

.PHONY: check
check: ## Everything that CI runs, in the same order
	@bash .ci/run
