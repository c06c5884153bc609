# p2p/ - MPIX_P2p_*.
libmpixep_core_la_SOURCES += p2p/p2p_unsupported.c
