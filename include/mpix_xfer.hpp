/*
 * mpix_xfer.hpp - what mpix_ep.hpp and mpix_p2p.hpp share: spans, errors, transfers. The rules
 * stand in mpix_ep.hpp.
 */
#ifndef MPIX_XFER_HPP
#define MPIX_XFER_HPP

#ifndef OMPI_SKIP_MPICXX
/* MPI's C interface is enough; its old C++ one would need another library */
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include "mpix_xfer.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
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

/* The argument structs of C with struct_size set. */
namespace detail {
template <class S> struct sized : S {
    sized() noexcept : S{} { this->struct_size = sizeof(S); }
};
} // namespace detail

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

} // namespace mpix

#endif /* MPIX_XFER_HPP */
