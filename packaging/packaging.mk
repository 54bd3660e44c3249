# SPDX-License-Identifier: Apache-2.0
# Packages for distributions, from the top folder and part of its Makefile:
#
#   make deb          dist/nvshared_*.deb and dist/libnvshare_*.deb, and no other of ours there:
#                     what people install is dist/*.deb
#   make rpm          dist/nvshared-*.rpm and dist/libnvshare-*.rpm
#                     (on a Debian machine with RPMFLAGS=--nodeps: its rpm knows of no package)
#   make release      dist/release-VERSION: tarball, packages, images, chart, checksums and a bill of
#                     materials, of the current commit, built twice and compared; PARTS="source deb"
#   make wheels       fetches what is packed along, once; with it no build needs a network
#
# Each is built in a folder of its own, so that nothing is left in the source tree.

PYTHON ?= python3
VERSION ?= $(shell sed -n 's/^__version__ = "\(.*\)".*/\1/p' nvshared/__init__.py)
DIST ?= dist
PACKAGED := build/packages
FETCHED := $(PACKAGED)/wheels

.PHONY: deb rpm wheels needs-deb release

release: wheels
	@$(PYTHON) packaging/release.py $(PARTS)

wheels: $(FETCHED)/complete
$(FETCHED)/complete: packaging/vendored.txt
	@rm -rf $(FETCHED) && mkdir -p $(FETCHED)
	@{ $(PYTHON) -m pip --version >/dev/null 2>&1 && pip="$(PYTHON) -m pip" \
		|| { $(PYTHON) -m venv $(PACKAGED)/pip && pip=$(PACKAGED)/pip/bin/pip; }; } \
	&& $$pip --quiet --disable-pip-version-check download --no-deps --require-hashes \
		--only-binary :all: --requirement packaging/vendored.txt --dest $(FETCHED)
	@touch $@

# What people wrote, as it is now, and the wheels: all that a build may look at.
define source_tree
	@rm -rf $(1) && mkdir -p $(1)
	@if git rev-parse --git-dir >/dev/null 2>&1; then \
		git ls-files --cached --others --exclude-standard -z; \
	else \
		find . -type f -not -path './build/*' -not -path './dist/*' -not -path './libhook/build*' -not -path './.*' -print0; \
	fi | while IFS= read -r -d '' file; do [ ! -e "$$file" ] || printf '%s\0' "$$file"; done \
		| tar --create --null --files-from=- | tar --extract --directory=$(1)
	@mkdir -p $(1)/packaging/wheels && cp $(FETCHED)/*.whl $(1)/packaging/wheels/
endef

deb rpm: SHELL := /bin/bash

# What Debian's packages need to be built. dpkg says what is missing, apt is asked for that alone.
needs-deb:
	@dpkg-checkbuilddeps packaging/debian/control || { \
		[ "$$(id -u)" = 0 ] || { echo "As root: apt-get build-dep ./packaging" >&2; exit 1; }; \
		apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq build-dep -y --no-install-recommends ./packaging; }

deb: needs-deb wheels
	$(call source_tree,$(PACKAGED)/deb/nvshared)
	@cp -R packaging/debian $(PACKAGED)/deb/nvshared/debian
	@rm -f $(PACKAGED)/deb/*.deb
	cd $(PACKAGED)/deb/nvshared && DEB_BUILD_OPTIONS="$$DEB_BUILD_OPTIONS noautodbgsym" \
		dpkg-buildpackage --build=binary --no-sign
	@mkdir -p $(DIST) && rm -f $(DIST)/nvshared[_-]*.deb $(DIST)/libnvshare[_-]*.deb
	cp $(PACKAGED)/deb/*.deb $(DIST)/

rpm: wheels
	@command -v rpmbuild >/dev/null || { echo "This needs rpmbuild, of the package rpm" >&2; exit 1; }
	$(call source_tree,$(PACKAGED)/rpm/nvshared-$(VERSION))
	@mkdir -p $(PACKAGED)/rpm/SOURCES
	@tar --create --gzip --file=$(PACKAGED)/rpm/SOURCES/nvshared-$(VERSION).tar.gz \
		--directory=$(PACKAGED)/rpm nvshared-$(VERSION)
	rpmbuild -bb $(RPMFLAGS) --define 'use_source_date_epoch_as_buildtime 1' \
		--define 'clamp_mtime_to_source_date_epoch 1' --define '_buildhost localhost' --define '_topdir $(CURDIR)/$(PACKAGED)/rpm' --define 'our_version $(VERSION)' \
		packaging/rpm/nvshared.spec
	@mkdir -p $(DIST)
	cp $(PACKAGED)/rpm/RPMS/*/*.rpm $(DIST)/

