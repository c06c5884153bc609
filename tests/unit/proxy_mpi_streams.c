/* proxy_mpi_streams.c - batches of puts, and their way from one rank to another and back. */
#include "config.h"

#include <string.h>

#include "base/clock.h"
#include "tests/unit/proxy_mpi.h"

mpix_boot *boot;
mpix_proxy *proxy;
mpix_doorbell bell;
int lanes;
char *source, *target, *image;
uint64_t *words;
stream *streams;

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t key_of(int src, int dst, int lane, uint64_t epoch) {
    return mix(mix((uint64_t)src << 40 | (uint64_t)dst << 20 | (uint64_t)lane) + epoch);
}

static size_t region_at(int peer, int lane, uint64_t epoch) {
    return (((size_t)peer * (size_t)lanes + (size_t)lane) * BANKS + epoch % BANKS) *
           (REGION + SLACK);
}

size_t word_at(int peer, int lane, int answer) {
    return (((size_t)peer * (size_t)lanes + (size_t)lane) * 2 + (size_t)answer) * 8;
}

uint64_t word(int peer, int lane, int answer) {
    return atomic_load_explicit((_Atomic uint64_t *)(void *)((char *)words +
                                                             word_at(peer, lane, answer)),
                                memory_order_acquire);
}

/* Disjoint pieces of the region, some empty, some aligned, with gaps. */
static void batch_make(batch *b, uint64_t key) {
    uint64_t at = 0, style;

    b->n = 0;
    for (int i = 0; i < PUTS; i++) {
        uint64_t r = mix(key + (uint64_t)i), len;
        style = r % 8;
        len = style == 0   ? 0
              : style < 4  ? 16 * (r >> 8 & 63)
              : style < 6  ? (r >> 8) % 100
              : style == 6 ? (r >> 8) % 3000
                           : (r >> 8) % 20000;
        at += style < 4 ? (16 - at % 16) % 16 : r >> 32 & 7;
        if (at + len > REGION || (r >> 60) == 0)
            break;
        b->puts[b->n++] = (put){at + (style == 5 ? r >> 40 & 15 : 0), at, len};
        /* the shifted source of this one does not reach into the next */
        at += len + (style == 5 ? SLACK : 0);
    }
}

static char content(uint64_t key, uint64_t at) { return (char)(mix(key ^ at / 8) >> 8 * (at % 8)); }

static void fill(char *to, uint64_t key, uint64_t from, uint64_t len) {
    for (uint64_t i = 0; i < len; i++)
        to[i] = content(key, from + i);
}

/* ---- one rank's part ------------------------------------------------------------------------- */

static int data_counter(int lane, uint64_t epoch) { return lane * BANKS + (int)(epoch % BANKS); }

int answer_counter(int lane, uint64_t epoch) { return lanes * BANKS + data_counter(lane, epoch); }

/* Queues as much of the next batch as there is room for. Returns 1 if something was queued, -kind
 * if the peer has failed. */
static int stream_send(stream *s, int peer, int lane, uint64_t rounds) {
    uint64_t epoch = s->sent + 1, key = key_of(boot->rank, peer, lane, epoch), seq;
    size_t local = region_at(peer, lane, epoch), remote = region_at(boot->rank, lane, epoch);
    int done = 0, queued;

    if (!s->building) {
        /* The peer has verified what was in the bank, and our own memory is not being
         * read any more. */
        if (s->sent == rounds || (epoch > BANKS && word(peer, lane, 1) < epoch - BANKS) ||
            (s->seq[epoch % BANKS] &&
             mpix_proxy_completed(proxy, peer, lane) < s->seq[epoch % BANKS]))
            return 0;
        batch_make(&s->out, key);
        for (int i = 0; i < s->out.n; i++)
            fill(source + local + s->out.puts[i].loff, key, s->out.puts[i].roff,
                 s->out.puts[i].len);
        s->building = 1;
        s->next = 0;
    }
    for (; s->next < s->out.n; s->next++, done = 1) {
        const put *p = &s->out.puts[s->next];
        queued = mpix_proxy_put(proxy, peer, lane, WIN_SOURCE, local + p->loff, WIN_TARGET,
                                remote + p->roff, p->len, (uint32_t)data_counter(lane, epoch),
                                &seq);
        if (queued <= 0)
            return queued < 0 ? queued : done;
    }
    queued = mpix_proxy_signal(proxy, peer, lane, WIN_WORDS, word_at(boot->rank, lane, 0), epoch,
                               (uint32_t)data_counter(lane, epoch), (uint32_t)s->out.n, &seq);
    if (queued <= 0)
        return queued < 0 ? queued : done;
    s->seq[epoch % BANKS] = seq;
    s->building = 0;
    s->sent = epoch;
    return 1;
}

