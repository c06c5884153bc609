# tests/fuzz/ - targets for libFuzzer (fuzz.h). `make check` runs what is kept in corpus/ and
# mutations of it.
FUZZ_TARGETS = options npy params route
check_PROGRAMS += tests/fuzz/options tests/fuzz/npy tests/fuzz/params tests/fuzz/route
if FUZZING
MAIN_OF_FUZZ =
LDFLAGS_OF_FUZZ = $(AM_LDFLAGS) -fsanitize=fuzzer
else
MAIN_OF_FUZZ = tests/fuzz/replay.c tests/fuzz/fuzz.h
LDFLAGS_OF_FUZZ = $(AM_LDFLAGS)
endif

tests_fuzz_options_SOURCES = \
	tests/fuzz/options.c bench/options.c bench/usage.c bench/content.c bench/bench.h \
	$(MAIN_OF_FUZZ)
tests_fuzz_options_LDFLAGS = $(LDFLAGS_OF_FUZZ)
tests_fuzz_options_LDADD = libmpixep_core.la -lm
tests_fuzz_npy_SOURCES = tests/fuzz/npy.c bench/npy.c bench/bench.h $(MAIN_OF_FUZZ)
tests_fuzz_npy_LDFLAGS = $(LDFLAGS_OF_FUZZ)
tests_fuzz_npy_LDADD = libmpixep_core.la
tests_fuzz_params_SOURCES = tests/fuzz/params.c $(MAIN_OF_FUZZ)
tests_fuzz_params_LDFLAGS = $(LDFLAGS_OF_FUZZ)
tests_fuzz_params_LDADD = libmpixep_core.la
tests_fuzz_route_SOURCES = tests/fuzz/route.c $(MAIN_OF_FUZZ)
tests_fuzz_route_LDFLAGS = $(LDFLAGS_OF_FUZZ)
tests_fuzz_route_LDADD = libmpixep_core.la
if HAVE_CXX
FUZZ_TARGETS += npy_cxx
check_PROGRAMS += tests/fuzz/npy_cxx
endif
tests_fuzz_npy_cxx_SOURCES = tests/fuzz/npy_cxx.cpp $(MAIN_OF_FUZZ)
tests_fuzz_npy_cxx_LDFLAGS = $(LDFLAGS_OF_FUZZ)
if HAVE_VERBS
FUZZ_TARGETS += verbs_blobs
check_PROGRAMS += tests/fuzz/verbs_blobs
tests_fuzz_verbs_blobs_SOURCES = \
	tests/fuzz/verbs_blobs.c tests/unit/mock_verbs.c tests/unit/mock_verbs.h \
	tests/unit/mock_verbs_data.c tests/unit/mock_verbs_internal.h tests/fuzz/shim/check.h \
	$(MAIN_OF_FUZZ)
tests_fuzz_verbs_blobs_CPPFLAGS = -I$(top_srcdir)/tests/fuzz/shim $(AM_CPPFLAGS)
tests_fuzz_verbs_blobs_LDFLAGS = $(LDFLAGS_OF_FUZZ)
tests_fuzz_verbs_blobs_LDADD = libmpixep_core.la
endif

TESTS += tests/fuzz/replay.sh
EXTRA_DIST += tests/fuzz/replay.sh tests/fuzz/run.sh tests/fuzz/corpus
AM_TESTS_ENVIRONMENT += MPIX_FUZZ_TARGETS='$(FUZZ_TARGETS)'; export MPIX_FUZZ_TARGETS;
check-fuzz:
	@$(top_srcdir)/tests/fuzz/run.sh '$(abs_top_srcdir)' '$(abs_top_builddir)' $(FUZZ_TARGETS)
.PHONY: check-fuzz

# Of two ranks: tests/fuzz/replay.sh and run.sh start it by the launcher.
FUZZ_TARGETS += peer_words
check_PROGRAMS += tests/fuzz/peer_words
tests_fuzz_peer_words_SOURCES = tests/fuzz/peer_words.c $(MAIN_OF_FUZZ)
tests_fuzz_peer_words_LDFLAGS = $(LDFLAGS_OF_FUZZ)
tests_fuzz_peer_words_LDADD = libmpixep_core.la
