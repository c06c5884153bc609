# src/local.mk - what both APIs stand on.
libmpixep_core_la_SOURCES += \
	src/base/clock.h \
	src/base/error_api.c \
	src/base/kind.h \
	src/base/log.c \
	src/base/log.h \
	src/base/module.c \
	src/base/module.h \
	src/base/number.c \
	src/base/number.h \
	src/base/param.c \
	src/base/param.h \
	src/base/param_text.c \
	src/base/status.c \
	src/base/status.h \
	src/base/thread.c \
	src/base/thread.h \
	src/base/topo.c \
	src/base/trace.c \
	src/base/trace.h \
	src/base/topo.h \
	src/base/wait.c \
	src/base/wait.h \
	src/boot/boot.c \
	src/boot/collect.c \
	src/boot/boot.h \
	src/boot/finalize.c \
	src/boot/fork.c \
	src/boot/hosts.c \
	src/boot/info.c \
	src/boot/live.c \
	src/boot/place.c \
	src/boot/place.h \
	src/boot/raise.c \
	src/boot/same.c \
	src/boot/told.c \
	src/boot/watch.c \
	src/mem/avail.c \
	src/mem/claim.c \
	src/mem/claim.h \
	src/mem/calls.c \
	src/mem/calls.h \
	src/mem/connect.c \
	src/mem/fdpass.c \
	src/gpu/gpu.c \
	src/gpu/gpu.h \
	src/mem/guard.c \
	src/mem/guard.h \
	src/mem/mem_internal.h \
	src/mem/window.c \
	src/mem/window.h \
	src/mem/shared.c \
	src/mem/shared.h \
	src/proxy/desc.c \
	src/proxy/desc.h \
	src/proxy/encode.h \
	src/proxy/fifo.c \
	src/proxy/fifo.h \
	src/proxy/gpu_queue.c \
	src/proxy/gpu_queue.h \
	src/proxy/proxy.c \
	src/proxy/proxy.h \
	src/proxy/proxy_internal.h \
	src/proxy/proxy_loop.c \
	src/proxy/proxy_mem.c \
	src/proxy/proxy_part.c \
	src/proxy/proxy_queue.c \
	src/proxy/proxy_state.c \
	src/proxy/proxy_thread.c \
	src/transport/chaos/chaos.c \
	src/transport/chaos/chaos.h \
	src/transport/chaos/chaos_move.c \
	src/transport/net.c \
	src/transport/net.h \
	src/transport/net_null.c \
	src/transport/net_shmem.c \
	src/transport/net_shmem.h \
	src/transport/net_shmem_post.c \
	src/transport/proxied.c \
	src/transport/self.c \
	src/transport/mapped.c \
	src/transport/transport.c \
	src/transport/transport.h \
	src/transport/ucx/load.c \
	src/transport/ucx/module.h \
	src/xfer/xfer.c \
	src/xfer/xfer.h

# The transport over RDMA devices, where libibverbs was found.
if HAVE_VERBS
libmpixep_core_la_SOURCES += \
	src/transport/verbs/device.c \
	src/transport/verbs/event.c \
	src/transport/verbs/gid.c \
	src/transport/verbs/gpu.c \
	src/transport/verbs/mem.c \
	src/transport/verbs/order.c \
	src/transport/verbs/poll.c \
	src/transport/verbs/post.c \
	src/transport/verbs/qp.c \
	src/transport/verbs/verbs.c \
	src/transport/verbs/verbs.h \
	src/transport/verbs/wire.h
endif

# The transport over libucp, where that was found: a module that is loaded when the transport
# is opened, also by a static library, so it is made without libtool. It calls the library
# through a table.
ucx_units = src/mem/guard.c src/transport/ucx/segment.c src/transport/ucx/ucx.c \
	src/transport/ucx/ucx_arrive.c src/transport/ucx/ucx_mem.c src/transport/ucx/ucx_move.c
ucx_deps = $(ucx_units) src/transport/ucx/ucx.h src/transport/ucx/module.h src/transport/net.h \
	src/base/param.h src/boot/boot.h config.h
EXTRA_DIST += $(ucx_units) src/transport/ucx/ucx.h
CLEANFILES += libmpixep_ucx.so
if HAVE_UCX
ucxmoduledir = $(libdir)
ucxmodule_DATA = libmpixep_ucx.so
libmpixep_ucx.so: $(ucx_deps)
	$(AM_V_CCLD)$(CC) $(DEFS) $(DEFAULT_INCLUDES) $(INCLUDES) $(AM_CPPFLAGS) $(UCX_CFLAGS) \
	  $(CPPFLAGS) $(AM_CFLAGS) $(CFLAGS) -fPIC -shared \
	  $(AM_LDFLAGS) $(LDFLAGS) -o $@ `for unit in $(ucx_units); do echo $(top_srcdir)/$$unit; done` \
	  $(UCX_LIBS)
endif
