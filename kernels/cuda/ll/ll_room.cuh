/*
 * ll_room.cuh - what a warp has asked for: asynchronous copies to places of its own in shared
 * memory. A lane reads only what it has asked for itself, so it waits for nobody, and pieces under
 * way need no registers: loops over them stay small.
 */
#ifndef MPIX_KERNELS_CUDA_LL_ROOM_CUH
#define MPIX_KERNELS_CUDA_LL_ROOM_CUH
#include "ll_block.cuh"

/* SLOT: a piece and a word of each lane */
enum { DEEP = 4, ROOM_VECTORS = LL_PIECE / 512, SLOT = LL_PIECE + 128 };

/* Addresses in shared memory, so that the accesses are known to go there. */
__device__ __forceinline__ void room_ask(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void room_ask_word(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void room_asked() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void room_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ uint4 room_load(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
__device__ __forceinline__ float room_load_word(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void room_store(uint32_t at, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
/* Bytes of a block's: DEEP slots, then what is held. */
__host__ __device__ constexpr size_t room_bytes(int held) {
    return (size_t)LL_WARPS * ((size_t)DEEP * SLOT + (size_t)held * LL_PIECE);
}
__device__ __forceinline__ uint32_t room_of(const void *all, int held) {
    return smem_at(all) + threadIdx.x / 32 * (DEEP * SLOT + held * LL_PIECE) +
           threadIdx.x % 32 * 16;
}

#endif
