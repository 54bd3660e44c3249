# SPDX-License-Identifier: Apache-2.0
# Where everything lies on a system that nvshared was installed on by a package manager.
# Debian's rules and the RPM spec both do, in the top folder:
#
#   make -f packaging/install.mk build LIBDIR=/usr/lib64
#   make -f packaging/install.mk install LIBDIR=/usr/lib64 DESTDIR=…
#
# `build` needs gcc, make and Python 3.11, and the wheels of packaging/vendored.txt in
# $(WHEELS); neither target needs a network. What pip would do (an environment of its
# own) is left to `make install` of the top folder.

PYTHON ?= /usr/bin/python3
WHEELS ?= packaging/wheels
DESTDIR ?=
LIBDIR ?= /usr/lib
UNITDIR ?= /usr/lib/systemd/system
ZSHDIR ?= /usr/share/zsh/site-functions
HOME_OF_OURS := /usr/lib/nvshared

BUILT := build/packaging
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)".*/\1/p' nvshared/__init__.py)
# As the installed programs will find things, but from here.
HERE := PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$(CURDIR):$(CURDIR)/$(BUILT)/vendor $(PYTHON)

MAN := nvshared.8 nvshare-kubelet.8 nvsharectl.1 nvshared.conf.5 com.nvshare.5 libnvshare.7
SHELLS := bash zsh fish

# What a command began to write and then failed is not taken for made.
.DELETE_ON_ERROR:
.PHONY: build install install-hook install-programs install-system clean
build: $(addprefix $(BUILT)/man/,$(MAN)) $(BUILT)/nvshared.conf \
		$(addprefix $(BUILT)/completions/,$(SHELLS)) $(BUILT)/vendor $(BUILT)/doc
	$(MAKE) -C libhook hook simulator workload

$(BUILT)/vendor: $(wildcard $(WHEELS)/*.whl)
	@mkdir -p $@
	@for wheel in $(WHEELS)/*.whl; do \
		[ -f "$$wheel" ] || { echo "There are no wheels in $(WHEELS); fetch them first: make -f packaging/packaging.mk wheels" >&2; exit 1; }; \
		$(PYTHON) -m zipfile -e "$$wheel" $@ || exit 1; \
	done
	@rm -f $@/example.py
	@touch $@

$(BUILT)/man/%: packaging/man/%.in $(wildcard packaging/man/*.py) nvshared/settings/config.py $(BUILT)/vendor
	@mkdir -p $(@D)
	$(HERE) packaging/man/page.py $< $(VERSION) $(LIBDIR)/libnvshare.so >$@

$(BUILT)/nvshared.conf: packaging/man/settings.py nvshared/settings/config.py
	@mkdir -p $(@D)
	$(HERE) packaging/man/settings.py >$@

# The package managers install these: debian/nvshared.docs, rpm/nvshared.spec.
$(BUILT)/doc: packaging/documents.py README.md $(wildcard docs/* docs/*/*)
	@rm -rf $@ && mkdir -p $@
	$(PYTHON) $< $@

