# SPDX-License-Identifier: Apache-2.0
# Part of the top Makefile: what `make test-system` and `make test-kubernetes` need besides
# what the other levels do.
# Debian's packages, asked for only where a command is missing.

.PHONY: needs-system
test-system test-kubernetes: needs-system needs-deb

needs-system:
	@missing=; \
	command -v debootstrap >/dev/null || missing="$$missing debootstrap"; \
	command -v systemd-nspawn >/dev/null || missing="$$missing systemd-container"; \
	command -v rpmbuild >/dev/null || missing="$$missing rpm"; \
	[ -z "$$missing" ] && exit 0; \
	if [ $$(id -u) != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "Missing:$$missing. Install them with the system's package manager; this level needs root." >&2; \
		exit 1; \
	fi; \
	echo "Installing$$missing"; \
	apt-get -qq update && \
	DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing
