/*
 * moe_kernels.hpp - what the layer in GPU memory does between the matrix products: kernels, called
 * on the default stream.
 *
 * Rows travel as float or bf16 and are computed with as float. Pointers are to GPU memory. A
 * "choice" is a place of a [rows][topk] array; "sorted" rows are sorted by expert.
 */
#ifndef EXAMPLES_MOE_KERNELS_HPP
#define EXAMPLES_MOE_KERNELS_HPP

#include <cstddef>
#include <cstdint>

namespace moe {
namespace gpu {

/** n floats to the type that travels, and back. */
void store(const float *from, std::size_t n, void *to, bool bf16);
void load(const void *from, std::size_t n, float *to, bool bf16);

/** Numbers the choices that are of this rank's experts, sorted by expert, in each expert in the
 * order in which they lie. offset: [experts] where each expert's begin. place: [choices] the number
 * or -1; choice: [sorted rows] the way back. */
void sort(const int *local_ids, std::size_t choices, std::size_t experts,
          const std::int64_t *offset, std::int64_t *place, std::int64_t *choice);

/** to[i] = the row that choice[i] belongs to, and values[choice[i]]. */
void gather_rows(const void *rows, bool bf16, const std::int64_t *choice, std::size_t topk,
                 std::size_t n, std::size_t hidden, float *to);
void gather_values(const float *values, const std::int64_t *choice, std::size_t n, float *to);

/** Each row the sum of its choices' sorted rows, in order, times their weights if there are any. */
void scatter_rows(const float *sorted, const std::int64_t *place, const float *weights,
                  std::size_t rows, std::size_t topk, std::size_t hidden, void *to, bool bf16);
/** to[c] = sorted[place[c]], 0 where there is no place. */
void scatter_values(const float *sorted, const std::int64_t *place, std::size_t choices, float *to);

/** act = silu(gate) * up. */
void swiglu(const float *gate, const float *up, std::size_t n, float *act);
/** Through weight, product and silu. dgate: in: the derivative by act (before the weight), out: by
 * gate. act: weight * act. dweight: [rows] dact . act. */
void swiglu_backward(const float *gate, const float *up, const float *weight, std::size_t rows,
                     std::size_t inner, float *act, float *dgate, float *dup, float *dweight);

} // namespace gpu
} // namespace moe

#endif
