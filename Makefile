# One door, the same for people and for machines: `make test`.
.PHONY: help deps build demo test lint bench load crash logs brim long differential fuzz-smoke clean

help:
	@echo "make demo   build, make an image, mount it, write, snapshot, check it"
	@echo "make test   everything that must hold before a change lands"
	@echo "make lint   formatting and clippy"
	@echo "make bench  the figures of this machine, both sides in one run"
	@echo "make load   an hour of mixed load on a mount with little memory (LOAD_SECONDS=N)"
	@echo "make crash  every state that a power loss may leave, and devices that fail"
	@echo "make brim   64 filesystems that are full to the brim, 5,000 operations each"
	@echo "make long   the suites that take hours"
	@echo "make differential   200,000 operations on a kernel mount and on ours"
	@echo "make fuzz-smoke   every fuzz target for FUZZ_SECONDS (60)"

deps:
	@scripts/deps

build: deps
	cargo build --workspace

demo: deps
	cargo build --release -p buttress-cli
	@scripts/demo

# Where tests put what they make: not everybody may write to /tmp.
test: export TMPDIR := $(shell test -w "$${TMPDIR:-/tmp}" && echo "$${TMPDIR:-/tmp}" || { mkdir -p target/tmp && echo "$(CURDIR)/target/tmp"; })
# What programs say is compared, whatever language whoever runs this speaks.
test: export LC_ALL := C
test: deps
	@scripts/test

lint:
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings

bench: deps
	cargo build --release -p buttress-cli -p buttress-bench
	cargo build --release -p buttress-fuse --example null
	target/release/buttress-bench

# Crash states of the recorded workloads (540,000, a third of them different), and every way in which a device can fail at every
# one of its operations.
crash: deps
	cargo build --release -p buttress-testkit --bin crashrun
	target/release/crashrun --threads $$(nproc) --per-epoch 112
	target/release/crashrun --threads $$(nproc) --enumerate --linux-every 200
	target/release/crashrun --threads $$(nproc) --faults 1000000

# What Linux leaves behind after an fsync, some thousand kinds of it: replayed by Linux and by us.
logs: deps
	cargo build --release -p buttress-testkit --bin logrun
	target/release/logrun --threads $$(nproc)

# Snapshots, scattered extents, clones and deletion where there is not a block to spare.
brim: deps
	cargo build --release -p buttress-testkit --bin modelrun
	for seed in $$(seq 0 39) 72 105 115 135; do target/release/modelrun --brim 1 --ops 5000 --seed $$seed || exit 1; done
	for seed in $$(seq 40 59); do target/release/modelrun --brim 1 --ops 5000 --threads 4 --seed $$seed || exit 1; done

# What takes hours: the workloads at full size, every byte of an image flipped, a million random operations.
long: deps crash brim
	BUTTRESS_LONG=1 cargo test --release -p buttress-testkit --no-fail-fast
	BUTTRESS_LONG=1 cargo test --release -p buttress-cli --test kill
	cargo run --release -p buttress-testkit --bin modelrun -- --seed 1 --ops 1000000

LOAD_SECONDS ?= 3600
load: deps
	cargo build --release -p buttress-cli -p buttress-testkit --bins
	target/release/load --buttress target/release/buttress --seconds $(LOAD_SECONDS)

# The same operations on a mount of the kernel and on ours; needs root and FUSE.
differential: deps
	cargo run --release -p buttress-testkit --bin differential -- --seeds 4 --ops 200000

# Needs cargo-fuzz, and root for the images that it starts from.
fuzz-smoke: deps
	@fuzz/smoke

clean:
	cargo clean
