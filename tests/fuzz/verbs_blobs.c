/*
 * verbs_blobs.c - what a peer sends at creation: the address of its queue pairs and the key of its
 * window, changed at will, and operations with what was taken. The devices are mock_verbs.c.
 */
#include "config.h"

#include "base/log.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/mock_verbs.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/wire.h"

enum { RANKS = 3 };

static mpix_boot boot;
static mpix_params params;
static char hostnames[RANKS][64];
static unsigned char memory[1 << 14] __attribute__((aligned(4096)));

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    boot.size = RANKS;
    boot.hostnames = hostnames;
    return mpix_params_read(&params) || mpix_params_set(&params, "log_level", "none");
}

/* XORs bytes of the input at places of the input into a blob that is right. */
static void change(fuzz_bytes *in, void *blob, size_t bytes) {
    for (int n = fuzz_range(in, 0, 24); n > 0; n--) {
        size_t at = (size_t)fuzz_u8(in) | (size_t)fuzz_u8(in) << 8;
        ((uint8_t *)blob)[at % bytes] ^= fuzz_u8(in);
    }
}

static void operate(fuzz_bytes *in, mpix_net *net, mpix_net_mem *mem, mpix_net_rmem *rmem, int peer,
                    uint64_t bytes) {
    mpix_net_done done[64];
    for (int n = fuzz_range(in, 0, 8); n > 0; n--) {
        /* As the layers above ask: inside what the peer's key says, inside the limits of
         * the transport. */
        uint64_t len = fuzz_u8(in) * 8u, roff = 0;
        fuzz_fill(in, &roff, 4);
        if (len > bytes)
            continue;
        roff = roff % (bytes - len + 1) & ~(uint64_t)7;
        mpix_net_op op = {.op = fuzz_range(in, MPIX_NET_WRITE, MPIX_NET_READ),
                          .peer = peer,
                          .lane = fuzz_range(in, 0, net->caps.lanes - 1),
                          .mem = mem,
                          .local = memory,
                          .rmem = rmem,
                          .roff = roff,
                          .len = len,
                          .counter = -1};
        if (op.op == MPIX_NET_WORD) {
            op.mem = NULL;
            op.local = NULL;
            op.len = 0;
            if (bytes < 8 || roff > bytes - 8)
                continue;
        }
        (void)mpix_net_verbs.post(net, &op, 1);
    }
    for (int i = 0; i < mock.nqps; i++)
        mock_finish(mock.qp[i], mock.qp[i]->posted - mock.qp[i]->finished);
    (void)mpix_net_verbs.poll(net, done, 64);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const unsigned char want[RANKS] = {0, 1, 1};
    fuzz_bytes in = {data, size};
    mpix_net *net = NULL;
    mpix_net_mem *mem = NULL;
    mpix_net_rmem *rmem[RANKS] = {NULL};
    verbs_blob blob;
    verbs_key key;
    mock_reset();
    mock_add("mlx5_0", 1);
    if (fuzz_range(&in, 0, 1))
        mock_add("mlx5_1", 1);
    params.lanes = fuzz_range(&in, 1, 4);
    if (mpix_net_verbs.open(&boot, &params, want, &net))
        abort();
    FUZZ_CHECK(mpix_net_verbs.mem_reg(net, memory, sizeof memory, &mem) == 0, "%s",
               mpix_error_tls()->text);
    for (int p = 1; p < RANKS; p++) {
        if (mpix_net_verbs.address(net, p, &blob))
            abort();
        change(&in, &blob, sizeof blob);
        int connected = mpix_net_verbs.connect(net, p, &blob) == 0;
        mpix_net_verbs.mem_key(net, mem, &key);
        change(&in, &key, sizeof key);
        if (mpix_net_verbs.rmem_open(net, p, &key, &rmem[p]))
            rmem[p] = NULL;
        else if (connected)
            operate(&in, net, mem, rmem[p], p, key.bytes);
    }
    for (int p = 1; p < RANKS; p++)
        if (rmem[p])
            mpix_net_verbs.rmem_close(net, rmem[p]);
    mpix_net_verbs.mem_dereg(net, mem);
    mpix_net_verbs.close(net);
    FUZZ_CHECK(mock.live == 0, "%d objects of the device are left", mock.live);
    for (int i = 0; i < mock.nqps; i++)
        free(mock.qp[i]);
    mock.nqps = 0;
    return 0;
}
