/* MPICH's own header, in the source that the running MPICH was made of. ROMIO counts releases with MPICH. */
#ifndef DAFS_MPICH_ADIO_H
#define DAFS_MPICH_ADIO_H

#include <adio.h>

/* No file system of ROMIO's has this number. */
#define ADIO_DAFS 4242

/* ROMIO's are const where memory is only read. */
typedef void adio_transfer_fn(ADIO_File, void *, int, MPI_Datatype, int, ADIO_Offset, MPI_Status *, int *);
typedef ADIOI_Flatlist_node *adio_flatten_fn(MPI_Datatype);
/* From what a file holds to memory. */
typedef int adio_convert_fn(void *, MPI_Datatype, int, void *);
typedef void adio_request_fn(ADIO_File, void *, int, MPI_Datatype, int, ADIO_Offset, MPI_Request *, int *);

#endif
