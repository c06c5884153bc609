! mpix_ep.f90 - the C API of mpix_ep.h and mpix_p2p.h for Fortran 2018 and mpi_f08.
!
! Every function here is the C function of the same name and returns its error code; what it does is said in the manual (man MPIX_Ep_route).
! Handles (MPIX_Ep, MPIX_Ep_handle, MPIX_Xfer, ...) are type(c_ptr), null: c_null_ptr. Arguments that C may leave out (NULL) are optional.
! Communicators, info objects and error handlers are those of mpi_f08. Argument types begin with struct_size: call mpix_init(x) first, which
! sets it and every other component to its default. Addresses of the caller's arrays are taken with c_loc, so they need the attribute
! target, and belong to the library until completion.
module mpix_ep
    use, intrinsic :: iso_c_binding
    use mpi_f08, only: MPI_Comm, MPI_Info, MPI_Errhandler, MPI_COUNT_KIND
    implicit none
    private :: MPI_Comm, MPI_Info, MPI_Errhandler, MPI_COUNT_KIND

    enum, bind(c)
        enumerator :: MPIX_ERRK_ARG = 1
        enumerator :: MPIX_ERRK_TRUNCATE = 2
        enumerator :: MPIX_ERRK_NO_MEM = 3
        enumerator :: MPIX_ERRK_UNSUPPORTED = 4
        enumerator :: MPIX_ERRK_REMOTE = 5
        enumerator :: MPIX_ERRK_PEER = 6
        enumerator :: MPIX_ERRK_TIMEOUT = 7
        enumerator :: MPIX_ERRK_TRANSPORT = 8
        enumerator :: MPIX_ERRK_INTERNAL = 9
    end enum
    enum, bind(c)
        enumerator :: MPIX_EP_HT = 0
        enumerator :: MPIX_EP_LL = 1
    end enum
    enum, bind(c)
        enumerator :: MPIX_EP_COMPACT = 0
        enumerator :: MPIX_EP_EXPERT = 1
        enumerator :: MPIX_EP_SLOTS = 2
    end enum
    enum, bind(c)
        enumerator :: MPIX_EP_HOST = 0
        enumerator :: MPIX_EP_CUDA = 1
    end enum
    enum, bind(c)
        enumerator :: MPIX_EP_SMS_NONE = -1
    end enum
    enum, bind(c)
        enumerator :: MPIX_EP_F64 = 1
        enumerator :: MPIX_EP_F32 = 2
        enumerator :: MPIX_EP_F16 = 3
        enumerator :: MPIX_EP_BF16 = 4
        enumerator :: MPIX_EP_F8E4M3 = 5
        enumerator :: MPIX_EP_F8E5M2 = 6
        enumerator :: MPIX_EP_BYTES = 7
    end enum
    enum, bind(c)
        enumerator :: MPIX_EP_NO_SCALES = 0
        enumerator :: MPIX_EP_SCALES_F32 = 1
        enumerator :: MPIX_EP_SCALES_UE8M0 = 2
    end enum
    enum, bind(c)
        enumerator :: MPIX_EP_OVERFLOW_ERROR = 0
        enumerator :: MPIX_EP_OVERFLOW_DROP = 1
    end enum
    enum, bind(c)
        enumerator :: MPIX_EP_REACH_SELF = 1
        enumerator :: MPIX_EP_REACH_MAPPED = 2
        enumerator :: MPIX_EP_REACH_PROXIED = 3
    end enum
    type(c_ptr), parameter :: MPIX_EP_NULL = c_null_ptr, MPIX_EP_HANDLE_NULL = c_null_ptr, MPIX_XFER_NULL = c_null_ptr
    type(c_ptr), parameter :: MPIX_P2P_NULL = c_null_ptr
    integer(c_int), parameter :: MPIX_ALL_PEERS = -1

    type, bind(c) :: MPIX_Error
        integer(c_size_t) :: struct_size = 0
        integer(c_int) :: code = 0
        integer(c_int) :: kind = 0
        integer(c_int) :: rank = 0
        integer(c_int) :: sys_errno = 0
        character(kind=c_char) :: host(64) = c_null_char
        character(kind=c_char) :: arg(32) = c_null_char
        character(kind=c_char) :: text(256) = c_null_char
    end type

    type, bind(c) :: MPIX_Ep_rows
        type(c_ptr) :: data = c_null_ptr
        integer(MPI_COUNT_KIND) :: stride = 0
        integer(c_int) :: dtype = 0
        integer(c_int) :: scale_kind = 0
        type(c_ptr) :: scales = c_null_ptr
        integer(MPI_COUNT_KIND) :: scale_stride = 0
    end type

    type, bind(c) :: MPIX_Ep_config
        integer(c_size_t) :: struct_size = 0
        integer(c_int) :: mode = 0
        integer(c_int) :: layout = 0
        integer(c_int) :: memkind = 0
        integer(c_int) :: device = 0
        integer(c_int) :: max_topk = 0
        integer(c_int) :: expert_align = 0
        integer(c_int) :: depth = 0
        integer(c_int) :: num_sms = 0
        integer(c_int) :: overflow = 0
        integer(c_int) :: masking = 0
        integer(c_int) :: check = 0
        integer(c_int) :: pad = 0
        integer(MPI_COUNT_KIND) :: num_experts = 0
        integer(MPI_COUNT_KIND) :: max_tokens = 0
        integer(MPI_COUNT_KIND) :: max_recv_rows = 0
        integer(MPI_COUNT_KIND) :: max_row_bytes = 0
        type(c_ptr) :: expert_owner = c_null_ptr
        real(c_double) :: timeout_s = 0
    end type

    type, bind(c) :: MPIX_Ep_routing
        integer(c_size_t) :: struct_size = 0
        integer(MPI_COUNT_KIND) :: num_tokens = 0
        integer(c_int) :: topk = 0
        integer(c_int) :: idx_bits = 0
        type(c_ptr) :: ids = c_null_ptr
        integer(MPI_COUNT_KIND) :: ids_stride = 0
    end type

    type, bind(c) :: MPIX_Ep_counts
        integer(c_size_t) :: struct_size = 0
        type(c_ptr) :: recv_total = c_null_ptr
        type(c_ptr) :: recv_per_rank = c_null_ptr
        type(c_ptr) :: recv_per_expert = c_null_ptr
        type(c_ptr) :: expert_offset = c_null_ptr
        type(c_ptr) :: send_per_rank = c_null_ptr
        type(c_ptr) :: send_per_host = c_null_ptr
        type(c_ptr) :: send_per_expert = c_null_ptr
        type(c_ptr) :: token_in_rank = c_null_ptr
    end type

    type, bind(c) :: MPIX_Ep_dispatch_in
        integer(c_size_t) :: struct_size = 0
        integer(MPI_COUNT_KIND) :: hidden = 0
        type(MPIX_Ep_rows) :: x
        type(c_ptr) :: topk_weights = c_null_ptr
    end type

    type, bind(c) :: MPIX_Ep_dispatch_out
        integer(c_size_t) :: struct_size = 0
        integer(MPI_COUNT_KIND) :: capacity_rows = 0
        type(MPIX_Ep_rows) :: x
        type(c_ptr) :: local_ids = c_null_ptr
        type(c_ptr) :: src_rank = c_null_ptr
        type(c_ptr) :: src_token = c_null_ptr
        type(c_ptr) :: topk_weights = c_null_ptr
        type(c_ptr) :: cumulative = c_null_ptr
        type(c_ptr) :: wait_ns = c_null_ptr
        type(c_ptr) :: recv_per_rank = c_null_ptr
        type(c_ptr) :: recv_per_expert = c_null_ptr
        type(c_ptr) :: expert_offset = c_null_ptr
    end type

    type, bind(c) :: MPIX_Ep_combine_in
        integer(c_size_t) :: struct_size = 0
        integer(MPI_COUNT_KIND) :: hidden = 0
        type(MPIX_Ep_rows) :: x
        type(c_ptr) :: row_weights = c_null_ptr
        type(c_ptr) :: topk_weights = c_null_ptr
        type(c_ptr) :: slot_values = c_null_ptr
        integer(c_int) :: num_bias = 0
        type(MPIX_Ep_rows) :: bias(2)
        integer(c_int) :: wire = 0
    end type

    type, bind(c) :: MPIX_Ep_combine_out
        integer(c_size_t) :: struct_size = 0
        type(MPIX_Ep_rows) :: y
        type(c_ptr) :: slot_values = c_null_ptr
        type(c_ptr) :: wait_ns = c_null_ptr
    end type

    type, bind(c) :: MPIX_Ep_peer
        integer(c_size_t) :: struct_size = 0
        integer(c_int) :: reach = 0
        integer(c_int) :: lanes = 0
        integer(c_int) :: counted = 0
        integer(c_int) :: mtu = 0
        integer(c_int) :: proxy_threads = 0
        integer(MPI_COUNT_KIND) :: messages = 0
        integer(MPI_COUNT_KIND) :: bytes = 0
        integer(MPI_COUNT_KIND) :: memory = 0
        character(kind=c_char) :: transport(64) = c_null_char
        character(kind=c_char) :: device(64) = c_null_char
        character(kind=c_char) :: address(64) = c_null_char
        character(kind=c_char) :: why(128) = c_null_char
    end type

    type, bind(c) :: MPIX_P2p_iov
        type(c_ptr) :: mem = c_null_ptr
        integer(MPI_COUNT_KIND) :: off = 0
        type(c_ptr) :: rmem = c_null_ptr
        integer(MPI_COUNT_KIND) :: roff = 0
        integer(MPI_COUNT_KIND) :: len = 0
    end type

    interface mpix_init
        module procedure init_Error, &
            init_Ep_config, &
            init_Ep_routing, &
            init_Ep_counts, &
            init_Ep_dispatch_in, &
            init_Ep_dispatch_out, &
            init_Ep_combine_in, &
            init_Ep_combine_out, &
            init_Ep_peer
    end interface

    interface
        function MPIX_Error_last(error) result(ierror) &
            bind(c, name="MPIX_Error_last")
            import :: c_int, MPIX_Error
            type(MPIX_Error), intent(inout) :: error
            integer(c_int) :: ierror
        end function
        function MPIX_Error_kind(code, kind) result(ierror) &
            bind(c, name="MPIX_Error_kind")
            import :: c_int
            integer(c_int), value :: code
            integer(c_int), intent(inout) :: kind
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_get_version(major, minor, patch) result(ierror) &
            bind(c, name="MPIX_Ep_get_version")
            import :: c_int
            integer(c_int), intent(inout), optional :: major
            integer(c_int), intent(inout), optional :: minor
            integer(c_int), intent(inout), optional :: patch
            integer(c_int) :: ierror
        end function
        function MPIX_Xfer_test(xfer, flag) result(ierror) &
            bind(c, name="MPIX_Xfer_test")
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: xfer
            integer(c_int), intent(inout) :: flag
            integer(c_int) :: ierror
        end function
        function MPIX_Xfer_wait(xfer) result(ierror) &
            bind(c, name="MPIX_Xfer_wait")
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_Xfer_waitall(n, xfers, codes) result(ierror) &
            bind(c, name="MPIX_Xfer_waitall")
            import :: c_int, c_ptr
            integer(c_int), value :: n
            type(c_ptr), intent(inout) :: xfers(*)
            integer(c_int), intent(inout), optional :: codes(*)
            integer(c_int) :: ierror
        end function
        function MPIX_Xfer_waitany(n, xfers, index) result(ierror) &
            bind(c, name="MPIX_Xfer_waitany")
            import :: c_int, c_ptr
            integer(c_int), value :: n
            type(c_ptr), intent(inout) :: xfers(*)
            integer(c_int), intent(inout) :: index
            integer(c_int) :: ierror
        end function
        function MPIX_Xfer_testany(n, xfers, index, flag) result(ierror) &
            bind(c, name="MPIX_Xfer_testany")
            import :: c_int, c_ptr
            integer(c_int), value :: n
            type(c_ptr), intent(inout) :: xfers(*)
            integer(c_int), intent(inout) :: index
            integer(c_int), intent(inout) :: flag
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_window_size(config, ranks, ranks_per_host, bytes) result(ierror) &
            bind(c, name="MPIX_Ep_window_size")
            import :: c_int, MPIX_Ep_config, MPI_COUNT_KIND
            type(MPIX_Ep_config), intent(in) :: config
            integer(c_int), value :: ranks
            integer(c_int), value :: ranks_per_host
            integer(MPI_COUNT_KIND), intent(inout) :: bytes
            integer(c_int) :: ierror
        end function
        function c_Ep_create(comm, config, info, ep) result(ierror) &
            bind(c, name="mpix_f_Ep_create")
            import :: c_int, c_ptr, MPIX_Ep_config
            integer, value :: comm
            type(MPIX_Ep_config), intent(in) :: config
            integer, value :: info
            type(c_ptr), intent(inout) :: ep
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_free(ep) result(ierror) &
            bind(c, name="MPIX_Ep_free")
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: ep
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_get_config(ep, config) result(ierror) &
            bind(c, name="MPIX_Ep_get_config")
            import :: c_int, c_ptr, MPIX_Ep_config
            type(c_ptr), value :: ep
            type(MPIX_Ep_config), intent(inout) :: config
            integer(c_int) :: ierror
        end function
        function c_Ep_set_errhandler(ep, errhandler) result(ierror) &
            bind(c, name="mpix_f_Ep_set_errhandler")
            import :: c_int, c_ptr
            type(c_ptr), value :: ep
            integer, value :: errhandler
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_get_async_error(ep, error) result(ierror) &
            bind(c, name="MPIX_Ep_get_async_error")
            import :: c_int, c_ptr, MPIX_Error
            type(c_ptr), value :: ep
            type(MPIX_Error), intent(inout) :: error
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_get_peer(ep, rank, peer) result(ierror) &
            bind(c, name="MPIX_Ep_get_peer")
            import :: c_int, c_ptr, MPIX_Ep_peer
            type(c_ptr), value :: ep
            integer(c_int), value :: rank
            type(MPIX_Ep_peer), intent(inout) :: peer
            integer(c_int) :: ierror
        end function
        function c_Ep_alloc(ep, bytes, info, baseptr) result(ierror) &
            bind(c, name="mpix_f_Ep_alloc")
            import :: c_int, c_ptr, MPI_COUNT_KIND
            type(c_ptr), value :: ep
            integer(MPI_COUNT_KIND), value :: bytes
            integer, value :: info
            type(c_ptr), intent(out) :: baseptr
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_dealloc(ep, base) result(ierror) &
            bind(c, name="MPIX_Ep_dealloc")
            import :: c_int, c_ptr
            type(c_ptr), value :: ep
            type(c_ptr), value :: base
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_register(ep, base, bytes, direct) result(ierror) &
            bind(c, name="MPIX_Ep_register")
            import :: c_int, c_ptr, MPI_COUNT_KIND
            type(c_ptr), value :: ep
            type(c_ptr), value :: base
            integer(MPI_COUNT_KIND), value :: bytes
            integer(c_int), intent(inout) :: direct
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_deregister(ep, base) result(ierror) &
            bind(c, name="MPIX_Ep_deregister")
            import :: c_int, c_ptr
            type(c_ptr), value :: ep
            type(c_ptr), value :: base
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_get_mask(ep, alive) result(ierror) &
            bind(c, name="MPIX_Ep_get_mask")
            import :: c_int, c_ptr
            type(c_ptr), value :: ep
            integer(c_int), intent(inout) :: alive(*)
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_set_mask(ep, rank, alive) result(ierror) &
            bind(c, name="MPIX_Ep_set_mask")
            import :: c_int, c_ptr
            type(c_ptr), value :: ep
            integer(c_int), value :: rank
            integer(c_int), value :: alive
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_handle_create(ep, handle) result(ierror) &
            bind(c, name="MPIX_Ep_handle_create")
            import :: c_int, c_ptr
            type(c_ptr), value :: ep
            type(c_ptr), intent(inout) :: handle
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_handle_free(handle) result(ierror) &
            bind(c, name="MPIX_Ep_handle_free")
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: handle
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_iroute(handle, routing, counts, xfer) result(ierror) &
            bind(c, name="MPIX_Ep_iroute")
            import :: c_int, c_ptr, MPIX_Ep_routing, MPIX_Ep_counts
            type(c_ptr), value :: handle
            type(MPIX_Ep_routing), intent(in) :: routing
            type(MPIX_Ep_counts), intent(in), optional :: counts
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_route(handle, routing, counts) result(ierror) &
            bind(c, name="MPIX_Ep_route")
            import :: c_int, c_ptr, MPIX_Ep_routing, MPIX_Ep_counts
            type(c_ptr), value :: handle
            type(MPIX_Ep_routing), intent(in) :: routing
            type(MPIX_Ep_counts), intent(in), optional :: counts
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_idispatch(handle, in, out, xfer) result(ierror) &
            bind(c, name="MPIX_Ep_idispatch")
            import :: c_int, c_ptr, MPIX_Ep_dispatch_in, MPIX_Ep_dispatch_out
            type(c_ptr), value :: handle
            type(MPIX_Ep_dispatch_in), intent(in) :: in
            type(MPIX_Ep_dispatch_out), intent(in) :: out
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_dispatch(handle, in, out) result(ierror) &
            bind(c, name="MPIX_Ep_dispatch")
            import :: c_int, c_ptr, MPIX_Ep_dispatch_in, MPIX_Ep_dispatch_out
            type(c_ptr), value :: handle
            type(MPIX_Ep_dispatch_in), intent(in) :: in
            type(MPIX_Ep_dispatch_out), intent(in) :: out
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_icombine(handle, in, out, xfer) result(ierror) &
            bind(c, name="MPIX_Ep_icombine")
            import :: c_int, c_ptr, MPIX_Ep_combine_in, MPIX_Ep_combine_out
            type(c_ptr), value :: handle
            type(MPIX_Ep_combine_in), intent(in) :: in
            type(MPIX_Ep_combine_out), intent(in) :: out
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_combine(handle, in, out) result(ierror) &
            bind(c, name="MPIX_Ep_combine")
            import :: c_int, c_ptr, MPIX_Ep_combine_in, MPIX_Ep_combine_out
            type(c_ptr), value :: handle
            type(MPIX_Ep_combine_in), intent(in) :: in
            type(MPIX_Ep_combine_out), intent(in) :: out
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_route_enqueue(handle, routing, counts, stream) result(ierror) &
            bind(c, name="MPIX_Ep_route_enqueue")
            import :: c_int, c_ptr, MPIX_Ep_routing, MPIX_Ep_counts
            type(c_ptr), value :: handle
            type(MPIX_Ep_routing), intent(in) :: routing
            type(MPIX_Ep_counts), intent(in), optional :: counts
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_dispatch_enqueue(handle, in, out, stream) result(ierror) &
            bind(c, name="MPIX_Ep_dispatch_enqueue")
            import :: c_int, c_ptr, MPIX_Ep_dispatch_in, MPIX_Ep_dispatch_out
            type(c_ptr), value :: handle
            type(MPIX_Ep_dispatch_in), intent(in) :: in
            type(MPIX_Ep_dispatch_out), intent(in) :: out
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_combine_enqueue(handle, in, out, stream) result(ierror) &
            bind(c, name="MPIX_Ep_combine_enqueue")
            import :: c_int, c_ptr, MPIX_Ep_combine_in, MPIX_Ep_combine_out
            type(c_ptr), value :: handle
            type(MPIX_Ep_combine_in), intent(in) :: in
            type(MPIX_Ep_combine_out), intent(in) :: out
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_dispatch_begin_enqueue(handle, in, out, stream) result(ierror) &
            bind(c, name="MPIX_Ep_dispatch_begin_enqueue")
            import :: c_int, c_ptr, MPIX_Ep_dispatch_in, MPIX_Ep_dispatch_out
            type(c_ptr), value :: handle
            type(MPIX_Ep_dispatch_in), intent(in) :: in
            type(MPIX_Ep_dispatch_out), intent(in) :: out
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_dispatch_end_enqueue(handle, stream) result(ierror) &
            bind(c, name="MPIX_Ep_dispatch_end_enqueue")
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_combine_begin_enqueue(handle, in, out, stream) result(ierror) &
            bind(c, name="MPIX_Ep_combine_begin_enqueue")
            import :: c_int, c_ptr, MPIX_Ep_combine_in, MPIX_Ep_combine_out
            type(c_ptr), value :: handle
            type(MPIX_Ep_combine_in), intent(in) :: in
            type(MPIX_Ep_combine_out), intent(in) :: out
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_combine_end_enqueue(handle, stream) result(ierror) &
            bind(c, name="MPIX_Ep_combine_end_enqueue")
            import :: c_int, c_ptr
            type(c_ptr), value :: handle
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_Ep_combine_buffer(handle, rows) result(ierror) &
            bind(c, name="MPIX_Ep_combine_buffer")
            import :: c_int, c_ptr, MPIX_Ep_rows
            type(c_ptr), value :: handle
            type(MPIX_Ep_rows), intent(inout) :: rows
            integer(c_int) :: ierror
        end function
        function c_P2p_create(comm, info, p2p) result(ierror) &
            bind(c, name="mpix_f_P2p_create")
            import :: c_int, c_ptr
            integer, value :: comm
            integer, value :: info
            type(c_ptr), intent(inout) :: p2p
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_free(p2p) result(ierror) &
            bind(c, name="MPIX_P2p_free")
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: p2p
            integer(c_int) :: ierror
        end function
        function c_P2p_set_errhandler(p2p, errhandler) result(ierror) &
            bind(c, name="mpix_f_P2p_set_errhandler")
            import :: c_int, c_ptr
            type(c_ptr), value :: p2p
            integer, value :: errhandler
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_get_async_error(p2p, error) result(ierror) &
            bind(c, name="MPIX_P2p_get_async_error")
            import :: c_int, c_ptr, MPIX_Error
            type(c_ptr), value :: p2p
            type(MPIX_Error), intent(inout) :: error
            integer(c_int) :: ierror
        end function
        function c_P2p_alloc(p2p, bytes, info, baseptr, mem) result(ierror) &
            bind(c, name="mpix_f_P2p_alloc")
            import :: c_int, c_ptr, MPI_COUNT_KIND
            type(c_ptr), value :: p2p
            integer(MPI_COUNT_KIND), value :: bytes
            integer, value :: info
            type(c_ptr), intent(out) :: baseptr
            type(c_ptr), intent(inout) :: mem
            integer(c_int) :: ierror
        end function
        function c_P2p_reg(p2p, base, bytes, info, mem) result(ierror) &
            bind(c, name="mpix_f_P2p_reg")
            import :: c_int, c_ptr, MPI_COUNT_KIND
            type(c_ptr), value :: p2p
            type(c_ptr), value :: base
            integer(MPI_COUNT_KIND), value :: bytes
            integer, value :: info
            type(c_ptr), intent(inout) :: mem
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_dereg(mem) result(ierror) &
            bind(c, name="MPIX_P2p_dereg")
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: mem
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_export(mem, off, len, buf, buflen) result(ierror) &
            bind(c, name="MPIX_P2p_export")
            import :: c_int, c_ptr, MPI_COUNT_KIND
            type(c_ptr), value :: mem
            integer(MPI_COUNT_KIND), value :: off
            integer(MPI_COUNT_KIND), value :: len
            type(c_ptr), value :: buf
            integer(MPI_COUNT_KIND), intent(inout) :: buflen
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_import(p2p, peer, buf, buflen, rmem) result(ierror) &
            bind(c, name="MPIX_P2p_import")
            import :: c_int, c_ptr, MPI_COUNT_KIND
            type(c_ptr), value :: p2p
            integer(c_int), value :: peer
            type(c_ptr), value :: buf
            integer(MPI_COUNT_KIND), value :: buflen
            type(c_ptr), intent(inout) :: rmem
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_rmem_free(rmem) result(ierror) &
            bind(c, name="MPIX_P2p_rmem_free")
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: rmem
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_exchange(mem, rmems) result(ierror) &
            bind(c, name="MPIX_P2p_exchange")
            import :: c_int, c_ptr
            type(c_ptr), value :: mem
            type(c_ptr), intent(inout) :: rmems(*)
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_advertise(iov, n, peer, tag) result(ierror) &
            bind(c, name="MPIX_P2p_advertise")
            import :: c_int, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            integer(c_int), value :: peer
            integer(c_int), value :: tag
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_get_advert(p2p, peer, tag, max, rmems, n) result(ierror) &
            bind(c, name="MPIX_P2p_get_advert")
            import :: c_int, c_ptr
            type(c_ptr), value :: p2p
            integer(c_int), value :: peer
            integer(c_int), value :: tag
            integer(c_int), value :: max
            type(c_ptr), intent(inout) :: rmems(*)
            integer(c_int), intent(inout) :: n
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_iput(iov, n, xfer) result(ierror) &
            bind(c, name="MPIX_P2p_iput")
            import :: c_int, c_ptr, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_put(iov, n) result(ierror) &
            bind(c, name="MPIX_P2p_put")
            import :: c_int, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_iget(iov, n, xfer) result(ierror) &
            bind(c, name="MPIX_P2p_iget")
            import :: c_int, c_ptr, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_get(iov, n) result(ierror) &
            bind(c, name="MPIX_P2p_get")
            import :: c_int, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_iput_notify(iov, n, slot, add, xfer) result(ierror) &
            bind(c, name="MPIX_P2p_iput_notify")
            import :: c_int, c_int64_t, c_ptr, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            integer(c_int), value :: slot
            integer(c_int64_t), value :: add
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_put_notify(iov, n, slot, add) result(ierror) &
            bind(c, name="MPIX_P2p_put_notify")
            import :: c_int, c_int64_t, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            integer(c_int), value :: slot
            integer(c_int64_t), value :: add
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_notify_test(p2p, peer, slot, at_least, now, flag) result(ierror) &
            bind(c, name="MPIX_P2p_notify_test")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: p2p
            integer(c_int), value :: peer
            integer(c_int), value :: slot
            integer(c_int64_t), value :: at_least
            integer(c_int64_t), intent(inout), optional :: now
            integer(c_int), intent(inout) :: flag
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_notify_wait(p2p, peer, slot, at_least, now) result(ierror) &
            bind(c, name="MPIX_P2p_notify_wait")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: p2p
            integer(c_int), value :: peer
            integer(c_int), value :: slot
            integer(c_int64_t), value :: at_least
            integer(c_int64_t), intent(inout), optional :: now
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_ifetch_add(rmem, roff, add, old, xfer) result(ierror) &
            bind(c, name="MPIX_P2p_ifetch_add")
            import :: c_int, c_int64_t, c_ptr, MPI_COUNT_KIND
            type(c_ptr), value :: rmem
            integer(MPI_COUNT_KIND), value :: roff
            integer(c_int64_t), value :: add
            type(c_ptr), value :: old
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_fetch_add(rmem, roff, add, old) result(ierror) &
            bind(c, name="MPIX_P2p_fetch_add")
            import :: c_int, c_int64_t, c_ptr, MPI_COUNT_KIND
            type(c_ptr), value :: rmem
            integer(MPI_COUNT_KIND), value :: roff
            integer(c_int64_t), value :: add
            type(c_ptr), value :: old
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_isend(p2p, peer, iov, n, xfer) result(ierror) &
            bind(c, name="MPIX_P2p_isend")
            import :: c_int, c_ptr, MPIX_P2p_iov
            type(c_ptr), value :: p2p
            integer(c_int), value :: peer
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_send(p2p, peer, iov, n) result(ierror) &
            bind(c, name="MPIX_P2p_send")
            import :: c_int, c_ptr, MPIX_P2p_iov
            type(c_ptr), value :: p2p
            integer(c_int), value :: peer
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_irecv(p2p, peer, iov, n, received, xfer) result(ierror) &
            bind(c, name="MPIX_P2p_irecv")
            import :: c_int, c_ptr, MPIX_P2p_iov
            type(c_ptr), value :: p2p
            integer(c_int), value :: peer
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            type(c_ptr), value :: received
            type(c_ptr), intent(inout) :: xfer
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_recv(p2p, peer, iov, n, received) result(ierror) &
            bind(c, name="MPIX_P2p_recv")
            import :: c_int, c_ptr, MPIX_P2p_iov
            type(c_ptr), value :: p2p
            integer(c_int), value :: peer
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            type(c_ptr), value :: received
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_flush(p2p, peer) result(ierror) &
            bind(c, name="MPIX_P2p_flush")
            import :: c_int, c_ptr
            type(c_ptr), value :: p2p
            integer(c_int), value :: peer
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_put_enqueue(iov, n, stream) result(ierror) &
            bind(c, name="MPIX_P2p_put_enqueue")
            import :: c_int, c_ptr, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_get_enqueue(iov, n, stream) result(ierror) &
            bind(c, name="MPIX_P2p_get_enqueue")
            import :: c_int, c_ptr, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_put_notify_enqueue(iov, n, slot, add, stream) result(ierror) &
            bind(c, name="MPIX_P2p_put_notify_enqueue")
            import :: c_int, c_int64_t, c_ptr, MPIX_P2p_iov
            type(MPIX_P2p_iov), intent(in) :: iov(*)
            integer(c_int), value :: n
            integer(c_int), value :: slot
            integer(c_int64_t), value :: add
            type(c_ptr), value :: stream
            integer(c_int) :: ierror
        end function
        function MPIX_P2p_get_device(p2p, device_handle) result(ierror) &
            bind(c, name="MPIX_P2p_get_device")
            import :: c_int, c_ptr
            type(c_ptr), value :: p2p
            type(c_ptr), value :: device_handle
            integer(c_int) :: ierror
        end function
    end interface
    private :: c_Ep_create, c_Ep_set_errhandler, c_Ep_alloc, c_P2p_create, c_P2p_set_errhandler, c_P2p_alloc, c_P2p_reg

