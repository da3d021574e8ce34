# SPDX-License-Identifier: Apache-2.0
# The front door; CMake does the work (CMakePresets.json has the other builds). `make help` lists what there is.
BUILD := build
PREFIX ?= /usr/local
PROMPT ?= Once upon a time, a little fox

.PHONY: all deps deps-tests demo check check-real check-shape bench install format help clean

all: deps ## build the library and the program, release, in build/
	cmake --preset release -DFM_TESTS=$$(pkg-config --exists cmocka && echo ON || echo OFF)
	cmake --build $(BUILD) --target fusionml fusionml_static fusionml_shared

deps: ## install what is missing (asks first, unless root or CI=true)
	@scripts/deps.sh

deps-tests: ## the same, and what the tests are built with
	@scripts/deps.sh --tests

demo: all ## run a prompt on the embedded model and show where each layer ran
	$(BUILD)/fusionml run -p "$(PROMPT)" -n 120 --seed 1 --echo --placement

check: deps-tests ## build and run every test that this machine can run, and say what was skipped and why
	cmake --preset release
	cmake --build $(BUILD)
	@scripts/run-tests $(BUILD)

check-real: all ## compare with the reference of a real checkpoint, where FUSIONML_MODELS or ~/.cache/fusionml-dev has it
	@scripts/check-real $(BUILD) || [ $$? = 77 ]

check-shape: deps-tests ## identity of a 0.5B shape on every pair of units, over all quantised types; TYPES=q8_0,q4_k for some
	cmake --preset release
	cmake --build $(BUILD) --target test_engine_shape
	cd tests/data && FUSIONML_SHAPE=$(or $(TYPES),all) $(abspath $(BUILD))/tests/test_engine_shape

bench: all ## prompt and generation speed of the embedded model; MODEL=FILE for another
	$(BUILD)/fusionml bench $(if $(MODEL),-m "$(MODEL)")

install: all ## install under PREFIX (/usr/local)
	cmake --install $(BUILD) --prefix "$(PREFIX)"

format: ## run clang-format over the C files
	scripts/check-format --fix

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

clean: ## remove build/ and its siblings
	rm -rf $(BUILD) build-debug build-asan build-tsan build-fuzz build-clang build-arm64
