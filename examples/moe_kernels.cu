/* moe_kernels.cu - see moe_kernels.hpp. Plain kernels: they show what has to be done, the time goes
 * into the products. */
#include "moe_kernels.hpp"

#include <cstdint>
#include <cuda_runtime.h>
#include <stdexcept>
#include <string>

namespace {

enum { THREADS = 256, MOST_BLOCKS = 4096 };

void launched(const char *what) {
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

unsigned blocks(std::size_t n) {
    const std::size_t need = (n + THREADS - 1) / THREADS;
    return static_cast<unsigned>(need < 1 ? 1 : need > MOST_BLOCKS ? MOST_BLOCKS : need);
}

__device__ float from_bf16(std::uint16_t bits) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

/* To nearest even, as on the host. */
__device__ std::uint16_t to_bf16(float value) {
    const unsigned bits = __float_as_uint(value);
    if (value != value)
        return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

__device__ float get(const void *rows, std::size_t i, bool bf16) {
    return bf16 ? from_bf16(static_cast<const std::uint16_t *>(rows)[i])
                : static_cast<const float *>(rows)[i];
}
__device__ void put(void *rows, std::size_t i, float value, bool bf16) {
    if (bf16)
        static_cast<std::uint16_t *>(rows)[i] = to_bf16(value);
    else
        static_cast<float *>(rows)[i] = value;
}

#define FOR_ALL(i, n) \
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < (n); \
         i += static_cast<std::size_t>(gridDim.x) * blockDim.x)

__global__ void store_kernel(const float *from, std::size_t n, void *to, bool bf16) {
    FOR_ALL(i, n)
    put(to, i, from[i], bf16);
}
__global__ void load_kernel(const void *from, std::size_t n, float *to, bool bf16) {
    FOR_ALL(i, n)
    to[i] = get(from, i, bf16);
}

/* One block per expert, one warp: the order of the choices must not depend on who comes first. */
__global__ void sort_kernel(const int *local_ids, std::size_t choices, const std::int64_t *offset,
                            std::int64_t *place, std::int64_t *choice) {
    const int expert = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
    std::int64_t next = offset[expert];
    for (std::size_t first = 0; first < choices; first += 32) {
        const std::size_t c = first + static_cast<std::size_t>(lane);
        const bool mine = c < choices && local_ids[c] == expert;
        const unsigned all = __ballot_sync(~0u, mine);
        if (mine) {
            place[c] = next + __popc(all & ((1u << lane) - 1));
            choice[place[c]] = static_cast<std::int64_t>(c);
        }
        next += __popc(all);
    }
}

__global__ void gather_rows_kernel(const void *rows, bool bf16, const std::int64_t *choice,
                                   std::size_t topk, std::size_t n, std::size_t hidden, float *to) {
    FOR_ALL(i, n * hidden)
    to[i] = get(rows, static_cast<std::size_t>(choice[i / hidden]) / topk * hidden + i % hidden,
                bf16);
}
__global__ void gather_values_kernel(const float *values, const std::int64_t *choice, std::size_t n,
                                     float *to) {
    FOR_ALL(i, n)
    to[i] = values[choice[i]];
}
__global__ void scatter_rows_kernel(const float *sorted, const std::int64_t *place,
                                    const float *weights, std::size_t rows, std::size_t topk,
                                    std::size_t hidden, void *to, bool bf16) {
    FOR_ALL(i, rows * hidden) {
        float sum = 0;
        for (std::size_t c = i / hidden * topk; c < (i / hidden + 1) * topk; c++)
            if (place[c] >= 0)
                sum += (weights ? weights[c] : 1.0f) *
                       sorted[static_cast<std::size_t>(place[c]) * hidden + i % hidden];
        put(to, i, sum, bf16);
    }
}
__global__ void scatter_values_kernel(const float *sorted, const std::int64_t *place,
                                      std::size_t choices, float *to) {
    FOR_ALL(c, choices)
    to[c] = place[c] < 0 ? 0.0f : sorted[place[c]];
}

__global__ void swiglu_kernel(const float *gate, const float *up, std::size_t n, float *act) {
    FOR_ALL(i, n)
    act[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

/* One warp per row. */
__global__ void swiglu_backward_kernel(const float *gate, const float *up, const float *weight,
                                       std::size_t rows, std::size_t inner, float *act,
                                       float *dgate, float *dup, float *dweight) {
    const std::size_t warps = static_cast<std::size_t>(gridDim.x) * blockDim.x / 32,
                      lane = threadIdx.x % 32;
    for (std::size_t row = (blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x) / 32;
         row < rows; row += warps) {
        const float w = weight[row];
        double dot = 0;
        for (std::size_t i = row * inner + lane; i < (row + 1) * inner; i += 32) {
            const float dact = dgate[i], sigmoid = 1.0f / (1.0f + expf(-gate[i])),
                        silu = gate[i] * sigmoid;
            const float one = silu * up[i];
            dot += static_cast<double>(dact) * static_cast<double>(one);
            act[i] = w * one;
            dup[i] = w * dact * silu;
            dgate[i] = w * dact * up[i] * sigmoid * (1.0f + gate[i] * (1.0f - sigmoid));
        }
        for (int d = 16; d; d /= 2)
            dot += __shfl_xor_sync(~0u, dot, d);
        if (lane == 0)
            dweight[row] = static_cast<float>(dot);
    }
}

} // namespace

namespace moe {
namespace gpu {

void store(const float *from, std::size_t n, void *to, bool bf16) {
    store_kernel<<<blocks(n), THREADS>>>(from, n, to, bf16);
    launched("store");
}
void load(const void *from, std::size_t n, float *to, bool bf16) {
    load_kernel<<<blocks(n), THREADS>>>(from, n, to, bf16);
    launched("load");
}
void sort(const int *local_ids, std::size_t choices, std::size_t experts,
          const std::int64_t *offset, std::int64_t *place, std::int64_t *choice) {
    const cudaError_t error = cudaMemsetAsync(place, 0xff, choices * sizeof *place); /* -1 */
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("cudaMemsetAsync: ") + cudaGetErrorString(error));
    if (experts > 0)
        sort_kernel<<<static_cast<unsigned>(experts), 32>>>(local_ids, choices, offset, place,
                                                            choice);
    launched("sort");
}
void gather_rows(const void *rows, bool bf16, const std::int64_t *choice, std::size_t topk,
                 std::size_t n, std::size_t hidden, float *to) {
    gather_rows_kernel<<<blocks(n * hidden), THREADS>>>(rows, bf16, choice, topk, n, hidden, to);
    launched("gather_rows");
}
void gather_values(const float *values, const std::int64_t *choice, std::size_t n, float *to) {
    gather_values_kernel<<<blocks(n), THREADS>>>(values, choice, n, to);
    launched("gather_values");
}
void scatter_rows(const float *sorted, const std::int64_t *place, const float *weights,
                  std::size_t rows, std::size_t topk, std::size_t hidden, void *to, bool bf16) {
    scatter_rows_kernel<<<blocks(rows * hidden), THREADS>>>(sorted, place, weights, rows, topk,
                                                            hidden, to, bf16);
    launched("scatter_rows");
}
void scatter_values(const float *sorted, const std::int64_t *place, std::size_t choices,
                    float *to) {
    scatter_values_kernel<<<blocks(choices), THREADS>>>(sorted, place, choices, to);
    launched("scatter_values");
}
void swiglu(const float *gate, const float *up, std::size_t n, float *act) {
    swiglu_kernel<<<blocks(n), THREADS>>>(gate, up, n, act);
    launched("swiglu");
}
void swiglu_backward(const float *gate, const float *up, const float *weight, std::size_t rows,
                     std::size_t inner, float *act, float *dgate, float *dup, float *dweight) {
    swiglu_backward_kernel<<<blocks(rows * 32), THREADS>>>(gate, up, weight, rows, inner, act,
                                                           dgate, dup, dweight);
    launched("swiglu_backward");
}

} // namespace gpu
} // namespace moe
