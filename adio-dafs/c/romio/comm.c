/* The collective operations of the glue, over MPI. */
#include "dafs_romio.h"

int dafs_bcast_from(MPI_Comm comm, int rank, void *data, size_t len)
{
    return PMPI_Bcast(data, (int)len, MPI_BYTE, rank, comm);
}

int dafs_bcast(MPI_Comm comm, void *data, size_t len)
{
    return dafs_bcast_from(comm, 0, data, len);
}

int dafs_scan(MPI_Comm comm, uint64_t *values, int count)
{
    return PMPI_Scan(MPI_IN_PLACE, values, count, MPI_UINT64_T, MPI_SUM, comm);
}

int dafs_max(MPI_Comm comm, int64_t *values, int count)
{
    return PMPI_Allreduce(MPI_IN_PLACE, values, count, MPI_INT64_T, MPI_MAX, comm);
}

int dafs_sum_at_first(MPI_Comm comm, int rank, uint64_t *values, int count)
{
    const void *from = rank == 0 ? MPI_IN_PLACE : values;

    return PMPI_Reduce(from, values, count, MPI_UINT64_T, MPI_SUM, 0, comm);
}
