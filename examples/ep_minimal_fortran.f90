! ep_minimal_fortran.f90 - the smallest complete Fortran program: route, dispatch, experts, combine, and a check of the result.
!
! Two experts per rank; each of a rank's tokens chooses two experts, weighted 0.75, 0.25. Expert e multiplies by e + 1.
program ep_minimal
    use mpi_f08
    use mpix_ep
    implicit none
    integer, parameter :: tokens = 100, hidden = 64, topk = 2, locals = 2
    integer(c_int32_t), target :: ids(topk, tokens)
    real(c_float), target :: x(hidden, tokens), y(hidden, tokens), weights(topk, tokens)
    real(c_float), pointer :: received(:, :)
    integer(MPI_COUNT_KIND), target :: rows, offset(locals + 1)
    type(c_ptr) :: ep, handle, base
    type(MPIX_Ep_config) :: config
    type(MPIX_Ep_routing) :: routing
    type(MPIX_Ep_counts) :: counts
    type(MPIX_Ep_dispatch_in) :: in
    type(MPIX_Ep_dispatch_out) :: out
    type(MPIX_Ep_combine_in) :: back
    type(MPIX_Ep_combine_out) :: total
    integer :: rank, ranks, t, i, e, wrong, all_wrong

    call MPI_Init()
    call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) ! inherited by contexts: for check
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    do t = 1, tokens
        ids(1, t) = mod(rank + 3 * t, locals * ranks) ! experts count from 0
        ids(2, t) = mod(ids(1, t) + 1, locals * ranks)
        weights(:, t) = [0.75, 0.25]
        x(:, t) = [(real(t + i), i = 1, hidden)]
    end do

    call mpix_init(config)
    config%layout = MPIX_EP_EXPERT
    config%max_topk = topk
    config%num_experts = locals * ranks
    config%max_tokens = tokens
    config%max_row_bytes = hidden * c_sizeof(x(1, 1))
    call check(MPIX_Ep_create(MPI_COMM_WORLD, config, MPI_INFO_NULL, ep), "create")
    call check(MPIX_Ep_handle_create(ep, handle), "handle_create")

    call mpix_init(routing)
    routing%num_tokens = tokens
    routing%topk = topk
    routing%ids = c_loc(ids)
    call mpix_init(counts)
    counts%recv_total = c_loc(rows)
    counts%expert_offset = c_loc(offset)
    call check(MPIX_Ep_route(handle, routing, counts), "route")

    call check(MPIX_Ep_alloc(ep, rows * hidden * c_sizeof(x(1, 1)), MPI_INFO_NULL, base), "alloc")
    call c_f_pointer(base, received, [hidden, int(rows)]) ! peers write into it and read from it directly
    call mpix_init(in)
    in%hidden = hidden
    in%x%data = c_loc(x)
    in%x%dtype = MPIX_EP_F32
    call mpix_init(out)
    out%capacity_rows = rows
    out%x%data = base
    call check(MPIX_Ep_dispatch(handle, in, out), "dispatch")

    do e = 1, locals ! the experts
        received(:, offset(e) + 1:offset(e + 1)) = received(:, offset(e) + 1:offset(e + 1)) * (rank * locals + e)
    end do

    call mpix_init(back)
    back%hidden = hidden
    back%x = out%x
    back%x%dtype = MPIX_EP_F32
    back%topk_weights = c_loc(weights)
    call mpix_init(total)
    total%y%data = c_loc(y)
    call check(MPIX_Ep_combine(handle, back, total), "combine")

    wrong = 0
    do t = 1, tokens ! quarters of small integers: exact in single precision
        wrong = wrong + count(abs(y(:, t) - (0.75 * (ids(1, t) + 1) * x(:, t) + 0.25 * (ids(2, t) + 1) * x(:, t))) > 0)
    end do
    routing%topk = topk + 1 ! more than the context has room for: an error, not an end
    if (MPIX_Ep_route(handle, routing) == MPI_SUCCESS) wrong = wrong + 1
    call MPI_Allreduce(wrong, all_wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
    if (rank == 0) print '(a, i0, a, a)', "Fortran, ", ranks, " ranks: ", trim(merge("ok   ", "WRONG", all_wrong == 0))
    call check(MPIX_Ep_free(ep), "free") ! the handle and the memory too
    call MPI_Finalize()
    if (all_wrong /= 0) error stop

contains
    subroutine check(code, call_name)
        integer(c_int), intent(in) :: code
        character(*), intent(in) :: call_name
        type(MPIX_Error) :: error
        integer :: ignored
        if (code == MPI_SUCCESS) return
        call mpix_init(error)
        ignored = MPIX_Error_last(error)
        print '(*(a))', "MPIX_Ep_", call_name, ": ", error%text(1:index_of_null(error%text))
        call MPI_Abort(MPI_COMM_WORLD, 1)
    end subroutine
    pure integer function index_of_null(text)
        character(kind=c_char), intent(in) :: text(:)
        index_of_null = findloc(text, c_null_char, 1) - 1
    end function
end program
