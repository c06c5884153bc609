/*
 * ucx.c - the transport's table, opening and closing, endpoints, and registered memory.
 *
 * What libucp may use is for its own variables to say: UCX_TLS and UCX_NET_DEVICES as in any
 * program, and MPIXEP_UCX_TLS and so on, which are this library's alone. One default is changed:
 * segments of TCP (segment.c).
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "transport/ucx/ucx.h"

_Static_assert(sizeof(ucx_key) == MPIX_UCX_KEY_BYTES && sizeof(ucx_blob) == MPIX_UCX_ADDRESS_BYTES,
               "sizes of blobs");

const mpix_ucx_host *ucx_host;

/* libucp keeps memory of its own in /dev/shm, which containers make small, or leave out; its status
 * does not tell. */
static const char *shm_hint(void) {
    struct statvfs fs;

    if (statvfs("/dev/shm", &fs) != 0 || access("/dev/shm", W_OK) != 0)
        return "; libucp needs /dev/shm, which is not there or can't be written: mount it (tmpfs, "
               "mode 1777)";
    if ((uint64_t)fs.f_bavail * fs.f_frsize < UCX_SHM_LEAST)
        return "; libucp needs /dev/shm, which is full: make it larger (containers: --shm-size), "
               "or remove what is left in it";
    return "";
}

int ucx_failed(int kind, ucs_status_t status, const char *what) {
    return ucx_host->fail(status == UCS_ERR_NO_MEMORY ? MPIX_ERRK_NO_MEM : kind, NULL,
                          "libucp: %s: %s%s", what, ucs_status_string(status), shm_hint());
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Whether a context has TCP: a key that nobody takes makes libucp print a warning. It tells its
 * resources to people only. */
static int has_tcp(ucp_context_h context) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    int found;

    if (!out)
        return 0;
    ucp_context_print_info(context, out);
    found = fclose(out) == 0 && strstr(text, " tcp/") != NULL;
    free(text);
    return found;
}

/* A context that has TCP is made once more if its segments are to be larger. */
static ucs_status_t open_segments(ucx_net *net, const ucp_params_t *want, ucp_config_t *config) {
    ucs_status_t status;

    ucx_segments_read(&net->segments);
    if (!net->segments.tx_key || !net->segments.rx_key)
        return UCS_OK;
    ucp_cleanup(net->context);
    status = ucx_segments_enlarge(&net->segments, config);
    if (status == UCS_OK)
        status = ucp_init(want, config, &net->context);
    net->enlarged = status == UCS_OK;
    return status;
}

/* Whether the user leaves the choice to libucp. */
static int any_transport(const ucp_config_t *config) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    int any;

    if (!out)
        return 0;
    ucp_config_print(config, out, NULL, UCS_CONFIG_PRINT_CONFIG);
    any = fclose(out) == 0 && strstr(text, "TLS=all\n") != NULL;
    free(text);
    return any;
}

/*
 * Between ranks of one host libucp would write a peer's memory by system calls (cma, knem) or by
 * mapping it (xpmem). A peer that was stopped would do so when it wakes, whoever has the memory by
 * then, and only libucp stands between (mem/calls.h). Without them the target writes, as over TCP,
 * and not after its end.
 */
#define UCX_NOT "^cma,knem,xpmem"

static int open_context(ucx_net *net, const mpix_params *params) {
    ucp_params_t want = {.field_mask = UCP_PARAM_FIELD_FEATURES |
                                       UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME,
                         .features = UCP_FEATURE_RMA | UCP_FEATURE_AMO64 | UCP_FEATURE_AM |
                                     UCP_FEATURE_WAKEUP,
                         .estimated_num_eps = (size_t)net->boot->size,
                         .name = "mpix-ep"};
    char seconds[32];
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read("MPIXEP", NULL, &config);

    if (status != UCS_OK)
        return ucx_failed(MPIX_ERRK_TRANSPORT, status, "its configuration can't be read");
    /* A silent peer that has ended is noticed by this; and additions must agree with
     * the processors'. */
    /* no point, which a locale may write otherwise */
    snprintf(seconds, sizeof seconds, "%lldms", (long long)(params->net_timeout * 500));
    status = ucp_config_modify(config, "KEEPALIVE_INTERVAL", seconds);
    if (status == UCS_OK)
        status = ucp_config_modify(config, "ATOMIC_MODE", "cpu");
    if (status == UCS_OK && any_transport(config))
        status = ucp_config_modify(config, "TLS", UCX_NOT);
    if (status == UCS_OK)
        status = ucp_init(&want, config, &net->context);
    if (status == UCS_OK && has_tcp(net->context))
        status = open_segments(net, &want, config);
    if (status != UCS_OK)
        net->context = NULL;
    ucp_config_release(config);
    if (status != UCS_OK)
        return ucx_failed(MPIX_ERRK_TRANSPORT, status,
                          "no context (is what UCX_TLS and UCX_NET_DEVICES name there?)");
    /* libucp itself aborts if its own messages do not fit. */
    if ((net->segments.tx && net->segments.tx < UCX_SEGMENT_LEAST) ||
        (net->segments.rx && net->segments.rx < UCX_SEGMENT_LEAST))
        return ucx_host->fail(MPIX_ERRK_UNSUPPORTED, NULL,
                              "UCX_TCP_TX_SEG_SIZE is %llu and UCX_TCP_RX_SEG_SIZE is %llu: at "
                              "least %d bytes are needed",
                              (unsigned long long)net->segments.tx,
                              (unsigned long long)net->segments.rx, UCX_SEGMENT_LEAST);
    return 0;
}

static int open_worker(ucx_net *net) {
    ucp_worker_params_t want = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = ucp_worker_create(net->context, &want, &net->worker);

    if (status != UCS_OK)
        return ucx_failed(MPIX_ERRK_TRANSPORT, status, "no worker");
    status = ucp_worker_get_efd(net->worker, &net->fd);
    if (status != UCS_OK)
        return ucx_failed(MPIX_ERRK_TRANSPORT, status, "no event descriptor");
    status = ucp_worker_get_address(net->worker, &net->address, &net->address_bytes);
    if (status != UCS_OK)
        return ucx_failed(MPIX_ERRK_TRANSPORT, status, "no address");
    if (net->address_bytes > sizeof((ucx_blob *)0)->address)
        return ucx_host->fail(MPIX_ERRK_UNSUPPORTED, NULL,
                              "the address of libucp's worker has %zu bytes, at most %zu are "
                              "possible: name fewer devices in UCX_NET_DEVICES or "
                              "transports in UCX_TLS",
                              net->address_bytes, sizeof((ucx_blob *)0)->address);
    return 0;
}

/* The peer has closed its side: what breaks from now on was to be. */
static ucs_status_t bye(void *arg, const void *header, size_t header_length, void *data,
                        size_t length, const ucp_am_recv_param_t *param) {
    ucx_net *net = arg;
    uint32_t rank;

    (void)data, (void)length, (void)param;
    if (header_length != sizeof rank)
        return UCS_OK;
    memcpy(&rank, header, sizeof rank);
    if (rank < (uint32_t)net->boot->size && net->peers[rank].lanes)
        net->peers[rank].bye = 1;
    return UCS_OK;
}

static int open_handlers(ucx_net *net) {
    static const ucp_am_recv_callback_t handlers[] = {ucx_store, bye, ucx_refused, ucx_asked,
                                                      ucx_data};

    for (unsigned i = 0; i < sizeof handlers / sizeof *handlers; i++) {
        ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                                      UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                        .id = UCX_AM_STORE + i,
                                        .cb = handlers[i],
                                        .arg = net};
        ucs_status_t status = ucp_worker_set_am_recv_handler(net->worker, &param);
        if (status != UCS_OK)
            return ucx_failed(MPIX_ERRK_TRANSPORT, status, "no handler of messages");
    }
    return 0;
}

