/*
 * mpix_p2p.hpp - the C API of mpix_p2p.h for C++17 and later, by the rules of mpix_ep.hpp, which
 * includes it. Header only.
 */
#ifndef MPIX_P2P_HPP
#define MPIX_P2P_HPP

#include "mpix_xfer.hpp"

#include "mpix_p2p.h"

#include <vector>

namespace mpix {

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

#endif /* MPIX_P2P_HPP */