# An empty one would be installed as well and say nothing.
$(BUILT)/completions/%: $(wildcard nvshared/cli/*.py) $(BUILT)/vendor
	@mkdir -p $(@D)
	$(HERE) -c 'import sys; from nvshared.cli.main import main; sys.exit(main())' completion $* >$@
	@[ -s $@ ] || { echo "The completion for $* is empty" >&2; exit 1; }

install: install-hook install-programs install-system

# What is preloaded. Its path stands in people's /etc/ld.so.preload: a version that
# moved it would leave every process of the machine with a line that leads nowhere.
install-hook:
	install -D -m 644 libhook/build/libnvshare.so $(DESTDIR)$(LIBDIR)/libnvshare.so
	install -D -m 644 $(BUILT)/man/libnvshare.7 $(DESTDIR)/usr/share/man/man7/libnvshare.7

install-programs:
	cd nvshared && find . -name '*.py' -exec install -D -m 644 {} $(DESTDIR)$(HOME_OF_OURS)/nvshared/{} \;
	chmod 755 $(DESTDIR)$(HOME_OF_OURS)/nvshared/saver.py   # CRIU executes it
	cp -R --preserve=mode $(BUILT)/vendor $(DESTDIR)$(HOME_OF_OURS)/
	install -d $(DESTDIR)$(HOME_OF_OURS)/nvshared/lib/simulator
	ln -srf $(DESTDIR)$(LIBDIR)/libnvshare.so $(DESTDIR)$(HOME_OF_OURS)/nvshared/lib/libnvshare.so
	install -m 755 libhook/build/nvshare-workload $(DESTDIR)$(HOME_OF_OURS)/nvshared/lib/
	install -m 644 libhook/build/simulator/libcuda.so.1 libhook/build/simulator/libnvidia-ml.so.1 \
		$(DESTDIR)$(HOME_OF_OURS)/nvshared/lib/simulator/
	install -D -m 755 packaging/command.py $(DESTDIR)/usr/bin/nvsharectl
	for one in nvshared=nvshared.__main__ nvshare-kubelet=nvshared.kubelet.main; do \
		install -m 755 packaging/command.py $(DESTDIR)/usr/bin/$${one%=*} && \
		sed -i "s/nvsharectl/$${one%=*}/; s/nvshared\.cli\.main/$${one#*=}/" \
			$(DESTDIR)/usr/bin/$${one%=*} || exit 1; \
	done

install-system:
	install -D -m 644 -t $(DESTDIR)$(UNITDIR) systemd/nvshared.service systemd/nvshared.socket \
		systemd/nvshare-kubelet.service systemd/nvshare-checkpoint.socket \
		systemd/nvshare-checkpoint@.service systemd/nvshare-cdi.service systemd/nvshare-cdi.path \
		systemd/nvshare-save.socket systemd/nvshare-save@.service systemd/nvshare-saved.service \
		systemd/nvshare-names.socket systemd/nvshare-names@.service
	for one in user@.service.d session-.scope.d; do \
		install -D -m 644 systemd/$$one/nvshare.conf $(DESTDIR)$(UNITDIR)/$$one/nvshare.conf; \
	done
	install -D -m 644 systemd/sysusers.d/nvshare.conf $(DESTDIR)/usr/lib/sysusers.d/nvshare.conf
	install -D -m 644 systemd/tmpfiles.d/nvshare.conf $(DESTDIR)/usr/lib/tmpfiles.d/nvshare.conf
	install -D -m 644 dbus/com.nvshare.conf $(DESTDIR)/usr/share/dbus-1/system.d/com.nvshare.conf
	install -D -m 644 dbus/com.nvshare.service \
		$(DESTDIR)/usr/share/dbus-1/system-services/com.nvshare.service
	install -D -m 644 -t $(DESTDIR)/usr/share/dbus-1/interfaces dbus/com.nvshare.*.xml
	install -D -m 644 dbus/com.nvshare.policy $(DESTDIR)/usr/share/polkit-1/actions/com.nvshare.policy
	install -D -m 644 $(BUILT)/nvshared.conf $(DESTDIR)/etc/nvshare/nvshared.conf
	install -d $(DESTDIR)/etc/nvshare/nvshared.conf.d
	install -D -m 644 packaging/needrestart.conf $(DESTDIR)/etc/needrestart/conf.d/nvshared.conf
	install -D -m 644 -t $(DESTDIR)/usr/share/man/man8 \
		$(BUILT)/man/nvshared.8 $(BUILT)/man/nvshare-kubelet.8
	install -D -m 644 $(BUILT)/man/nvsharectl.1 $(DESTDIR)/usr/share/man/man1/nvsharectl.1
	install -D -m 644 -t $(DESTDIR)/usr/share/man/man5 \
		$(BUILT)/man/nvshared.conf.5 $(BUILT)/man/com.nvshare.5
	install -D -m 644 -t $(DESTDIR)/usr/share/nvshared/grafana $(wildcard packaging/grafana/*)
	install -D -m 644 -t $(DESTDIR)/usr/share/nvshared/prometheus $(wildcard packaging/prometheus/*)
	install -D -m 644 $(BUILT)/completions/bash \
		$(DESTDIR)/usr/share/bash-completion/completions/nvsharectl
	install -D -m 644 $(BUILT)/completions/zsh $(DESTDIR)$(ZSHDIR)/_nvsharectl
	install -D -m 644 $(BUILT)/completions/fish \
		$(DESTDIR)/usr/share/fish/vendor_completions.d/nvsharectl.fish

clean:
	$(MAKE) -C libhook clean
	rm -rf $(BUILT)