static int open_peers(ucx_net *net, const unsigned char *want) {
    size_t npeers = 0, flushes;

    net->peers = calloc((size_t)net->boot->size, sizeof *net->peers);
    for (int r = 0; net->peers && r < net->boot->size; r++)
        npeers += want[r] != 0;
    flushes = npeers * (size_t)net->nlanes * UCX_FLUSHES;
    net->active = calloc(npeers * (size_t)net->nlanes + 1, sizeof(*net->active));
    net->flushes = calloc(flushes + 1, sizeof *net->flushes);
    if (!net->peers || !net->active || !net->flushes)
        goto no_memory;
    for (size_t i = 0; i < flushes; i++) {
        net->flushes[i].next = net->free_flush;
        net->free_flush = &net->flushes[i];
    }
    for (int r = 0; r < net->boot->size; r++) {
        ucx_peer *peer = &net->peers[r];
        peer->net = net;
        peer->rank = r;
        peer->broken = UCS_OK;
        if (!want[r])
            continue;
        peer->lanes = calloc((size_t)net->nlanes, sizeof *peer->lanes);
        for (int l = 0; l < net->nlanes; l++) {
            if (!peer->lanes ||
                !(peer->lanes[l].ring = calloc(UCX_DEPTH, sizeof *peer->lanes[l].ring)))
                goto no_memory;
            peer->lanes[l].peer = peer;
            peer->lanes[l].index = l;
        }
    }
    return 0;

no_memory:
    return ucx_host->fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d lanes to each of %zu peers",
                          net->nlanes, npeers);
}

/* ---- closing --------------------------------------------------------------------------------- */

static void over(void *request, ucs_status_t status, void *arg) {
    (void)status;
    ((ucx_net *)arg)->open--;
    ucp_request_free(request);
}

static void wait_for(ucx_net *net) {
    uint64_t until = mpix_clock_ns() + UCX_CLOSE_NS;

    while (net->open > 0 && mpix_clock_ns() < until)
        (void)ucp_worker_progress(net->worker);
}

static void begun(ucx_net *net, ucs_status_ptr_t result) {
    if (UCS_PTR_IS_PTR(result))
        net->open++;
}

/* Peers are told, as far as that takes no waiting for them; then all is given up. */
static void close_endpoints(ucx_net *net) {
    ucp_request_param_t send = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                UCP_OP_ATTR_FIELD_USER_DATA |
                                                UCP_OP_ATTR_FIELD_FLAGS,
                                .flags = UCP_AM_SEND_FLAG_EAGER,
                                .cb.send = over,
                                .user_data = net};
    ucp_request_param_t close = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE,
                                 .cb.send = over,
                                 .user_data = net};

    net->closing = 1;
    for (int r = 0; r < net->boot->size; r++)
        if (net->peers[r].ep && net->peers[r].broken == UCS_OK)
            begun(net, ucp_am_send_nbx(net->peers[r].ep, UCX_AM_BYE, &net->rank, sizeof net->rank,
                                       NULL, 0, &send));
    wait_for(net);
    for (int r = 0; r < net->boot->size; r++)
        if (net->peers[r].ep)
            begun(net, ucp_ep_close_nbx(net->peers[r].ep, &close));
    wait_for(net);
}

/* libucp uses keys and registrations until its requests have ended, as they do with their endpoint;
 * messages of a peer whose endpoint is closed are dropped. */
static void ucx_shut(mpix_net *base) {
    ucx_net *net = (ucx_net *)base;

    if (net->worker && net->peers && !net->closing)
        close_endpoints(net);
}

