/* check.h - what mock_verbs.c wants of Check, where no test of Check runs. */
#ifndef MPIX_TESTS_FUZZ_CHECK_H
#define MPIX_TESTS_FUZZ_CHECK_H
#include "tests/fuzz/fuzz.h"

#define ck_assert(x) FUZZ_CHECK(x, "asserted by the mocked device")
#define ck_assert_msg(x, ...) FUZZ_CHECK(x, __VA_ARGS__)
#define ck_abort_msg(...) FUZZ_CHECK(0, __VA_ARGS__)
#define ck_assert_int_eq(a, b) ck_assert((a) == (b))
#define ck_assert_int_lt(a, b) ck_assert((a) < (b))
#define ck_assert_int_le(a, b) ck_assert((a) <= (b))
#define ck_assert_int_ge(a, b) ck_assert((a) >= (b))
#define ck_assert_int_gt(a, b) ck_assert((a) > (b))
#define ck_assert_uint_eq(a, b) ck_assert((a) == (b))
#define ck_assert_uint_le(a, b) ck_assert((a) <= (b))
#define ck_assert_uint_gt(a, b) ck_assert((a) > (b))
#define ck_assert_uint_lt(a, b) ck_assert((a) < (b))
#define ck_assert_ptr_nonnull(p) ck_assert((p) != NULL)
#define ck_assert_ptr_null(p) ck_assert((p) == NULL)
#define ck_assert_ptr_eq(a, b) ck_assert((a) == (b))
#endif
