! fortran_sizes.f90 - the module's types have the sizes of C's. (That they have the same components, in the same order and of the same
! kind, is for tests/api/compare.sh.)
program fortran_sizes
    use mpix_ep
    implicit none
    interface
        function c_size(i) result(bytes) bind(c, name="mpix_f_size")
            import :: c_int
            integer(c_int), value :: i
            integer(c_int) :: bytes
        end function
    end interface
    type(MPIX_Error) :: v_error
    type(MPIX_Ep_rows) :: v_ep_rows
    type(MPIX_Ep_config) :: v_ep_config
    type(MPIX_Ep_routing) :: v_ep_routing
    type(MPIX_Ep_counts) :: v_ep_counts
    type(MPIX_Ep_dispatch_in) :: v_ep_dispatch_in
    type(MPIX_Ep_dispatch_out) :: v_ep_dispatch_out
    type(MPIX_Ep_combine_in) :: v_ep_combine_in
    type(MPIX_Ep_combine_out) :: v_ep_combine_out
    type(MPIX_Ep_peer) :: v_ep_peer
    type(MPIX_P2p_iov) :: v_p2p_iov
    integer :: wrong = 0

    call compare(0, c_sizeof(v_error), "MPIX_Error")
    call compare(1, c_sizeof(v_ep_rows), "MPIX_Ep_rows")
    call compare(2, c_sizeof(v_ep_config), "MPIX_Ep_config")
    call compare(3, c_sizeof(v_ep_routing), "MPIX_Ep_routing")
    call compare(4, c_sizeof(v_ep_counts), "MPIX_Ep_counts")
    call compare(5, c_sizeof(v_ep_dispatch_in), "MPIX_Ep_dispatch_in")
    call compare(6, c_sizeof(v_ep_dispatch_out), "MPIX_Ep_dispatch_out")
    call compare(7, c_sizeof(v_ep_combine_in), "MPIX_Ep_combine_in")
    call compare(8, c_sizeof(v_ep_combine_out), "MPIX_Ep_combine_out")
    call compare(9, c_sizeof(v_ep_peer), "MPIX_Ep_peer")
    call compare(10, c_sizeof(v_p2p_iov), "MPIX_P2p_iov")
    if (c_size(11) /= -1) then
        print '(a)', "C has more types than are compared here"
        wrong = wrong + 1
    end if
    if (wrong /= 0) error stop 1

contains
    subroutine compare(i, bytes, name)
        integer, intent(in) :: i
        integer(c_size_t), intent(in) :: bytes
        character(*), intent(in) :: name
        if (bytes == c_size(i)) return
        print '(a, a, i0, a, i0)', name, ": ", bytes, " bytes, C has ", c_size(i)
        wrong = wrong + 1
    end subroutine
end program