static int ucx_close(mpix_net *base) {
    ucx_net *net = (ucx_net *)base;

    if (!net)
        return 0;
    ucx_shut(base);
    if (net->address)
        ucp_worker_release_address(net->worker, net->address);
    if (net->worker)
        ucp_worker_destroy(net->worker);
    if (net->context)
        ucp_cleanup(net->context);
    for (int r = 0; net->peers && r < net->boot->size; r++) {
        for (int l = 0; net->peers[r].lanes && l < net->nlanes; l++)
            free(net->peers[r].lanes[l].ring);
        free(net->peers[r].lanes);
    }
    free(net->peers);
    free(net->active);
    free(net->flushes);
    free(net->mems);
    mpix_guard_free(net->guard);
    free(net);
    return 0;
}

extern const mpix_net_ops ucx_ops;

static int ucx_open(mpix_boot *boot, const mpix_params *params, const unsigned char *want,
                    mpix_net **out) {
    ucx_net *net = calloc(1, sizeof *net);
    unsigned major, minor, release;
    int kind;

    if (!net)
        return ucx_host->fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the transport ucx");
    net->net.ops = &ucx_ops;
    net->boot = boot;
    net->rank = (uint32_t)boot->rank;
    net->nlanes = params->lanes;
    net->fd = -1;
    kind = open_context(net, params);
    if (!kind)
        kind = open_worker(net);
    if (!kind)
        kind = open_handlers(net);
    if (!kind)
        kind = open_peers(net, want);
    if (kind) {
        (void)ucx_close(&net->net);
        return kind;
    }
    ucp_get_version(&major, &minor, &release);
    net->net.caps = (mpix_net_caps){
        .ordered = 1,
        .add_coherent = 1,
        .target_works = 1,
        .lanes = params->lanes,
        .depth = UCX_DEPTH,
        .max_op = net->enlarged ? UCX_LONG : (uint64_t)1 << 30,
        .why = "a word follows the end of a flush, or is in one stream with the writes"};
    snprintf(net->net.caps.device, sizeof net->net.caps.device, "libucp %u.%u.%u", major, minor,
             release);
    snprintf(net->net.caps.address, sizeof net->net.caps.address, "worker address of %zu bytes",
             net->address_bytes);
    *out = &net->net;
    return 0;
}

/* Blobs and keys come and go in messages, at any address: they are copied, not looked at
 * where they are. */

/* ---- connections ----------------------------------------------------------------------------- */

static int ucx_address(mpix_net *base, int peer, void *out) {
    ucx_net *net = (ucx_net *)base;
    ucx_blob blob = {.len = (uint32_t)net->address_bytes,
                     .tx = (uint32_t)net->segments.tx,
                     .rx = (uint32_t)net->segments.rx};

    (void)peer;
    memcpy(blob.address, net->address, net->address_bytes);
    memcpy(out, &blob, sizeof blob);
    return 0;
}

static void ep_failed(void *arg, ucp_ep_h ep, ucs_status_t status) {
    (void)ep;
    ucx_break(arg, status, "the connection failed");
}

/*
 * How many lanes libucp has to the peer, and how many of them are TCP: puts over TCP are emulated,
 * copied into messages and answered by others. libucp tells it to people only, one line per lane;
 * what it says in another way is not TCP.
 */
static int count_lanes(ucp_ep_h ep, int *tcp) {
    char *text = NULL, *line, *rest = NULL;
    size_t bytes;
    int lanes = 0;
    FILE *out = open_memstream(&text, &bytes);

    *tcp = 0;
    if (!out)
        return 0;
    ucp_ep_print_info(ep, out);
    if (fclose(out) == 0)
        for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            lanes += strstr(line, " lane[") != NULL;
            *tcp += strstr(line, " lane[") && strstr(line, ":tcp/");
        }
    free(text);
    return lanes;
}

/*
 * What goes over TCP in one piece: no more than both this rank's segment and the peer's. If the
 * peer takes less than libucp here sends, no put may be left to libucp, which would cut it by its
 * own segment; then each write is a message of ours, no longer than the peer takes. If the peer
 * sends more than is taken here, no get may be answered by more than fits.
 */
