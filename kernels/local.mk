# kernels/ - the work on rows.
noinst_HEADERS += kernels/host/rows.h
