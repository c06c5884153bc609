# coll/ - MPIX_Ep_*: what all paths share, then a folder for each kind of path.
libmpixep_core_la_SOURCES += \
	coll/ctl.h coll/wire.h coll/record.h coll/ep.h coll/path.h \
	coll/api.c coll/check.c coll/config.c coll/create.c coll/handle.c coll/memory.c coll/path.c \
	coll/peer.c coll/refuse.c

# Host memory, high throughput: mapped and proxied peers, two hops.
libmpixep_core_la_SOURCES += \
	coll/host/engine.h coll/host/forward.h coll/host/host.h coll/host/plan.h coll/host/remote.h \
	coll/host/bank.c coll/host/call.c coll/host/combine.c coll/host/context.c \
	coll/host/dispatch.c coll/host/engine.c coll/host/forward.c coll/host/forward_blame.c \
	coll/host/forward_combine.c coll/host/forward_dispatch.c coll/host/plan.c coll/host/pool.c \
	coll/host/region.c coll/host/remote.c coll/host/remote_batch.c coll/host/remote_create.c \
	coll/host/remote_room.c coll/host/route.c coll/host/watch.c coll/host/words.c

# Host memory, low latency.
libmpixep_core_la_SOURCES += \
	coll/host_ll/combine.h coll/host_ll/ll.h \
	coll/host_ll/batch.c coll/host_ll/combine.c coll/host_ll/combine_begin.c \
	coll/host_ll/context.c coll/host_ll/dispatch.c coll/host_ll/learn.c

# GPU memory: the host's side.
libmpixep_core_la_SOURCES += \
	coll/gpu/gpu.h src/gpu/cuda_module.h \
	coll/gpu/call.c coll/gpu/context.c coll/gpu/copy_engine.c coll/gpu/handle.c coll/gpu/ll.c \
	coll/gpu/remote.c coll/gpu/stream.c
