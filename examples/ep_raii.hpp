/*
 * ep_raii.hpp - exceptions and ownership around the C API of mpix_ep.h, as far as the
 * example needs them.
 */
#ifndef EXAMPLES_EP_RAII_HPP
#define EXAMPLES_EP_RAII_HPP

/* MPI's C interface is enough; its old C++ one would need another library */
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "mpix_ep.h"

#include <exception>
#include <stdexcept>
#include <string>

namespace ep {

/** Turns an error code of the library into an exception with the library's own account of
 * what happened. */
inline void check(int code, const char *call) {
    if (code == MPI_SUCCESS)
        return;
    MPIX_Error error;
    MPIX_INIT(&error);
    std::string text = std::string(call) + ": ";
    if (MPIX_Error_last(&error) != MPI_SUCCESS || error.kind == 0)
        throw std::runtime_error(text + "error " + std::to_string(code));
    if (error.rank >= 0)
        text += "rank " + std::to_string(error.rank) + ": ";
    throw std::runtime_error(text + error.text);
}

/** The same for MPI's own calls. */
inline void check_mpi(int code, const char *call) {
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw std::runtime_error(std::string(call) + ": " + text);
}

/**
 * A context. Collective to make and to destroy. Destructors of this file do nothing while an
 * exception is on its way: the other ranks are elsewhere then, so no collective call can be made,
 * and the program is about to end.
 */
class Context {
public:
    Context(MPI_Comm comm, const MPIX_Ep_config &config) {
        check(MPIX_Ep_create(comm, &config, MPI_INFO_NULL, &ep_), "MPIX_Ep_create");
    }
    ~Context() {
        if (std::uncaught_exceptions() == 0)
            MPIX_Ep_free(&ep_);
    }
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    operator MPIX_Ep() const { return ep_; }

private:
    MPIX_Ep ep_ = MPIX_EP_NULL;
};

/** A handle: one routing. */
class Handle {
public:
    explicit Handle(MPIX_Ep ep) {
        check(MPIX_Ep_handle_create(ep, &handle_), "MPIX_Ep_handle_create");
    }
    ~Handle() {
        if (std::uncaught_exceptions() == 0)
            MPIX_Ep_handle_free(&handle_);
    }
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    operator MPIX_Ep_handle() const { return handle_; }

private:
    MPIX_Ep_handle handle_ = MPIX_EP_HANDLE_NULL;
};

/** Memory that the other ranks reach directly. All ranks resize and destroy their arrays in
 * the same order. */
template <class T> class Array {
public:
    explicit Array(MPIX_Ep ep) : ep_(ep) {}
    ~Array() {
        if (std::uncaught_exceptions() == 0 && allocated_)
            MPIX_Ep_dealloc(ep_, data_);
    }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;

    /** Gives the array room for count elements, zeroed; what it held is lost. */
    void resize(std::size_t count) {
        if (allocated_)
            check(MPIX_Ep_dealloc(ep_, data_), "MPIX_Ep_dealloc");
        allocated_ = false;
        data_ = nullptr;
        check(MPIX_Ep_alloc(ep_, static_cast<MPI_Count>(count * sizeof(T)), MPI_INFO_NULL, &data_),
              "MPIX_Ep_alloc");
        allocated_ = true;
    }
    T *data() const { return static_cast<T *>(data_); }

private:
    MPIX_Ep ep_;
    void *data_ = nullptr;
    bool allocated_ = false;
};

} // namespace ep

#endif
