/* test_window_socket.c - unit tests of passing descriptors between threads that play ranks. */
#include "config.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "transport/transport.h"
#include "tests/unit/window_fixture.h"

enum { PLAYERS = 4 };

/* A rank that is a thread of this process. */
typedef struct player {
    mpix_boot boot;
    mpix_win win, *own;
    mpix_params params;
    mpix_win_blob blobs[PLAYERS];
    int hosts[PLAYERS], sock, kind;
    char names[PLAYERS][64];
    void *slots[2][PLAYERS];
    size_t lengths[PLAYERS];
    const mpix_transport_ops *via[PLAYERS];
    char text[256];
} player;

static void players_make(player *p, double timeout) {
    for (int r = 0; r < PLAYERS; r++) {
        memset(&p[r], 0, sizeof p[r]);
        p[r].own = create(r == 2 ? 0 : 5000 + (size_t)r, MPIX_WIN_COMMIT * 0);
        p[r].boot = (mpix_boot){.rank = r,
                                .size = PLAYERS,
                                .nhosts = 1,
                                .host_of = p[r].hosts,
                                .hostnames = p[r].names};
        p[r].params = params;
        p[r].params.timeout = timeout;
        p[r].win = (mpix_win){.fd = p[r].own->fd,
                              .rank = r,
                              .size = PLAYERS,
                              .peer = p[r].slots[0],
                              .peer_map = p[r].slots[1],
                              .peer_reserved = p[r].lengths,
                              .via = p[r].via};
        for (int q = 0; q < PLAYERS; q++) {
            p[r].via[q] = &mpix_transport_mapped;
            snprintf(p[r].names[q], sizeof p[r].names[q], "host-of-%d", q);
        }
        if (p[r].own->map)
            ((mpix_win_header *)p[r].own->map)->rank = r; /* created by rank 0 of a job of one */
        mpix_win_export(p[r].own, &params, &p[0].blobs[r]);
        ck_assert_int_eq(mpix_fdpass_open(&p[0].blobs[r], &p[r].sock), 0);
    }
    for (int r = 1; r < PLAYERS; r++)
        memcpy(p[r].blobs, p[0].blobs, sizeof p[0].blobs);
}

static void players_free(player *p) {
    for (int r = 0; r < PLAYERS; r++) {
        for (int q = 0; q < PLAYERS; q++)
            mpix_win_unmap_peer(&p[r].win, q);
        close(p[r].sock);
        mpix_win_free(p[r].own);
    }
}

static void *player_run(void *arg) {
    player *p = arg;

    p->kind = mpix_fdpass_exchange(&p->boot, &p->params, &p->win, p->blobs, p->sock);
    memcpy(p->text, mpix_error_tls()->text, sizeof p->text);
    return NULL;
}

static void players_run(player *p, int first) {
    pthread_t threads[PLAYERS];

    for (int r = first; r < PLAYERS; r++)
        ck_assert_int_eq(pthread_create(&threads[r], NULL, player_run, &p[r]), 0);
    for (int r = first; r < PLAYERS; r++)
        pthread_join(threads[r], NULL);
}

START_TEST(socket_exchange) {
    static player p[PLAYERS];
    int before = fds();

    players_make(p, 20);
    players_run(p, 0);
    for (int r = 0; r < PLAYERS; r++) {
        ck_assert_msg(p[r].kind == 0, "%s", p[r].text);
        for (int q = 0; q < PLAYERS; q++) {
            if (q == r || q == 2) {
                ck_assert_ptr_null(p[r].win.peer[q]);
                continue;
            }
            ck_assert_ptr_nonnull(p[r].win.peer[q]);
            ((char *)p[r].win.peer[q])[r] = (char)(r + 1);
            ck_assert_int_eq(((char *)p[q].own->base)[r], r + 1);
        }
    }
    players_free(p);
    ck_assert_int_eq(fds(), before);
}
END_TEST

/* Datagrams of a stranger, with descriptors and with a guessed rank, change nothing and
 * leak nothing. */
static void send_garbage(const mpix_win_blob *to, const void *data, size_t len, int nfds) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct iovec iov = {(void *)(uintptr_t)data, len};
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(8 * sizeof(int))];
    } control = {.room = {0}};
    struct msghdr msg = {.msg_name = &addr,
                         .msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room};
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), give[8];
    struct cmsghdr *cmsg;

    for (int i = 0; i < nfds; i++)
        give[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    memcpy(addr.sun_path, to->addr, (size_t)to->addr_len);
    msg.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)to->addr_len);
    msg.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
    cmsg = CMSG_FIRSTHDR(&msg);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
    memcpy(CMSG_DATA(cmsg), give, (size_t)nfds * sizeof(int));
    ck_assert_int_eq(sendmsg(sock, &msg, 0), (ssize_t)len);
    for (int i = 0; i < nfds; i++)
        close(give[i]);
    close(sock);
}

START_TEST(socket_strangers) {
    static player p[PLAYERS];
    int before = fds();
    struct {
        uint64_t random[2];
        int32_t rank, pad;
    } forged = {{1, 2}, 1, 0}, outside = {{0, 0}, 1 << 20, 0};

    players_make(p, 20);
    send_garbage(&p[0].blobs[0], "x", 1, 1);
    send_garbage(&p[0].blobs[0], &forged, sizeof forged, 3);
    send_garbage(&p[0].blobs[0], &outside, sizeof outside, 1);
    send_garbage(&p[0].blobs[3], &forged, sizeof forged, 8);
    players_run(p, 0);
    for (int r = 0; r < PLAYERS; r++)
        ck_assert_msg(p[r].kind == 0, "%s", p[r].text);
    players_free(p);
    ck_assert_int_eq(fds(), before);
}
END_TEST

/* Rank 0 never comes: the others end in time and blame it. */
START_TEST(socket_timeout) {
    static player p[PLAYERS];
    uint64_t start = mpix_clock_ns();
    int before = fds();

    players_make(p, 0.3);
    players_run(p, 1);
    ck_assert_uint_ge(mpix_clock_ns() - start, 250000000);
    ck_assert_uint_lt(mpix_clock_ns() - start, 20000000000u);
    for (int r = 1; r < PLAYERS; r++) {
        ck_assert_msg(p[r].kind == MPIX_ERRK_TIMEOUT, "%s", p[r].text);
        ck_assert_ptr_nonnull(strstr(p[r].text, "rank 0"));
    }
    players_free(p);
    ck_assert_int_eq(fds(), before);
}
END_TEST

/* To rank 3, rank 0's socket is gone and rank 1's in another network name space: found at once,
 * without waiting for either. */
START_TEST(socket_gone) {
    static player p[PLAYERS];
    uint64_t start = mpix_clock_ns();

    players_make(p, 60);
    close(p[0].sock);
    for (int r = 0; r < PLAYERS; r++)
        p[r].blobs[1].net_ns++;
    players_run(p, 3);
    ck_assert_uint_lt(mpix_clock_ns() - start, 20000000000u);
    ck_assert_int_eq(p[3].kind, MPIX_ERRK_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(p[3].text, "name spaces"));
    p[0].sock = -1;
    players_free(p);
}
END_TEST

TCase *window_socket_case(void) {
    TCase *c = tcase_create("sockets");

    tcase_add_test(c, socket_exchange);
    tcase_add_test(c, socket_strangers);
    tcase_add_test(c, socket_timeout);
    tcase_add_test(c, socket_gone);
    return c;
}
