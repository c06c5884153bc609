/*
 * mpix_ep.hpp - the C API of mpix_ep.h and mpix_p2p.h for C++17 and later: ownership, spans and
 * exceptions. Header only. It includes mpix_p2p.hpp and mpix_xfer.hpp, which can be included alone.
 *
 *  - Every function here calls one function of the C library and turns its error code into a
 *    mpix::error. Nothing is stored beside the C handle except what a span's size is checked with,
 *    nothing is allocated, and exceptions begin on this side of the C calls: objects made here have
 *    the error handler MPI_ERRORS_RETURN.
 *  - Objects are owned: move only, freed by their destructors. Freeing contexts, P2P objects,
 *    handles and memory is collective or ordered between ranks (mpix_ep.h); so is the destruction
 *    here. While an exception unwinds the stack nothing collective is called, since the other ranks
 *    are elsewhere: the C objects then stay until MPI_Finalize. Memory, handles and transfers must
 *    not outlive their context. One that does, say a member declared before its context, is told in
 *    the log when it is destroyed; its error is not raised.
 *  - MPI_Finalize takes down what is left, so destructors that run later, of static objects or in
 *    main itself, do nothing. What should be freed in time lies in a block that ends before
 *    MPI_Finalize. In a child of fork destructors let go of the child's copies.
 *  - mpix::span is std::span where the library has it (C++20), else a pointer with a size.
 *  - The argument structs are those of C with struct_size set: mpix::dispatch_in in;
 *    in.hidden = 7168; ...
 */
#ifndef MPIX_EP_HPP
#define MPIX_EP_HPP

#include "mpix_xfer.hpp"

#include "mpix_ep.h"
#include "mpix_p2p.hpp"

namespace mpix {

/** The library's version: major, minor, patch. */
struct version_numbers {
    int major, minor, patch;
};
inline version_numbers version() noexcept {
    version_numbers v{};
    MPIX_Ep_get_version(&v.major, &v.minor, &v.patch);
    return v;
}

/* ---- argument structs ------------------------------------------------------------------------ */

using config = detail::sized<MPIX_Ep_config>;
using routing = detail::sized<MPIX_Ep_routing>;
using counts = detail::sized<MPIX_Ep_counts>;
using dispatch_in = detail::sized<MPIX_Ep_dispatch_in>;
using dispatch_out = detail::sized<MPIX_Ep_dispatch_out>;
using combine_in = detail::sized<MPIX_Ep_combine_in>;
using combine_out = detail::sized<MPIX_Ep_combine_out>;

/** The dtype of C++'s own types; 16-bit and fp8 rows are named with rows(data, dtype). */
template <class T> constexpr int dtype_of() {
    using U = std::remove_cv_t<T>;
    static_assert(std::is_same_v<U, float> || std::is_same_v<U, double> ||
                      (sizeof(U) == 1 && !std::is_same_v<U, bool>),
                  "rows of this type: name the dtype, as in rows(data, MPIX_EP_BF16)");
    return std::is_same_v<U, float>    ? MPIX_EP_F32
           : std::is_same_v<U, double> ? MPIX_EP_F64
                                       : MPIX_EP_BYTES;
}

/** Rows at data; stride in bytes, 0: dense. What C only reads may be const here. */
template <class T>
MPIX_Ep_rows rows(T *data, int dtype = dtype_of<T>(), MPI_Count stride = 0) noexcept {
    MPIX_Ep_rows r{};
    r.data = const_cast<std::remove_cv_t<T> *>(data);
    r.dtype = dtype;
    r.stride = stride;
    return r;
}

/** fp8 rows with their scales, MPIX_EP_SCALES_F32 or MPIX_EP_SCALES_UE8M0. */
template <class T>
MPIX_Ep_rows rows(T *data, int dtype, MPI_Count stride, int scale_kind, void *scales,
                  MPI_Count scale_stride = 0) noexcept {
    MPIX_Ep_rows r = rows(data, dtype, stride);
    r.scale_kind = scale_kind;
    r.scales = scales;
    r.scale_stride = scale_stride;
    return r;
}

/* ---- contexts -------------------------------------------------------------------------------- */

template <class T> class memory;

/** A context: MPIX_Ep. Made and destroyed by all ranks of comm. */
class ep {
public:
    ep() noexcept = default;
    ep(MPI_Comm comm, const MPIX_Ep_config &c, MPI_Info info = MPI_INFO_NULL) {
        {
            detail::returning handler(comm);
            detail::check(MPIX_Ep_create(comm, &c, info, &ep_), "MPIX_Ep_create");
        }
        set_errhandler(MPI_ERRORS_RETURN);
    }
    ep(ep &&other) noexcept : ep_(std::exchange(other.ep_, MPIX_EP_NULL)) {}
    ep &operator=(ep &&other) noexcept {
        std::swap(ep_, other.ep_);
        return *this;
    }
    ~ep() {
        if (ep_ != MPIX_EP_NULL && calm_())
            detail::last_call([this] { MPIX_Ep_free(&ep_); });
    }
    /** The destructor, with its error. */
    void free() { detail::check(MPIX_Ep_free(&ep_), "MPIX_Ep_free"); }
    MPIX_Ep get() const noexcept { return ep_; }
    operator MPIX_Ep() const noexcept { return ep_; }

