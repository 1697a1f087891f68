# Copyright The Weft Authors.
# SPDX-License-Identifier: Apache-2.0

# Everything is built from nothing but Go and make; the only thing fetched is Go modules.
GO        ?= go
BIN       := bin
CACHE     := .cache
LINTER    := $(CACHE)/bin/golangci-lint
FUZZTIME  ?= 2s
DEMO      ?= examples/demo
PKGS      ?= ./...
NODES     ?= 1
LAB       := test/lab
# What programs say of themselves when a release is built: make images VERSION=v1.2.3.
VERSION   ?=

# Another Kubernetes for the laboratory: K8S_VERSION=1.34 (its newest patch) or 1.34.2.
export K8S_VERSION NODES

# A go.work file above the checkout must not change what is built.
export GOWORK := off

# Flags given here win over a user's GOFLAGS. No VCS stamp: a tree without usable git data
# builds as well, and the same sources give the same bytes.
MODE  := -mod=readonly -buildvcs=false
BUILD := $(GO) build $(MODE) -trimpath -ldflags='-s -w$(if $(VERSION), -X github.com/weftnet/weft/internal/host/version.word=$(VERSION))'

# The race detector needs cgo, hence a C compiler: used where there is one. Asked before the next lines.
RACE := $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),CGO_ENABLED=1)

# A package that is built with cgo and without, with whole paths and with trimmed ones, is built four
# times, and all that need it as well: Kubernetes' are hundreds. What is released, what the linter
# looks at and what runs the tests is built in one way; the tests in another, for the race detector.
export CGO_ENABLED := 0
RUN   := $(GO) run $(MODE) -trimpath

# Vet is one of the linters of make lint, for tests as well; go test would have it look at every package
# of every module that a test imports.
TEST  := $(GO) test $(MODE) -trimpath -vet=off

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build ## build, give the pods of examples/demo their interfaces, show them, take them down
	$(BIN)/weft sandbox run -f $(DEMO)

.PHONY: build
build: ## build bin/weft, and into bin/cni weft-cni, both planners and the standard CNI plugins
	@mkdir -p $(BIN)/cni
	$(BUILD) -o $(BIN)/ ./cmd/...
	cd build/plugins && $(BUILD) -o ../../$(BIN)/cni/ tool
	@cp -f $(BIN)/weft-cni $(BIN)/weft-planner $(BIN)/weft-planner-kube $(BIN)/cni/

.PHONY: image
image: build ## pack bin/weft.tar, the image that deploy/ names (IMAGE_NAME=…: another name), without a registry
	$(RUN) ./build/image -o $(BIN)/weft.tar -name $(IMAGE_NAME) $(addprefix $(BIN)/,$(IMAGE_PROGRAMS)) cilium-dbg=weft

# What the image holds, in this order; the first one is its entry point.
IMAGE_PROGRAMS := weft-agent weft-cni weft weft-operator
IMAGE_ARCHS    := amd64 arm64
IMAGE_NAME     := localhost/weft/weft:dev
GOARCH         ?= $(shell $(GO) env GOARCH)

.PHONY: programs
programs: ## build the image's programs for GOARCH=amd64 or arm64 into bin/linux-GOARCH
	@mkdir -p $(BIN)/linux-$(GOARCH)
	GOOS=linux GOARCH=$(GOARCH) $(BUILD) -o $(BIN)/linux-$(GOARCH)/ $(addprefix ./cmd/,$(IMAGE_PROGRAMS))

.PHONY: images
images: ## pack bin/weft-images.tar, the image for amd64 and arm64 as an OCI archive, without a registry
	for arch in $(IMAGE_ARCHS); do $(MAKE) programs GOARCH=$$arch || exit; done
	$(RUN) ./build/image -o $(BIN)/weft-images.tar -name $(IMAGE_NAME) \
		$(foreach arch,$(IMAGE_ARCHS),$(addprefix $(BIN)/linux-$(arch)/,$(IMAGE_PROGRAMS))) cilium-dbg=weft
	$(RUN) ./build/image -check $(BIN)/weft-images.tar

