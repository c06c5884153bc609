/*
 * test_verbs.c - the transport verbs over a mocked libibverbs (mock_verbs.c), which asserts what
 * it is asked for.
 *
 *   test_verbs_device.c   devices, ports, GIDs
 *   test_verbs_connect.c  limits, queue pairs, MTU
 *   test_verbs_mem.c      registration, keys, GPUs
 *   test_verbs_post.c     operations to work requests
 *   test_verbs_poll.c     refusals, completions
 *   test_verbs_event.c    events, sleeping, broken lanes
 */
#include "config.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/verbs_fixture.h"

fixture fix;

void fix_setup(void) {
    mock_reset();
    memset(&fix, 0, sizeof fix);
    ck_assert_int_eq(mpix_params_read(&fix.params), 0);
    fix.boot.size = FIX_RANKS;
    fix.boot.hostnames = fix.hostnames;
    for (int p = 0; p < FIX_RANKS; p++) {
        snprintf(fix.hostnames[p], sizeof fix.hostnames[p], "host%d", p);
        fix.want[p] = p != 0;
    }
}

int fix_open(void) {
    int kind = mpix_net_verbs.open(&fix.boot, &fix.params, fix.want, &fix.net);
    fix.v = (verbs_net *)fix.net;
    return kind;
}

void fix_blob(int peer, verbs_blob *blob) {
    (void)peer;
    ck_assert_int_eq(mpix_net_verbs.address(fix.net, peer, blob), 0);
    for (int l = 0; l < VERBS_MAX_LANES; l++)
        blob->lane[l].qpn += 1000; /* its own numbers are others */
}

void fix_connect(void) {
    verbs_blob blob;

    for (int p = 1; p < FIX_RANKS; p++) {
        if (!fix.want[p])
            continue;
        fix_blob(p, &blob);
        ck_assert_int_eq(mpix_net_verbs.connect(fix.net, p, &blob), 0);
    }
}

void fix_reopen(void) {
    verbs_key key;

    ck_assert_int_eq(fix_open(), 0);
    fix_connect();
    ck_assert_int_eq(mpix_net_verbs.mem_reg(fix.net, fix.memory, sizeof fix.memory, &fix.mem), 0);
    mpix_net_verbs.mem_key(fix.net, fix.mem, &key);
    for (int p = 1; p < FIX_RANKS; p++)
        ck_assert_int_eq(mpix_net_verbs.rmem_open(fix.net, p, &key, &fix.rmem[p]), 0);
}

void fix_teardown(void) {
    for (int p = 1; p < FIX_RANKS && fix.net; p++)
        mpix_net_verbs.rmem_close(fix.net, fix.rmem[p]);
    if (fix.mem)
        mpix_net_verbs.mem_dereg(fix.net, fix.mem);
    if (fix.net)
        mpix_net_verbs.close(fix.net);
    fix.net = NULL;
    ck_assert_int_eq(mock.live, 0);
    ck_assert_int_eq(mock.contexts, 0);
    for (int i = 0; i < mock.nqps; i++)
        free(mock.qp[i]);
    mock.nqps = 0;
}

mpix_net_op fix_write(int peer, int lane, uint64_t loff, uint64_t roff, uint64_t len) {
    return (mpix_net_op){.op = MPIX_NET_WRITE,
                         .peer = peer,
                         .lane = lane,
                         .mem = fix.mem,
                         .local = fix.memory + loff,
                         .rmem = fix.rmem[peer],
                         .roff = roff,
                         .len = len,
                         .counter = -1};
}

mpix_net_op fix_word(int peer, int lane, uint64_t roff, uint64_t value) {
    return (mpix_net_op){.op = MPIX_NET_WORD,
                         .peer = peer,
                         .lane = lane,
                         .rmem = fix.rmem[peer],
                         .roff = roff,
                         .value = value,
                         .counter = -1};
}

void fix_devices(const char *list) {
    snprintf(fix.params.net_devices, sizeof fix.params.net_devices, "%s", list);
}
void fix_open_one(void) {
    mock_add("mlx5_0", 1);
    fix_reopen();
}

mpix_net_done fix_done[64];
int fix_post(const mpix_net_op *ops, int n) { return mpix_net_verbs.post(fix.net, ops, n); }
int fix_poll(void) { return mpix_net_verbs.poll(fix.net, fix_done, 64); }
mock_qp *fix_qp(int peer, int lane) { return (mock_qp *)verbs_lane_of(fix.v, peer, lane)->qp; }

void fix_error(int kind, int expected, ...) {
    const char *text = mpix_error_tls()->text, *word;
    va_list args;

    ck_assert_int_eq(kind, expected);
    ck_assert_int_eq(mpix_error_tls()->kind, expected);
    va_start(args, expected);
    while ((word = va_arg(args, const char *)))
        ck_assert_msg(strstr(text, word) != NULL, "\"%s\" is not in the error: %s", word, text);
    va_end(args);
}

int main(void) {
    Suite *suite = suite_create("verbs");
    SRunner *runner;
    int failed;

    suite_add_tcase(suite, verbs_device_case());
    suite_add_tcase(suite, verbs_connect_case());
    suite_add_tcase(suite, verbs_mem_case());
    suite_add_tcase(suite, verbs_post_case());
    suite_add_tcase(suite, verbs_poll_case());
    suite_add_tcase(suite, verbs_event_case());
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
