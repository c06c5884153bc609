# tools/ - mpix_ep_info. It looks inside the library, so it is linked with the inside.
bin_PROGRAMS += mpix_ep_info
mpix_ep_info_SOURCES = \
	tools/info.h \
	tools/info_machine.c \
	tools/info_pairs.c \
	tools/info_paths.c \
	tools/info_selftest.c \
	tools/mpix_ep_info.c
mpix_ep_info_LDADD = libmpixep_core.la
EXTRA_DIST += tools/scaling
