/*
 * count_mpi.h - the MPI functions, defined by the test program itself and passed on to PMPI: what
 * the library calls, it calls here. To be included by one file of a program.
 */
#ifndef TESTS_COUNT_MPI_H
#define TESTS_COUNT_MPI_H

#include <mpi.h>
#include <stdatomic.h>

static _Atomic int counted; /* MPI calls since the last look, by any thread */
static const char *_Atomic last_name;

/* Everything is compiled with hidden symbols, and not every mpi.h says that its
 * functions are visible. */
#pragma GCC visibility push(default)
#define W(name, params, args) \
    int MPI_##name params { \
        atomic_fetch_add(&counted, 1); \
        atomic_store(&last_name, "MPI_" #name); \
        return PMPI_##name args; \
    }
typedef MPI_Datatype D;
typedef MPI_Comm C;
typedef MPI_Request R;
typedef MPI_Status S;
typedef MPI_Aint A;

/* Everything that moves data, makes progress or could stand for them, and what a careless library
 * calls on the way. */
W(Send, (const void *b, int n, D d, int to, int tag, C c), (b, n, d, to, tag, c))
W(Ssend, (const void *b, int n, D d, int to, int tag, C c), (b, n, d, to, tag, c))
W(Recv, (void *b, int n, D d, int from, int tag, C c, S *s), (b, n, d, from, tag, c, s))
W(Isend, (const void *b, int n, D d, int to, int tag, C c, R *r), (b, n, d, to, tag, c, r))
W(Issend, (const void *b, int n, D d, int to, int tag, C c, R *r), (b, n, d, to, tag, c, r))
W(Irecv, (void *b, int n, D d, int from, int tag, C c, R *r), (b, n, d, from, tag, c, r))
W(Sendrecv,
  (const void *b, int n, D d, int to, int t, void *q, int m, D e, int f, int u, C c, S *s),
  (b, n, d, to, t, q, m, e, f, u, c, s))
W(Probe, (int from, int tag, C c, S *s), (from, tag, c, s))
W(Iprobe, (int from, int tag, C c, int *f, S *s), (from, tag, c, f, s))
W(Improbe, (int from, int tag, C c, int *f, MPI_Message *m, S *s), (from, tag, c, f, m, s))
W(Mprobe, (int from, int tag, C c, MPI_Message *m, S *s), (from, tag, c, m, s))
W(Wait, (R * r, S *s), (r, s))
W(Waitall, (int n, R r[], S s[]), (n, r, s))
W(Waitany, (int n, R r[], int *i, S *s), (n, r, i, s))
W(Waitsome, (int n, R r[], int *m, int i[], S s[]), (n, r, m, i, s))
W(Test, (R * r, int *f, S *s), (r, f, s))
W(Testall, (int n, R r[], int *f, S s[]), (n, r, f, s))
W(Testany, (int n, R r[], int *i, int *f, S *s), (n, r, i, f, s))
W(Testsome, (int n, R r[], int *m, int i[], S s[]), (n, r, m, i, s))
W(Start, (R * r), (r))
W(Request_free, (R * r), (r))
W(Cancel, (R * r), (r))
W(Barrier, (C c), (c))
W(Ibarrier, (C c, R *r), (c, r))
W(Bcast, (void *b, int n, D d, int root, C c), (b, n, d, root, c))
W(Gather, (const void *b, int n, D d, void *q, int m, D e, int root, C c),
  (b, n, d, q, m, e, root, c))
W(Scatter, (const void *b, int n, D d, void *q, int m, D e, int root, C c),
  (b, n, d, q, m, e, root, c))
W(Allgather, (const void *b, int n, D d, void *q, int m, D e, C c), (b, n, d, q, m, e, c))
W(Allgatherv, (const void *b, int n, D d, void *q, const int m[], const int o[], D e, C c),
  (b, n, d, q, m, o, e, c))
W(Iallgather, (const void *b, int n, D d, void *q, int m, D e, C c, R *r), (b, n, d, q, m, e, c, r))
W(Alltoall, (const void *b, int n, D d, void *q, int m, D e, C c), (b, n, d, q, m, e, c))
W(Alltoallv,
  (const void *b, const int n[], const int o[], D d, void *q, const int m[], const int p[], D e,
   C c),
  (b, n, o, d, q, m, p, e, c))