static void fit_segments(ucx_net *net, int peer, const ucx_blob *blob) {
    ucx_peer *p = &net->peers[peer];
    const ucx_segments *own = &net->segments;
    uint64_t most = (own->tx < blob->rx ? own->tx : blob->rx) - UCX_HEADS;
    int tcp, lanes = count_lanes(p->ep, &tcp), narrow = own->tx > blob->rx;

    p->tcp = lanes > 0 && tcp == lanes;
    p->message = UCX_SHORT;
    if (!tcp || own->tx < UCX_SEGMENT_LEAST || own->rx < UCX_SEGMENT_LEAST ||
        blob->tx < UCX_SEGMENT_LEAST || blob->rx < UCX_SEGMENT_LEAST)
        return;
    if (most > UCX_LONG)
        most = UCX_LONG;
    if (narrow || tcp == lanes)
        p->message = most;
    if ((narrow || tcp == lanes) && most < net->net.caps.max_op)
        net->net.caps.max_op = most;
    if (blob->tx > own->rx &&
        (!net->net.caps.read_op || own->rx - UCX_HEADS < net->net.caps.read_op))
        net->net.caps.read_op = own->rx - UCX_HEADS;
}

/* The connection itself is made by libucp when it is first used. */
static int ucx_connect(mpix_net *base, int peer, const void *in) {
    ucx_net *net = (ucx_net *)base;
    ucx_blob blob;
    ucp_ep_params_t want = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                          UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
                            .address = (const ucp_address_t *)blob.address,
                            .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                            .err_handler = {ep_failed, &net->peers[peer]}};
    ucs_status_t status;

    memcpy(&blob, in, sizeof blob);
    if (blob.len > sizeof blob.address)
        return ucx_host->fail_peer(MPIX_ERRK_INTERNAL, peer, net->boot->hostnames[peer],
                                   "the address of rank %d is damaged", peer);
    status = ucp_ep_create(net->worker, &want, &net->peers[peer].ep);
    if (status == UCS_OK) {
        fit_segments(net, peer, &blob);
        return 0;
    }
    net->peers[peer].ep = NULL;
    return ucx_host->fail_peer(MPIX_ERRK_TRANSPORT, peer, net->boot->hostnames[peer],
                               "libucp: no endpoint to rank %d on %s: %s (have both hosts a "
                               "transport of UCX_TLS in common?)",
                               peer, net->boot->hostnames[peer], ucs_status_string(status));
}

/* ---- the table ------------------------------------------------------------------------------- */

const mpix_net_ops ucx_ops = {
    .name = "ucx",
    .address_bytes = MPIX_UCX_ADDRESS_BYTES,
    .key_bytes = MPIX_UCX_KEY_BYTES,
    .open = ucx_open,
    .shut = ucx_shut,
    .close = ucx_close,
    .address = ucx_address,
    .connect = ucx_connect,
    .mem_reg = ucx_mem_reg,
    .mem_dereg = ucx_mem_dereg,
    .mem_foreign = ucx_mem_foreign,
    .mem_key = ucx_mem_key,
    .rmem_open = ucx_rmem_open,
    .rmem_close = ucx_rmem_close,
    .post = ucx_post,
    .poll = ucx_poll,
    .poll_arrivals = ucx_poll_arrivals,
    .arm = ucx_arm,
    .ack = ucx_ack,
};

MPIX_EXPORT const mpix_net_ops *mpix_ucx_module(const mpix_ucx_host *host);

const mpix_net_ops *mpix_ucx_module(const mpix_ucx_host *host) {
    if (host->abi != MPIX_UCX_ABI || host->boot_bytes != sizeof(mpix_boot) ||
        host->params_bytes != sizeof(mpix_params) || host->op_bytes != sizeof(mpix_net_op))
        return NULL;
    ucx_host = host;
    return &ucx_ops;
}