# Building first fetches what the tests build for themselves, in namespaces without a network.
.PHONY: test
test: build ## run every test, then every fuzz target for FUZZTIME (2s)
	$(RACE) $(RUN) ./build/gotest $(MODE) -vet=off $(if $(RACE),-race) -timeout 20m $(PKGS)
	$(RUN) ./build/fuzz -time $(FUZZTIME)

.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME, e.g. make fuzz FUZZTIME=10m
	$(RUN) ./build/fuzz -time $(FUZZTIME)

.PHONY: lint
lint: export GOFLAGS := -trimpath -buildvcs=false
lint: $(LINTER) ## check style and the import laws
	$(LINTER) run ./...
	cd $(LAB) && $(CURDIR)/$(LINTER) run ./...
	cd test/install && $(CURDIR)/$(LINTER) run ./...

.PHONY: format
format: $(LINTER) ## rewrite the sources as the linter wants them formatted
	$(LINTER) fmt ./...

$(LINTER): build/lint/go.mod build/lint/go.sum
	@mkdir -p $(@D)
	cd build/lint && $(BUILD) -o ../../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

.PHONY: bench
bench: ## measure ADD and DEL against their floor and write docs/performance.md
	$(RUN) ./test/bench $(BENCHFLAGS)

.PHONY: lab
lab: ## build what the laboratory runs: Kubernetes, containerd, runc, CNI plugins
	cd $(LAB) && $(RUN) ./cmd/lab build

.PHONY: lab-up
lab-up: ## start a cluster on this machine (NODES=1); prints KUBECONFIG=…
	@cd $(LAB) && $(RUN) ./cmd/lab up --nodes $(NODES)

.PHONY: lab-down
lab-down: ## end the cluster and remove everything of it
	@cd $(LAB) && $(RUN) ./cmd/lab down

# -v: what runs is seen while it runs, and -count=1: a cluster is no input that go test knows.
E2E := -count=1 -v -timeout 60m

.PHONY: e2e-api
e2e-api: ## run the tests that need a real API server (K8S_VERSION=1.34: of another Kubernetes)
	cd $(LAB) && $(TEST) $(E2E) ./api/...

# What takes too long for every change is e2e-full's.
LONG := TestOrphan|TestTwoMachines|TestHelm|TestChangeOverMultus

.PHONY: e2e
e2e: e2e-node e2e-machine ## run the scenarios with real pods on real nodes (NODES=1)

.PHONY: e2e-node
e2e-node: ## those on a node of this machine
	cd $(LAB) && $(TEST) $(E2E) -skip '^(TestMachine|$(LONG))$$' ./e2e/...

.PHONY: e2e-machine
e2e-machine: ## those on a node that is an emulated machine with an SR-IOV card
	cd $(LAB) && $(TEST) $(E2E) -run '^TestMachine$$' ./e2e/...

.PHONY: e2e-full
e2e-full: ## all of them, and the faults that take long
	cd $(LAB) && WEFT_E2E_FULL=1 $(TEST) $(E2E) -timeout 120m ./e2e/...
	cd $(LAB) && WEFT_E2E_FULL=1 $(TEST) $(E2E) -run '^TestOperatorFlips$$' ./api/...

.PHONY: e2e-vmi
e2e-vmi: ## run the scenes of virtual machines, on a real libvirt with a real guest and its agent
	cd $(LAB) && $(TEST) $(E2E) ./vmi/...

VM := cd $(LAB) && $(RUN) ./cmd/vm

.PHONY: vm-install
vm-install: ## install what that machine needs, as root on Debian 12: QEMU of the backports
	$(VM) install

.PHONY: vm-test
vm-test: ## run the tests that need real SR-IOV hardware, in an emulated machine that has it
	$(VM) test $(VMFLAGS)

.PHONY: vm-shell
vm-shell: ## a shell in that machine
	@$(VM) shell

.PHONY: test-install
test-install: ## render the Helm chart and hold it against deploy/, check alerts and dashboard
	cd test/install && $(TEST) -count=1 ./...

.PHONY: generate
generate: ## rewrite what is generated: cmd/*/deps.txt, deploy/crd-cilium*, deploy/helm/weft/{crds,files}, api/*/zz_*, docs/conf*.md
	$(RUN) ./build/generate
	$(GO) test $(MODE) ./test/conformance -run '^TestConformance$$' -update

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN) $(CACHE)
