/*
 * mpix_ep.hpp - the C API of mpix_ep.h and mpix_p2p.h for C++17 and later: ownership, spans and
 * exceptions. Header only.
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

#ifndef OMPI_SKIP_MPICXX
/* MPI's C interface is enough; its old C++ one would need another library */
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include "mpix_ep.h"
#include "mpix_p2p.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include <unistd.h>
#if __cplusplus >= 202002L && __has_include(<span>)
#include <span>
#endif

namespace mpix {

/* ---- spans ----------------------------------------------------------------------------------- */

#if defined __cpp_lib_span
template <class T> using span = std::span<T>;
#else
/** A pointer with a size: what of std::span is needed here. */
template <class T> class span {
public:
    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <std::size_t N> constexpr span(T (&array)[N]) noexcept : data_(array), size_(N) {}
    template <class C, class = std::enable_if_t<
                           std::is_convertible_v<decltype(std::declval<C &>().data()), T *>>>
    constexpr span(C &container) noexcept : data_(container.data()), size_(container.size()) {}
    template <class C,
              class = std::enable_if_t<
                  std::is_convertible_v<decltype(std::declval<const C &>().data()), T *>>,
              class = void>
    constexpr span(const C &container) noexcept
        : data_(container.data()), size_(container.size()) {}
    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T &operator[](std::size_t i) const { return data_[i]; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr span subspan(std::size_t offset, std::size_t count) const {
        return {data_ + offset, count};
    }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};
#endif

/* ---- errors ---------------------------------------------------------------------------------- */

/** What a C call returned, with the library's particulars; what() is one sentence that begins
 * with the call. */
class error : public std::runtime_error {
public:
    error(int code, const char *call, const MPIX_Error &info)
        : std::runtime_error(sentence(code, call, info)), code_(code), info_(info) {}
    int code() const noexcept { return code_; }      /**< MPI's code */
    int kind() const noexcept { return info_.kind; } /**< MPIX_ERRK_* */
    /** who is to blame, -1: nobody or the caller */
    int rank() const noexcept { return info_.rank; }
    const MPIX_Error &info() const noexcept { return info_; }

private:
    static std::string sentence(int code, const char *call, const MPIX_Error &info) {
        std::string text = std::string(call) + ": ";
        if (info.rank >= 0)
            text += "rank " + std::to_string(info.rank) + ": ";
        return text + (info.text[0] ? std::string(info.text) : "error " + std::to_string(code));
    }
    int code_;
    MPIX_Error info_;
};

/** The last error of the calling thread, if there was one. */
inline std::optional<MPIX_Error> last_error() noexcept {
    MPIX_Error info{};
    info.struct_size = sizeof info;
    return MPIX_Error_last(&info) == MPI_SUCCESS && info.kind ? std::optional<MPIX_Error>(info)
                                                              : std::nullopt;
}

/** The kind of a code of the C library: MPIX_ERRK_*, 0 for MPI_SUCCESS, -1 for somebody else's. */
inline int error_kind(int code) noexcept {
    int kind = -1;
    MPIX_Error_kind(code, &kind);
    return kind;
}

namespace detail {
[[noreturn]] inline void raise(int code, const char *call) {
    std::optional<MPIX_Error> info = last_error();
    throw error(code, call,
                info && info->code == code
                    ? *info
                    : MPIX_Error{sizeof(MPIX_Error), code, error_kind(code), -1, 0, "", "", ""});
}
inline void check(int code, const char *call) {
    if (code != MPI_SUCCESS)
        raise(code, call);
}
/** An object inherits its communicator's error handler, and its creation fails through it:
 * meanwhile that handler returns. */
class returning {
public:
    explicit returning(MPI_Comm comm) : comm_(comm) {
        MPI_Comm_get_errhandler(comm, &before_);
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    ~returning() {
        MPI_Comm_set_errhandler(comm_, before_);
        MPI_Errhandler_free(&before_);
    }
    returning(const returning &) = delete;
    returning &operator=(const returning &) = delete;

private:
    MPI_Comm comm_;
    MPI_Errhandler before_;
};
/** Whether an exception has begun since the object was made. */
class calm {
public:
    bool operator()() const noexcept { return std::uncaught_exceptions() <= at_birth_; }

private:
    int at_birth_ = std::uncaught_exceptions();
};
inline const long process = ::getpid();
/** Whether this thread may call MPI. In a child of fork nobody may. */
inline bool may_call_mpi() noexcept {
    int finalized = 0, level = MPI_THREAD_SINGLE, main_thread = 0;
    if (::getpid() != process)
        return false;
    MPI_Finalized(&finalized);
    if (!finalized) {
        MPI_Query_thread(&level);
        MPI_Is_thread_main(&main_thread);
    }
    return !finalized && (level >= MPI_THREAD_SERIALIZED || main_thread);
}
inline bool finalized() noexcept {
    int flag = 0;
    if (::getpid() == process)
        MPI_Finalized(&flag);
    return flag != 0;
}
/** What destructors do. An object that went with its context has no handler of its own: its error
 * goes to MPI_COMM_SELF's, which is set aside. */
template <class F> void last_call(F free) {
    if (finalized())
        return;
    std::optional<returning> handler;
    if (may_call_mpi())
        handler.emplace(MPI_COMM_SELF);
    free();
}
inline MPI_Count count(std::size_t n) noexcept { return static_cast<MPI_Count>(n); }
} // namespace detail

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

namespace detail {
template <class S> struct sized : S {
    sized() noexcept : S{} { this->struct_size = sizeof(S); }
};
} // namespace detail
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

/* ---- transfers ------------------------------------------------------------------------------- */

/**
 * A nonblocking call in flight. Its buffers belong to the library until it is done; so the
 * destructor of one in flight waits, at most the object's timeout, and drops its error.
 */
class transfer {
public:
    transfer() noexcept = default;
    transfer(transfer &&other) noexcept : xfer_(std::exchange(other.xfer_, MPIX_XFER_NULL)) {}
    transfer &operator=(transfer &&other) noexcept {
        std::swap(xfer_, other.xfer_);
        return *this;
    }
    ~transfer() {
        if (xfer_ != MPIX_XFER_NULL)
            detail::last_call([this] { MPIX_Xfer_wait(&xfer_); });
    }
    void wait() { detail::check(MPIX_Xfer_wait(&xfer_), "MPIX_Xfer_wait"); }
    /** Whether it is done. */
    bool test() {
        int flag = 0;
        detail::check(MPIX_Xfer_test(&xfer_, &flag), "MPIX_Xfer_test");
        return flag != 0;
    }
    bool done() const noexcept { return xfer_ == MPIX_XFER_NULL; } /**< without making progress */
    /** for C calls that start a transfer */
    MPIX_Xfer *address() noexcept { return &xfer_; }

private:
    MPIX_Xfer xfer_ = MPIX_XFER_NULL;
};
static_assert(sizeof(transfer) == sizeof(MPIX_Xfer) && std::is_standard_layout_v<transfer>,
              "an array of transfers is one of MPIX_Xfer");

/** Waits for all; the error is that of the first that failed, codes (if given, as many as
 * transfers) has everybody's. */
inline void wait_all(span<transfer> transfers, span<int> codes = {}) {
    if (!codes.empty() && codes.size() < transfers.size())
        throw std::invalid_argument("mpix::wait_all: fewer codes than transfers");
    detail::check(MPIX_Xfer_waitall(static_cast<int>(transfers.size()),
                                    transfers.empty() ? nullptr : transfers[0].address(),
                                    codes.empty() ? nullptr : codes.data()),
                  "MPIX_Xfer_waitall");
}
/** Waits for one and gives its index, -1 if all were done before. */
inline int wait_any(span<transfer> transfers) {
    int index = -1;
    detail::check(MPIX_Xfer_waitany(static_cast<int>(transfers.size()),
                                    transfers.empty() ? nullptr : transfers[0].address(), &index),
                  "MPIX_Xfer_waitany");
    return index;
}
/** The index of one that is done, -1 if all were done before; nothing if none is done yet. */
inline std::optional<int> test_any(span<transfer> transfers) {
    int index = -1, flag = 0;
    detail::check(MPIX_Xfer_testany(static_cast<int>(transfers.size()),
                                    transfers.empty() ? nullptr : transfers[0].address(), &index,
                                    &flag),
                  "MPIX_Xfer_testany");
    return flag ? std::optional<int>(index) : std::nullopt;
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

/* ---- P2P ------------------------------------------------------------------------------------- */

/** A peer's registered memory: MPIX_P2p_rmem. Local. */
class rmem {
public:
    rmem() noexcept = default;
    explicit rmem(MPIX_P2p_rmem raw) noexcept : rmem_(raw) {}
    rmem(rmem &&other) noexcept : rmem_(std::exchange(other.rmem_, nullptr)) {}
    rmem &operator=(rmem &&other) noexcept {
        std::swap(rmem_, other.rmem_);
        return *this;
    }
    ~rmem() {
        if (rmem_)
            detail::last_call([this] { MPIX_P2p_rmem_free(&rmem_); });
    }
    void free() { detail::check(MPIX_P2p_rmem_free(&rmem_), "MPIX_P2p_rmem_free"); }
    operator MPIX_P2p_rmem() const noexcept { return rmem_; }
    /** Adds to the int64_t at offset; its value before. */
    std::int64_t fetch_add(MPI_Count offset, std::int64_t add) {
        std::int64_t old = 0;
        detail::check(MPIX_P2p_fetch_add(rmem_, offset, add, &old), "MPIX_P2p_fetch_add");
        return old;
    }
    transfer ifetch_add(MPI_Count offset, std::int64_t add, std::int64_t &old) {
        transfer t;
        detail::check(MPIX_P2p_ifetch_add(rmem_, offset, add, &old, t.address()),
                      "MPIX_P2p_ifetch_add");
        return t;
    }

private:
    MPIX_P2p_rmem rmem_ = nullptr;
};

/** Local registered memory: MPIX_P2p_mem. */
class mem {
public:
    mem() noexcept = default;
    explicit mem(MPIX_P2p_mem raw, void *base = nullptr) noexcept : mem_(raw), base_(base) {}
    mem(mem &&other) noexcept
        : mem_(std::exchange(other.mem_, nullptr)), base_(std::exchange(other.base_, nullptr)) {}
    mem &operator=(mem &&other) noexcept {
        std::swap(mem_, other.mem_);
        std::swap(base_, other.base_);
        return *this;
    }
    ~mem() {
        if (mem_)
            detail::last_call([this] { MPIX_P2p_dereg(&mem_); });
    }
    void dereg() { detail::check(MPIX_P2p_dereg(&mem_), "MPIX_P2p_dereg"); }
    operator MPIX_P2p_mem() const noexcept { return mem_; }
    void *base() const noexcept { return base_; } /**< where the memory is */
    /** A handle of [offset, offset + length), to be sent to a peer by any means. */
    std::vector<unsigned char> export_handle(MPI_Count offset, MPI_Count length) const {
        MPI_Count bytes = 0;
        detail::check(MPIX_P2p_export(mem_, offset, length, nullptr, &bytes), "MPIX_P2p_export");
        std::vector<unsigned char> handle(static_cast<std::size_t>(bytes));
        detail::check(MPIX_P2p_export(mem_, offset, length, handle.data(), &bytes),
                      "MPIX_P2p_export");
        return handle;
    }
    /** Everybody gives one registration and gets everybody's. Collective. */
    std::vector<rmem> exchange(int ranks) const {
        std::vector<MPIX_P2p_rmem> raw(static_cast<std::size_t>(ranks), nullptr);
        detail::check(MPIX_P2p_exchange(mem_, raw.data()), "MPIX_P2p_exchange");
        return std::vector<rmem>(raw.begin(), raw.end());
    }

private:
    MPIX_P2p_mem mem_ = nullptr;
    void *base_ = nullptr;
};

/** Pieces of a transfer. */
using pieces = span<const MPIX_P2p_iov>;

/** An object on which transfers are made: MPIX_P2p. Made and destroyed by all ranks of comm. */
class p2p {
public:
    p2p() noexcept = default;
    explicit p2p(MPI_Comm comm, MPI_Info info = MPI_INFO_NULL) {
        {
            detail::returning handler(comm);
            detail::check(MPIX_P2p_create(comm, info, &p2p_), "MPIX_P2p_create");
        }
        set_errhandler(MPI_ERRORS_RETURN);
    }
    p2p(p2p &&other) noexcept : p2p_(std::exchange(other.p2p_, MPIX_P2P_NULL)) {}
    p2p &operator=(p2p &&other) noexcept {
        std::swap(p2p_, other.p2p_);
        return *this;
    }
    ~p2p() {
        if (p2p_ != MPIX_P2P_NULL && calm_())
            detail::last_call([this] { MPIX_P2p_free(&p2p_); });
    }
    void free() { detail::check(MPIX_P2p_free(&p2p_), "MPIX_P2p_free"); }
    operator MPIX_P2p() const noexcept { return p2p_; }
    void set_errhandler(MPI_Errhandler handler) {
        detail::check(MPIX_P2p_set_errhandler(p2p_, handler), "MPIX_P2p_set_errhandler");
    }
    std::optional<MPIX_Error> async_error() const {
        detail::sized<MPIX_Error> e;
        detail::check(MPIX_P2p_get_async_error(p2p_, &e), "MPIX_P2p_get_async_error");
        return e.kind ? std::optional<MPIX_Error>(e) : std::nullopt;
    }

    /** Memory that peers reach directly; collective. */
    mpix::mem alloc(MPI_Count bytes, MPI_Info info = MPI_INFO_NULL) {
        void *base = nullptr;
        MPIX_P2p_mem raw = nullptr;
        detail::check(MPIX_P2p_alloc(p2p_, bytes, info, &base, &raw), "MPIX_P2p_alloc");
        return mpix::mem(raw, base);
    }
    /** Registers the caller's memory. */
    mpix::mem reg(void *base, MPI_Count bytes, MPI_Info info = MPI_INFO_NULL) {
        MPIX_P2p_mem raw = nullptr;
        detail::check(MPIX_P2p_reg(p2p_, base, bytes, info, &raw), "MPIX_P2p_reg");
        return mpix::mem(raw, base);
    }
    rmem import_handle(int peer, span<const unsigned char> handle) {
        MPIX_P2p_rmem raw = nullptr;
        detail::check(MPIX_P2p_import(p2p_, peer, handle.data(), detail::count(handle.size()),
                                      &raw),
                      "MPIX_P2p_import");
        return rmem(raw);
    }
    /** What peer advertised with tag, at most max pieces. */
    std::vector<rmem> get_advert(int peer, int tag, int max) {
        std::vector<MPIX_P2p_rmem> raw(static_cast<std::size_t>(max), nullptr);
        int n = 0;
        detail::check(MPIX_P2p_get_advert(p2p_, peer, tag, max, raw.data(), &n),
                      "MPIX_P2p_get_advert");
        return std::vector<rmem>(raw.begin(), raw.begin() + n);
    }

    /** Waits until the counter (peer, slot) is at least so much; its value. */
    std::uint64_t notify_wait(int peer, int slot, std::uint64_t at_least) {
        std::uint64_t now = 0;
        detail::check(MPIX_P2p_notify_wait(p2p_, peer, slot, at_least, &now),
                      "MPIX_P2p_notify_wait");
        return now;
    }
    /** Whether it is; now, if given, is set in any case. */
    bool notify_test(int peer, int slot, std::uint64_t at_least, std::uint64_t *now = nullptr) {
        int flag = 0;
        detail::check(MPIX_P2p_notify_test(p2p_, peer, slot, at_least, now, &flag),
                      "MPIX_P2p_notify_test");
        return flag != 0;
    }
    void send(int peer, pieces iov) {
        detail::check(MPIX_P2p_send(p2p_, peer, iov.data(), n(iov)), "MPIX_P2p_send");
    }
    transfer isend(int peer, pieces iov) {
        transfer t;
        detail::check(MPIX_P2p_isend(p2p_, peer, iov.data(), n(iov), t.address()),
                      "MPIX_P2p_isend");
        return t;
    }
    /** Receives one message; its bytes. */
    MPI_Count recv(int peer, pieces iov) {
        MPI_Count received = 0;
        detail::check(MPIX_P2p_recv(p2p_, peer, iov.data(), n(iov), &received), "MPIX_P2p_recv");
        return received;
    }
    transfer irecv(int peer, pieces iov, MPI_Count *received = nullptr) {
        transfer t;
        detail::check(MPIX_P2p_irecv(p2p_, peer, iov.data(), n(iov), received, t.address()),
                      "MPIX_P2p_irecv");
        return t;
    }
    void flush(int peer = MPIX_ALL_PEERS) {
        detail::check(MPIX_P2p_flush(p2p_, peer), "MPIX_P2p_flush");
    }
    void get_device(void *device_handle) {
        detail::check(MPIX_P2p_get_device(p2p_, device_handle), "MPIX_P2p_get_device");
    }

    static int n(pieces iov) noexcept { return static_cast<int>(iov.size()); }

private:
    MPIX_P2p p2p_ = MPIX_P2P_NULL;
    detail::calm calm_;
};

/* The pieces say which object and peer a transfer belongs to. */
inline void advertise(pieces iov, int peer, int tag) {
    detail::check(MPIX_P2p_advertise(iov.data(), p2p::n(iov), peer, tag), "MPIX_P2p_advertise");
}
inline void put(pieces iov) {
    detail::check(MPIX_P2p_put(iov.data(), p2p::n(iov)), "MPIX_P2p_put");
}
inline void get(pieces iov) {
    detail::check(MPIX_P2p_get(iov.data(), p2p::n(iov)), "MPIX_P2p_get");
}
inline void put_notify(pieces iov, int slot, std::uint64_t add) {
    detail::check(MPIX_P2p_put_notify(iov.data(), p2p::n(iov), slot, add), "MPIX_P2p_put_notify");
}
inline transfer iput(pieces iov) {
    transfer t;
    detail::check(MPIX_P2p_iput(iov.data(), p2p::n(iov), t.address()), "MPIX_P2p_iput");
    return t;
}
inline transfer iget(pieces iov) {
    transfer t;
    detail::check(MPIX_P2p_iget(iov.data(), p2p::n(iov), t.address()), "MPIX_P2p_iget");
    return t;
}
inline transfer iput_notify(pieces iov, int slot, std::uint64_t add) {
    transfer t;
    detail::check(MPIX_P2p_iput_notify(iov.data(), p2p::n(iov), slot, add, t.address()),
                  "MPIX_P2p_iput_notify");
    return t;
}
inline void put_enqueue(pieces iov, void *stream) {
    detail::check(MPIX_P2p_put_enqueue(iov.data(), p2p::n(iov), stream), "MPIX_P2p_put_enqueue");
}
inline void get_enqueue(pieces iov, void *stream) {
    detail::check(MPIX_P2p_get_enqueue(iov.data(), p2p::n(iov), stream), "MPIX_P2p_get_enqueue");
}
inline void put_notify_enqueue(pieces iov, int slot, std::uint64_t add, void *stream) {
    detail::check(MPIX_P2p_put_notify_enqueue(iov.data(), p2p::n(iov), slot, add, stream),
                  "MPIX_P2p_put_notify_enqueue");
}

} // namespace mpix

#endif /* MPIX_EP_HPP */
