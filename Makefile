# One door, the same for people and for machines: `make test`.
.PHONY: help deps build test lint demo bench clean

help:
	@echo "make demo   build, make an image, mount it, write, snapshot, check it"
	@echo "make test   everything that must hold before a change lands"
	@echo "make lint   formatting and clippy"
	@echo "make bench  the figures of this machine, both sides in one run"

deps:
	@scripts/deps

build: deps
	cargo build --workspace

test: deps
	cargo test --workspace --no-fail-fast

lint:
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings

bench: deps
	cargo run --release -p buttress-bench

clean:
	cargo clean
