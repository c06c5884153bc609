/* env_values.h - what env.c gives parameters that have no words to choose from. */
#ifndef TESTS_ENV_VALUES_H
#define TESTS_ENV_VALUES_H

/* A value for each parameter that is no enum, and another one for a job whose base is the first.
 * Tight ones: they show the most. */
static const struct {
    const char *name, *value, *other;
} values[] = {
    {"log_file", "/dev/null", "/dev/stderr"},
    {"trace", "/dev/null", "/dev/zero"},
    {"timeout", "77", "78"},
    {"stream_bytes", "64", "65"},
    {"ll_pull_bytes", "0", "1"},
    {"max_handles", "5", "6"},
    {"spin_us", "0", "3"},
    {"transport", "shmem", "chaos:shmem"},
    {"proxy_threads", "2", "3"},
    {"lanes", "2", "3"},
    {"chunk_bytes", "1024", "2048"},
    {"max_op", "64", "128"},
    {"fifo_slots", "2", "4"},
    {"proxy_depth", "1", "2"},
    {"proxy_descs", "1", "2"},
    {"credit_ops", "1", "2"},
    {"credit_bytes", "64", "128"},
    {"p2p_slots", "5", "6"},
    {"p2p_ring", "4", "5"},
    {"p2p_eager", "4096", "2048"},
    {"p2p_gpu_kernel", "0", "1"},
    {"two_hops_chunks", "1", "2"},
    {"two_hops_bytes", "0", "1"},
    {"counts_ranks", "0", "1"},
    {"hosts", "3", "2"},
    {"net_devices", "nowhere_0", "nowhere_1"},
    {"gid_index", "1", "0"},
    {"net_mtu", "1024", "512"},
    {"net_depth", "16", "32"},
    {"net_timeout", "7", "8"},
    {"traffic_class", "4", "8"},
    {"service_level", "1", "2"},
    {"chaos_seed", "99", "98"},
    {"chaos_pieces", "1", "8"},
    {"chaos_delay_us", "300", "200"},
    {"chaos_fail_at", "2000000000", "2000000001"},
    {"chaos_fail_ppm", "0", "0"},
    {"chaos_stall_at", "40", "30"},
    {"chaos_stall_ms", "1", "2"},
    {"chaos_rank", "0", "1"},
    {"cuda_module", "/nowhere/libmpixep_cuda.so", "/nowhere"},
    {"gpu_partial_bytes", "1048576", "2097152"},
    {"gpu_copy_streams", "2", "3"},
    {"gpu_delay_us", "1", "2"},
};

/* What has to be set beside a parameter, so that it does something and nothing that is
 * meant to fail. */
static const char *const beside[][3] = {{"chaos_stall_at", "chaos_stall_ms", "20"}};
#endif
