/* The collective operations of the glue, over the functions of the communicator rather than MPI's: a file that a program
 * leaves open is closed within MPI_Finalize(), when MPI's own may no longer be called. */
#include "dafs_ompio.h"

int dafs_bcast_from(MPI_Comm comm, int rank, void *data, size_t len)
{
    return comm->c_coll->coll_bcast(data, (int)len, MPI_BYTE, rank, comm, comm->c_coll->coll_bcast_module);
}

int dafs_bcast(MPI_Comm comm, void *data, size_t len)
{
    return dafs_bcast_from(comm, 0, data, len);
}

int dafs_scan(MPI_Comm comm, uint64_t *values, int count)
{
    return comm->c_coll->coll_scan(MPI_IN_PLACE, values, count, MPI_UINT64_T, MPI_SUM, comm, comm->c_coll->coll_scan_module);
}

int dafs_max(MPI_Comm comm, int64_t *values, int count)
{
    return comm->c_coll->coll_allreduce(MPI_IN_PLACE, values, count, MPI_INT64_T, MPI_MAX, comm, comm->c_coll->coll_allreduce_module);
}

int dafs_sum_at_first(MPI_Comm comm, int rank, uint64_t *values, int count)
{
    const void *from = rank == 0 ? MPI_IN_PLACE : values;

    return comm->c_coll->coll_reduce(from, values, count, MPI_UINT64_T, MPI_SUM, 0, comm, comm->c_coll->coll_reduce_module);
}
