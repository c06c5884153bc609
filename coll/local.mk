libmpixep_core_la_SOURCES += \
	coll/ep.h coll/ep_ctl.h coll/ep_plan.h \
	coll/ep_gpu.h coll/ep_gpu.c coll/ep_gpu_call.c coll/ep_gpu_engines.c coll/ep_gpu_far.c coll/ep_gpu_ll.c coll/ep_gpu_stream.c kernels/cuda/cuda_module.h \
	coll/ep_check.c coll/ep_combine.c coll/ep_config.c coll/ep_create.c coll/ep_dispatch.c coll/ep_engine.c coll/ep_far.c coll/ep_far_batch.c coll/ep_far_room.c coll/ep_handle.c \
	coll/ep_hop.h coll/ep_hop.c coll/ep_hop_blame.c coll/ep_hop_combine.c coll/ep_hop_dispatch.c \
	coll/ep_ll.h coll/ep_ll.c coll/ep_ll_batch.c coll/ep_ll_combine.c coll/ep_ll_dispatch.c \
	coll/ep_later.c coll/ep_memory.c coll/ep_peer.c coll/ep_plan.c coll/ep_route.c coll/ep_words.c