static void stream_verify(int peer, int lane, uint64_t epoch) {
    uint64_t key = key_of(peer, boot->rank, lane, epoch);
    char *region = target + region_at(peer, lane, epoch);
    batch b;

    batch_make(&b, key);
    memset(image, 0x5a, REGION);
    for (int i = 0; i < b.n; i++)
        fill(image + b.puts[i].roff, key, b.puts[i].roff, b.puts[i].len);
    CHECK(memcmp(image, region, REGION) == 0, "rank %d from %d lane %d epoch %llu: %d puts",
          boot->rank, peer, lane, (unsigned long long)epoch, b.n);
    memset(region, 0x5a, REGION);
}

static int stream_receive(stream *s, int peer, int lane) {
    uint64_t there = word(peer, lane, 0), seq;
    int done = 0, queued;

    CHECK(there >= s->received, "rank %d from %d lane %d: the word went back to %llu", boot->rank,
          peer, lane, (unsigned long long)there);
    while (s->received < there) {
        stream_verify(peer, lane, ++s->received);
        done = 1;
    }
    while (s->answered < s->received) {
        queued = mpix_proxy_signal(proxy, peer, lane, WIN_WORDS, word_at(boot->rank, lane, 1),
                                   s->answered + 1, (uint32_t)answer_counter(lane, s->answered + 1),
                                   0, &seq);
        if (queued <= 0)
            return queued < 0 ? queued : done;
        s->answered++;
        s->answer = seq;
        done = 1;
    }
    return done;
}

int exchange(uint64_t rounds) {
    uint64_t start = mpix_clock_ns();
    mpix_wait wait;
    int open = 1;

    mpix_wait_start(&wait, mpix_proxy_rings(proxy) ? &bell : NULL, -1, 1);
    while (open) {
        int done = 0;
        open = 0;
        for (int i = 0; i < boot->size * lanes; i++) {
            int peer = i / lanes, lane = i % lanes, sent, received;
            stream *s = &streams[i];
            if (peer == boot->rank)
                continue;
            sent = stream_send(s, peer, lane, rounds);
            received = stream_receive(s, peer, lane);
            if (sent < 0 || received < 0)
                return sent < 0 ? -sent : -received;
            done |= sent | received;
            open |= s->sent < rounds || s->answered < rounds || word(peer, lane, 1) < rounds ||
                    mpix_proxy_completed(proxy, peer, lane) < s->answer;
        }
        done |= mpix_proxy_step(proxy);
        if (mpix_clock_ns() - start > (uint64_t)TIMEOUT_S * 1000000000u) {
            CHECK(0, "rank %d: not done after %d s", boot->rank, TIMEOUT_S);
            mpix_proxy_dump(proxy);
            return MPIX_ERRK_TIMEOUT;
        }
        if (!done && open) {
            mpix_wait_pause(&wait);
        } else {
            mpix_wait_end(&wait);
            mpix_wait_start(&wait, wait.bell, -1, 1);
        }
    }
    mpix_wait_end(&wait);
    return 0;
}
