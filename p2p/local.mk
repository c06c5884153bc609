# p2p/local.mk - MPIX_P2p_*.
libmpixep_core_la_SOURCES += \
	p2p/check.c \
	p2p/check.h \
	p2p/p2p.h \
	p2p/p2p_copy.c \
	p2p/p2p_create.c \
	p2p/p2p_device.c \
	p2p/p2p_enqueue.c \
	p2p/p2p_gpu.c \
	p2p/p2p_gpu.h \
	p2p/p2p_gpu_move.c \
	p2p/p2p_gpu_state.h \
	p2p/p2p_handle.c \
	p2p/p2p_mem.c \
	p2p/p2p_message.c \
	p2p/p2p_move.c \
	p2p/p2p_op.c \
	p2p/p2p_recv.c \
	p2p/p2p_ring.c \
	p2p/p2p_rma.c \
	p2p/p2p_send.c \
	p2p/p2p_thread.c \
	p2p/p2p_watch.c