W(Ialltoall, (const void *b, int n, D d, void *q, int m, D e, C c, R *r), (b, n, d, q, m, e, c, r))
W(Reduce, (const void *b, void *q, int n, D d, MPI_Op o, int root, C c), (b, q, n, d, o, root, c))
W(Allreduce, (const void *b, void *q, int n, D d, MPI_Op o, C c), (b, q, n, d, o, c))
W(Iallreduce, (const void *b, void *q, int n, D d, MPI_Op o, C c, R *r), (b, q, n, d, o, c, r))
W(Scan, (const void *b, void *q, int n, D d, MPI_Op o, C c), (b, q, n, d, o, c))
W(Exscan, (const void *b, void *q, int n, D d, MPI_Op o, C c), (b, q, n, d, o, c))
W(Comm_rank, (C c, int *r), (c, r))
W(Comm_size, (C c, int *n), (c, n))
W(Comm_dup, (C c, C *d), (c, d))
W(Comm_split, (C c, int color, int key, C *d), (c, color, key, d))
W(Comm_split_type, (C c, int type, int key, MPI_Info i, C *d), (c, type, key, i, d))
W(Comm_free, (C * c), (c))
W(Comm_compare, (C c, C d, int *r), (c, d, r))
W(Comm_test_inter, (C c, int *f), (c, f))
W(Comm_group, (C c, MPI_Group *g), (c, g))
W(Comm_get_attr, (C c, int k, void *v, int *f), (c, k, v, f))
W(Comm_set_attr, (C c, int k, void *v), (c, k, v))
W(Comm_set_errhandler, (C c, MPI_Errhandler e), (c, e))
W(Comm_get_errhandler, (C c, MPI_Errhandler *e), (c, e))
W(Comm_call_errhandler, (C c, int code), (c, code))
W(Group_translate_ranks, (MPI_Group g, int n, const int a[], MPI_Group h, int b[]), (g, n, a, h, b))
W(Win_create, (void *b, A n, int u, MPI_Info i, C c, MPI_Win *w), (b, n, u, i, c, w))
W(Win_allocate, (A n, int u, MPI_Info i, C c, void *b, MPI_Win *w), (n, u, i, c, b, w))
W(Win_allocate_shared, (A n, int u, MPI_Info i, C c, void *b, MPI_Win *w), (n, u, i, c, b, w))
W(Win_shared_query, (MPI_Win w, int r, A *n, int *u, void *b), (w, r, n, u, b))
W(Win_free, (MPI_Win * w), (w))
W(Win_fence, (int a, MPI_Win w), (a, w))
W(Win_lock, (int t, int r, int a, MPI_Win w), (t, r, a, w))
W(Win_unlock, (int r, MPI_Win w), (r, w))
W(Win_lock_all, (int a, MPI_Win w), (a, w))
W(Win_flush, (int r, MPI_Win w), (r, w))
W(Win_flush_all, (MPI_Win w), (w))
W(Win_flush_local, (int r, MPI_Win w), (r, w))
W(Win_sync, (MPI_Win w), (w))
W(Put, (const void *b, int n, D d, int r, A o, int m, D e, MPI_Win w), (b, n, d, r, o, m, e, w))
W(Get, (void *b, int n, D d, int r, A o, int m, D e, MPI_Win w), (b, n, d, r, o, m, e, w))
W(Accumulate, (const void *b, int n, D d, int r, A o, int m, D e, MPI_Op p, MPI_Win w),
  (b, n, d, r, o, m, e, p, w))
W(Fetch_and_op, (const void *b, void *q, D d, int r, A o, MPI_Op p, MPI_Win w),
  (b, q, d, r, o, p, w))
W(Compare_and_swap, (const void *b, const void *x, void *q, D d, int r, A o, MPI_Win w),
  (b, x, q, d, r, o, w))
W(Pack, (const void *b, int n, D d, void *q, int m, int *p, C c), (b, n, d, q, m, p, c))
W(Type_size, (D d, int *n), (d, n))
W(Get_count, (const S *s, D d, int *n), (s, d, n))
W(Initialized, (int *f), (f))
W(Finalized, (int *f), (f))
W(Query_thread, (int *l), (l))
W(Is_thread_main, (int *f), (f))
W(Alloc_mem, (A n, MPI_Info i, void *b), (n, i, b))
W(Free_mem, (void *b), (b))
W(Info_get, (MPI_Info i, const char *k, int n, char *v, int *f), (i, k, n, v, f))
W(Info_get_nkeys, (MPI_Info i, int *n), (i, n))
W(Get_processor_name, (char *n, int *l), (n, l))
W(Error_class, (int c, int *e), (c, e))
W(Error_string, (int c, char *s, int *l), (c, s, l))
W(Add_error_string, (int c, const char *s), (c, s))

double MPI_Wtime(void) {
    atomic_fetch_add(&counted, 1);
    atomic_store(&last_name, "MPI_Wtime");
    return PMPI_Wtime();
}

#pragma GCC visibility pop
#undef W
#endif
