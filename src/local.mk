# src/local.mk - what both APIs stand on.
libmpixep_core_la_SOURCES += \
	src/base/clock.h \
	src/base/error_api.c \
	src/base/log.c \
	src/base/log.h \
	src/base/param.c \
	src/base/param.h \
	src/base/status.c \
	src/base/status.h \
	src/base/topo.c \
	src/base/topo.h \
	src/base/wait.c \
	src/base/wait.h \
	src/boot/boot.c \
	src/boot/boot.h \
	src/boot/finalize.c \
	src/boot/info.c \
	src/boot/live.c \
	src/boot/raise.c \
	src/mem/avail.c \
	src/mem/connect.c \
	src/mem/fdpass.c \
	src/mem/mem_internal.h \
	src/mem/window.c \
	src/mem/window.h \
	src/transport/self.c \
	src/transport/shm.c \
	src/transport/transport.c \
	src/transport/transport.h \
	src/xfer/xfer.c \
	src/xfer/xfer.h