contains

    subroutine init_Error(x)
        type(MPIX_Error), intent(out) :: x
        x%struct_size = c_sizeof(x)
    end subroutine

    subroutine init_Ep_config(x)
        type(MPIX_Ep_config), intent(out) :: x
        x%struct_size = c_sizeof(x)
    end subroutine

    subroutine init_Ep_routing(x)
        type(MPIX_Ep_routing), intent(out) :: x
        x%struct_size = c_sizeof(x)
    end subroutine

    subroutine init_Ep_counts(x)
        type(MPIX_Ep_counts), intent(out) :: x
        x%struct_size = c_sizeof(x)
    end subroutine

    subroutine init_Ep_dispatch_in(x)
        type(MPIX_Ep_dispatch_in), intent(out) :: x
        x%struct_size = c_sizeof(x)
    end subroutine

    subroutine init_Ep_dispatch_out(x)
        type(MPIX_Ep_dispatch_out), intent(out) :: x
        x%struct_size = c_sizeof(x)
    end subroutine

    subroutine init_Ep_combine_in(x)
        type(MPIX_Ep_combine_in), intent(out) :: x
        x%struct_size = c_sizeof(x)
    end subroutine

    subroutine init_Ep_combine_out(x)
        type(MPIX_Ep_combine_out), intent(out) :: x
        x%struct_size = c_sizeof(x)
    end subroutine

    subroutine init_Ep_peer(x)
        type(MPIX_Ep_peer), intent(out) :: x
        x%struct_size = c_sizeof(x)
    end subroutine

    ! The calls that take MPI objects, which C knows by other handles.

    function MPIX_Ep_create(comm, config, info, ep) result(ierror)
        type(MPI_Comm), intent(in) :: comm
        type(MPIX_Ep_config), intent(in) :: config
        type(MPI_Info), intent(in) :: info
        type(c_ptr), intent(inout) :: ep
        integer(c_int) :: ierror
        ierror = c_Ep_create(comm%MPI_VAL, config, info%MPI_VAL, ep)
    end function

    function MPIX_Ep_set_errhandler(ep, errhandler) result(ierror)
        type(c_ptr), value :: ep
        type(MPI_Errhandler), intent(in) :: errhandler
        integer(c_int) :: ierror
        ierror = c_Ep_set_errhandler(ep, errhandler%MPI_VAL)
    end function

    function MPIX_Ep_alloc(ep, bytes, info, baseptr) result(ierror)
        type(c_ptr), value :: ep
        integer(MPI_COUNT_KIND), value :: bytes
        type(MPI_Info), intent(in) :: info
        type(c_ptr), intent(out) :: baseptr
        integer(c_int) :: ierror
        ierror = c_Ep_alloc(ep, bytes, info%MPI_VAL, baseptr)
    end function

    function MPIX_P2p_create(comm, info, p2p) result(ierror)
        type(MPI_Comm), intent(in) :: comm
        type(MPI_Info), intent(in) :: info
        type(c_ptr), intent(inout) :: p2p
        integer(c_int) :: ierror
        ierror = c_P2p_create(comm%MPI_VAL, info%MPI_VAL, p2p)
    end function

    function MPIX_P2p_set_errhandler(p2p, errhandler) result(ierror)
        type(c_ptr), value :: p2p
        type(MPI_Errhandler), intent(in) :: errhandler
        integer(c_int) :: ierror
        ierror = c_P2p_set_errhandler(p2p, errhandler%MPI_VAL)
    end function

    function MPIX_P2p_alloc(p2p, bytes, info, baseptr, mem) result(ierror)
        type(c_ptr), value :: p2p
        integer(MPI_COUNT_KIND), value :: bytes
        type(MPI_Info), intent(in) :: info
        type(c_ptr), intent(out) :: baseptr
        type(c_ptr), intent(inout) :: mem
        integer(c_int) :: ierror
        ierror = c_P2p_alloc(p2p, bytes, info%MPI_VAL, baseptr, mem)
    end function

    function MPIX_P2p_reg(p2p, base, bytes, info, mem) result(ierror)
        type(c_ptr), value :: p2p
        type(c_ptr), value :: base
        integer(MPI_COUNT_KIND), value :: bytes
        type(MPI_Info), intent(in) :: info
        type(c_ptr), intent(inout) :: mem
        integer(c_int) :: ierror
        ierror = c_P2p_reg(p2p, base, bytes, info%MPI_VAL, mem)
    end function
end module