    /** Bytes of windows that such a context reserves at most. */
    static MPI_Count window_size(const MPIX_Ep_config &c, int ranks, int ranks_per_host) {
        MPI_Count bytes = 0;
        detail::check(MPIX_Ep_window_size(&c, ranks, ranks_per_host, &bytes),
                      "MPIX_Ep_window_size");
        return bytes;
    }
    mpix::config get_config() const {
        mpix::config c;
        detail::check(MPIX_Ep_get_config(ep_, &c), "MPIX_Ep_get_config");
        return c;
    }
    MPIX_Ep_peer peer(int rank) const {
        detail::sized<MPIX_Ep_peer> p;
        detail::check(MPIX_Ep_get_peer(ep_, rank, &p), "MPIX_Ep_get_peer");
        return p;
    }
    /** What made the context fail, if it has. */
    std::optional<MPIX_Error> async_error() const {
        detail::sized<MPIX_Error> e;
        detail::check(MPIX_Ep_get_async_error(ep_, &e), "MPIX_Ep_get_async_error");
        return e.kind ? std::optional<MPIX_Error>(e) : std::nullopt;
    }
    /** Another handler than MPI_ERRORS_RETURN is called before the exception. */
    void set_errhandler(MPI_Errhandler handler) {
        detail::check(MPIX_Ep_set_errhandler(ep_, handler), "MPIX_Ep_set_errhandler");
    }
    /** Registers the caller's memory, collectively; true: peers reach it directly. */
    bool register_memory(void *base, MPI_Count bytes) {
        int direct = 0;
        detail::check(MPIX_Ep_register(ep_, base, bytes, &direct), "MPIX_Ep_register");
        return direct != 0;
    }
    void deregister_memory(void *base) {
        detail::check(MPIX_Ep_deregister(ep_, base), "MPIX_Ep_deregister");
    }
    /** alive: [ranks] */
    void get_mask(span<int> alive) const {
        detail::check(MPIX_Ep_get_mask(ep_, alive.data()), "MPIX_Ep_get_mask");
    }
    void set_mask(int rank, bool alive) {
        detail::check(MPIX_Ep_set_mask(ep_, rank, alive), "MPIX_Ep_set_mask");
    }
    /** Zeroed memory for count elements that peers reach directly; collective. */
    template <class T> memory<T> alloc(std::size_t count, MPI_Info info = MPI_INFO_NULL) {
        return memory<T>(ep_, count, info);
    }

private:
    MPIX_Ep ep_ = MPIX_EP_NULL;
    detail::calm calm_;
};

/** Memory from MPIX_Ep_alloc. All ranks make and destroy theirs in the same order. */
template <class T> class memory {
    static_assert(std::is_trivially_copyable_v<T>, "peers copy bytes");

public:
    memory() noexcept = default;
    memory(MPIX_Ep ep, std::size_t count, MPI_Info info = MPI_INFO_NULL) : ep_(ep), size_(count) {
        detail::check(MPIX_Ep_alloc(ep, detail::count(count * sizeof(T)), info, &data_),
                      "MPIX_Ep_alloc");
    }
    memory(memory &&other) noexcept
        : ep_(other.ep_), data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)) {}
    memory &operator=(memory &&other) noexcept {
        std::swap(ep_, other.ep_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~memory() {
        if (data_ && calm_())
            detail::last_call([this] { MPIX_Ep_dealloc(ep_, data_); });
    }
    void dealloc() {
        detail::check(MPIX_Ep_dealloc(ep_, std::exchange(data_, nullptr)), "MPIX_Ep_dealloc");
    }
    T *data() const noexcept { return static_cast<T *>(data_); }
    std::size_t size() const noexcept { return size_; }
    T &operator[](std::size_t i) const { return data()[i]; }
    T *begin() const noexcept { return data(); }
    T *end() const noexcept { return data() + size_; }

private:
    MPIX_Ep ep_ = MPIX_EP_NULL;
    void *data_ = nullptr;
    std::size_t size_ = 0;
    detail::calm calm_;
};

/* ---- handles and calls ----------------------------------------------------------------------- */

/** A handle: MPIX_Ep_handle, the place of one routing. Made and destroyed by all ranks in
 * the same order. */
class handle {
public:
    handle() noexcept = default;
    explicit handle(MPIX_Ep ep) {
        detail::check(MPIX_Ep_handle_create(ep, &handle_), "MPIX_Ep_handle_create");
    }
    handle(handle &&other) noexcept
        : handle_(std::exchange(other.handle_, MPIX_EP_HANDLE_NULL)), tokens_(other.tokens_),
          topk_(other.topk_) {}
    handle &operator=(handle &&other) noexcept {
        std::swap(handle_, other.handle_);
        std::swap(tokens_, other.tokens_);
        std::swap(topk_, other.topk_);
        return *this;
    }
    ~handle() {
        if (handle_ != MPIX_EP_HANDLE_NULL && calm_())
            detail::last_call([this] { MPIX_Ep_handle_free(&handle_); });
    }
    void free() { detail::check(MPIX_Ep_handle_free(&handle_), "MPIX_Ep_handle_free"); }
    MPIX_Ep_handle get() const noexcept { return handle_; }
    operator MPIX_Ep_handle() const noexcept { return handle_; }

    /* With C's structs: everything that C can. */
    void route(const MPIX_Ep_routing &r, const MPIX_Ep_counts *n = nullptr) {
        detail::check(MPIX_Ep_route(handle_, &r, n), "MPIX_Ep_route");
        keep(r);
    }
    transfer iroute(const MPIX_Ep_routing &r, const MPIX_Ep_counts *n = nullptr) {
        transfer t;
        detail::check(MPIX_Ep_iroute(handle_, &r, n, t.address()), "MPIX_Ep_iroute");
        keep(r);
        return t;
    }
    void dispatch(const MPIX_Ep_dispatch_in &in, const MPIX_Ep_dispatch_out &out) {
        detail::check(MPIX_Ep_dispatch(handle_, &in, &out), "MPIX_Ep_dispatch");
    }
    transfer idispatch(const MPIX_Ep_dispatch_in &in, const MPIX_Ep_dispatch_out &out) {
        transfer t;
        detail::check(MPIX_Ep_idispatch(handle_, &in, &out, t.address()), "MPIX_Ep_idispatch");
        return t;
    }
    void combine(const MPIX_Ep_combine_in &in, const MPIX_Ep_combine_out &out) {
        detail::check(MPIX_Ep_combine(handle_, &in, &out), "MPIX_Ep_combine");
    }
    transfer icombine(const MPIX_Ep_combine_in &in, const MPIX_Ep_combine_out &out) {
        transfer t;
        detail::check(MPIX_Ep_icombine(handle_, &in, &out, t.address()), "MPIX_Ep_icombine");
        return t;
    }

    /* With spans of dense rows; sizes are checked. */

    /** Routes ids [tokens][topk] and gives the rows that this rank will receive. */
    template <class Id> MPI_Count route(span<const Id> ids, int topk) {
        static_assert(std::is_integral_v<Id> && (sizeof(Id) == 4 || sizeof(Id) == 8),
                      "ids are int32_t or int64_t");
        if (topk < 1 || ids.size() % static_cast<std::size_t>(topk))
            throw std::invalid_argument(
                "mpix::handle::route: the ids are not whole tokens of topk choices");
        mpix::routing r;
        mpix::counts c;
        MPI_Count received = 0;
        r.num_tokens = detail::count(ids.size()) / topk;
        r.topk = topk;
        r.idx_bits = 8 * sizeof(Id);
        r.ids = ids.data();
        c.recv_total = &received;
        route(r, &c);
        return received;
    }
    /** Sends the rows x [tokens][hidden] and receives into out, which has room for
     * out.size() / hidden rows. */
    template <class T> void dispatch(span<const T> x, MPI_Count hidden, span<T> out) {
        covers(x.size(), tokens_, hidden,
               "mpix::handle::dispatch: x is smaller than the routing's tokens");
        mpix::dispatch_in i;
        mpix::dispatch_out o;
        i.hidden = hidden;
        i.x = rows(x.data());
        o.capacity_rows = detail::count(out.size()) / hidden;
        o.x = rows(out.data());
        dispatch(i, o);
    }
    /** Sums the rows x of the experts, as many as dispatch gave, into y [tokens][hidden]; weights
     * (EXPERT layout) [tokens][topk] or none. */
    template <class T>
    void combine(span<const T> x, MPI_Count hidden, span<T> y, span<const float> weights = {}) {
        covers(y.size(), tokens_, hidden,
               "mpix::handle::combine: y is smaller than the routing's tokens");
        if (!weights.empty())
            covers(weights.size(), tokens_, topk_,
                   "mpix::handle::combine: fewer weights than choices");
        mpix::combine_in i;
        mpix::combine_out o;
        i.hidden = hidden;
        i.x = rows(x.data());
        i.topk_weights = weights.empty() ? nullptr : weights.data();
        o.y = rows(y.data());
        combine(i, o);
    }

    /* Stream-ordered, in GPU memory: stream is a cudaStream_t. */
    void route_enqueue(const MPIX_Ep_routing &r, const MPIX_Ep_counts *n, void *stream) {
        detail::check(MPIX_Ep_route_enqueue(handle_, &r, n, stream), "MPIX_Ep_route_enqueue");
        keep(r);
    }
    void dispatch_enqueue(const MPIX_Ep_dispatch_in &in, const MPIX_Ep_dispatch_out &out,
                          void *stream) {
        detail::check(MPIX_Ep_dispatch_enqueue(handle_, &in, &out, stream),
                      "MPIX_Ep_dispatch_enqueue");
    }
    void combine_enqueue(const MPIX_Ep_combine_in &in, const MPIX_Ep_combine_out &out,
                         void *stream) {
        detail::check(MPIX_Ep_combine_enqueue(handle_, &in, &out, stream),
                      "MPIX_Ep_combine_enqueue");
    }
    void dispatch_begin_enqueue(const MPIX_Ep_dispatch_in &in, const MPIX_Ep_dispatch_out &out,
                                void *stream) {
        detail::check(MPIX_Ep_dispatch_begin_enqueue(handle_, &in, &out, stream),
                      "MPIX_Ep_dispatch_begin_enqueue");
    }
    void dispatch_end_enqueue(void *stream) {
        detail::check(MPIX_Ep_dispatch_end_enqueue(handle_, stream),
                      "MPIX_Ep_dispatch_end_enqueue");
    }
    void combine_begin_enqueue(const MPIX_Ep_combine_in &in, const MPIX_Ep_combine_out &out,
                               void *stream) {
        detail::check(MPIX_Ep_combine_begin_enqueue(handle_, &in, &out, stream),
                      "MPIX_Ep_combine_begin_enqueue");
    }
    void combine_end_enqueue(void *stream) {
        detail::check(MPIX_Ep_combine_end_enqueue(handle_, stream), "MPIX_Ep_combine_end_enqueue");
    }
    MPIX_Ep_rows combine_buffer() {
        MPIX_Ep_rows r{};
        detail::check(MPIX_Ep_combine_buffer(handle_, &r), "MPIX_Ep_combine_buffer");
        return r;
    }

private:
    void keep(const MPIX_Ep_routing &r) noexcept { tokens_ = r.num_tokens, topk_ = r.topk; }
    static void covers(std::size_t size, MPI_Count count, MPI_Count each, const char *text) {
        if (each < 1 || detail::count(size) / each < count)
            throw std::invalid_argument(text);
    }
    MPIX_Ep_handle handle_ = MPIX_EP_HANDLE_NULL;
    MPI_Count tokens_ = 0;
    int topk_ = 0;
    detail::calm calm_;
};

} // namespace mpix

#endif /* MPIX_EP_HPP */
