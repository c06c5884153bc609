/* proxy_fixture.h - what the files of test_proxy share: a proxy whose only peer is this rank. */
#ifndef MPIX_TESTS_PROXY_FIXTURE_H
#define MPIX_TESTS_PROXY_FIXTURE_H
#include <check.h>

#include "base/clock.h"
#include "proxy/proxy_internal.h"

enum { BYTES = 1 << 16, COUNTERS = 8 };
enum { FROM, TO, WORDS };

extern mpix_boot *boot;
extern mpix_params params;
extern mpix_proxy *proxy;
extern char *from, *to;
extern uint64_t *words;
extern mpix_net_ops hooked; /* shmem's, changed by a test */
extern const mpix_net_ops *real;

void set(const char *name, const char *value);
void open_proxy(const char *transport, const char *who, const char *form);
void hook(void); /* only with proxy=caller */
uint64_t word(int i);
uint64_t put(uint64_t loff, uint64_t roff, uint64_t len, uint32_t counter);
uint64_t signal_word(int i, uint64_t value, uint32_t counter, uint32_t writes);
void steps(int n);
void wait_completed(uint64_t seq);
const char *log_text(void);
int no_poll(mpix_net *net, mpix_net_done *done, int max);

void credit_tests(TCase *all);
void counted_tests(TCase *all);
void lost_tests(TCase *all);
void thread_tests(TCase *all);
#endif
