# src/ - what both APIs stand on. A part that is not listed yet is added by its author.
noinst_HEADERS += src/base/clock.h src/base/log.h src/base/param.h src/base/status.h src/base/topo.h src/base/wait.h
noinst_HEADERS += src/boot/boot.h src/mem/window.h src/transport/transport.h
