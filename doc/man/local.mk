# doc/man/ - the manual: markdown that doc/man/expand.sh completes from the sources, made into pages
# by pandoc. A release archive has the pages; in a git clone without pandoc they are left out. A
# page of several calls is found by the name of each.
man_pages = \
	doc/man/MPIX_Ep_alloc.3 \
	doc/man/MPIX_Ep_combine.3 \
	doc/man/MPIX_Ep_create.3 \
	doc/man/MPIX_Ep_dispatch.3 \
	doc/man/MPIX_Ep_get_peer.3 \
	doc/man/MPIX_Ep_handle_create.3 \
	doc/man/MPIX_Ep_route.3 \
	doc/man/MPIX_Error_last.3 \
	doc/man/MPIX_INIT.3 \
	doc/man/MPIX_P2p_alloc.3 \
	doc/man/MPIX_P2p_create.3 \
	doc/man/MPIX_P2p_fetch_add.3 \
	doc/man/MPIX_P2p_mem_device.3 \
	doc/man/MPIX_P2p_put.3 \
	doc/man/MPIX_P2p_put_notify.3 \
	doc/man/MPIX_P2p_send.3 \
	doc/man/MPIX_Xfer_wait.3 \
	doc/man/mpix-ep.7 \
	doc/man/mpix-ep-parameters.7 \
	doc/man/mpix_ep_bench.1 \
	doc/man/mpix_ep_info.1 \
	doc/man/mpix_p2p_bench.1
EXTRA_DIST += doc/man/expand.sh \
	doc/man/MPIX_Ep_alloc.md \
	doc/man/MPIX_Ep_combine.md \
	doc/man/MPIX_Ep_create.md \
	doc/man/MPIX_Ep_dispatch.md \
	doc/man/MPIX_Ep_get_peer.md \
	doc/man/MPIX_Ep_handle_create.md \
	doc/man/MPIX_Ep_route.md \
	doc/man/MPIX_Error_last.md \
	doc/man/MPIX_INIT.md \
	doc/man/MPIX_P2p_alloc.md \
	doc/man/MPIX_P2p_create.md \
	doc/man/MPIX_P2p_fetch_add.md \
	doc/man/MPIX_P2p_mem_device.md \
	doc/man/MPIX_P2p_put.md \
	doc/man/MPIX_P2p_put_notify.md \
	doc/man/MPIX_P2p_send.md \
	doc/man/MPIX_Xfer_wait.md \
	doc/man/mpix-ep.md \
	doc/man/mpix-ep-parameters.md \
	doc/man/mpix_ep_bench.md \
	doc/man/mpix_ep_info.md \
	doc/man/mpix_p2p_bench.md
man_sources = $(top_srcdir)/doc/man/expand.sh $(top_srcdir)/VERSION $(include_HEADERS) \
	src/base/param.c
if HAVE_MANUAL
dist_man_MANS += $(man_pages)
endif
$(man_pages): $(man_sources)
SUFFIXES = .md .1 .3 .7
.md.1:
	$(AM_V_GEN)$(top_srcdir)/doc/man/make_page.sh '$(PANDOC)' $(top_srcdir) $< $@
.md.3:
	$(AM_V_GEN)$(top_srcdir)/doc/man/make_page.sh '$(PANDOC)' $(top_srcdir) $< $@
.md.7:
	$(AM_V_GEN)$(top_srcdir)/doc/man/make_page.sh '$(PANDOC)' $(top_srcdir) $< $@
EXTRA_DIST += doc/man/make_page.sh

dist-hook:
	@test -n "$(dist_man_MANS)" || \
	{ echo "make dist: the manual can't be made without pandoc"; exit 1; }
# Names of the other calls of a page.
install-data-hook:
if HAVE_MANUAL
	@for page in $(man_pages); do \
	    page=`basename $$page .3`; \
	    for call in `sed -n 's/^@calls//p' $(top_srcdir)/doc/man/$$page.md 2>/dev/null`; do \
	        test $$call = $$page || echo ".so man3/$$page.3" >$(DESTDIR)$(man3dir)/$$call.3 || \
	        exit 1; \
	    done; \
	done
endif
uninstall-hook:
	@for call in `cat $(top_srcdir)/doc/man/MPIX*.md | \
	  sed -n 's/^@calls//p'`; do rm -f $(DESTDIR)$(man3dir)/$$call.3; done