# Images for Kubernetes: dist/nvshared.tar, nvshare-kubelet.tar, libnvshare.tar, for this machine's
# architecture, and for arm64 where there is a compiler.
IMAGES := build/images
KUBERNETES := packaging/kubernetes
ARCHITECTURES ?= $(shell dpkg --print-architecture) \
	$(if $(shell command -v aarch64-linux-gnu-gcc),$(filter-out $(shell dpkg --print-architecture),arm64))
TRIPLET_amd64 := x86_64-linux-gnu
TRIPLET_arm64 := aarch64-linux-gnu
comma := ,
roots = $(subst $() ,$(comma),$(strip $(foreach one,$(ARCHITECTURES),$(one)=$(IMAGES)/$(one)/$(1))))

.PHONY: image $(addprefix image-,amd64 arm64)
image: $(addprefix image-,$(ARCHITECTURES))
	@mkdir -p $(DIST)
	$(PYTHON) $(KUBERNETES)/image.py localhost/nvshared:$(VERSION) $(DIST)/nvshared.tar \
		$(call roots,nvshared) nvshared
	$(PYTHON) $(KUBERNETES)/image.py localhost/nvshare-kubelet:$(VERSION) $(DIST)/nvshare-kubelet.tar \
		$(call roots,nvshare-kubelet) nvshare-kubelet
	$(PYTHON) $(KUBERNETES)/image.py --user=65534 localhost/libnvshare:$(VERSION) $(DIST)/libnvshare.tar \
		$(call roots,libnvshare) /bin/busybox cp /usr/lib/nvshare/libnvshare.so /nvshare/

image-amd64 image-arm64: SHELL := /bin/bash
image-amd64 image-arm64: image-%: wheels
	@rm -rf $(IMAGES)/$*
	$(call source_tree,$(IMAGES)/$*/source)
	$(MAKE) -s -C $(IMAGES)/$*/source -f packaging/install.mk build install-hook install-programs \
		CFLAGS="-O2 -g -ffile-prefix-map=$(CURDIR)/$(IMAGES)/$*/source=." CC=$(TRIPLET_$*)-gcc PYTHON=$(PYTHON) LIBDIR=/usr/lib/$(TRIPLET_$*) \
		DESTDIR=$(CURDIR)/$(IMAGES)/$*/ours
	$(KUBERNETES)/root.sh $* $(IMAGES)/$*/nvshared python3-minimal python3-dbus-next \
		python3-sdnotify python3-rich dbus-daemon
	cp -R $(IMAGES)/$*/ours/usr $(IMAGES)/$*/nvshared/
	$(KUBERNETES)/root.sh $* $(IMAGES)/$*/nvshare-kubelet python3-minimal python3-dbus-next \
		python3-sdnotify python3-grpcio python3-protobuf python3-yaml
	cp -R $(IMAGES)/$*/ours/usr $(IMAGES)/$*/nvshare-kubelet/
	$(KUBERNETES)/root.sh $* $(IMAGES)/$*/libnvshare busybox-static
	install -D -m 755 $(IMAGES)/$*/ours/usr/lib/$(TRIPLET_$*)/libnvshare.so \
		$(IMAGES)/$*/libnvshare/usr/lib/nvshare/libnvshare.so
