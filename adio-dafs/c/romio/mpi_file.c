/* From MPI's files to ADIO's and back, and what else Open MPI knows of itself. */
#include <string.h>

#include "dafs_romio.h"
#include "ompi/communicator/communicator.h"
#include "ompi/errhandler/errhandler.h"
#include "ompi/file/file.h"
#include "ompi/group/group.h"
#include "ompi/proc/proc.h"
#include "opal/class/opal_pointer_array.h"

/* What Open MPI's component hangs on a file of its. */
struct romio_data {
    ADIO_File fd;
};

ADIO_File dafs_adio_of_mpi(MPI_File file)
{
    const struct romio_data *data;

    if (!file || file == MPI_FILE_NULL || file->f_io_version != MCA_IO_BASE_V_2_0_0)
        return NULL;
    if (strcmp(file->f_io_selected_component.v2_0_0.io_version.mca_component_name, "romio321") != 0)
        return NULL;
    data = (const struct romio_data *)file->f_io_selected_data;
    if (!data || !data->fd || data->fd->cookie != ADIOI_FILE_COOKIE || data->fd->fns != &dafs_functions)
        return NULL;
    return data->fd;
}

MPI_File dafs_mpi_of_adio(ADIO_File fd)
{
    int count = opal_pointer_array_get_size(&ompi_file_f_to_c_table);

    for (int i = 0; i < count; i++) {
        ompi_file_t *file = opal_pointer_array_get_item(&ompi_file_f_to_c_table, i);

        if (file && dafs_adio_of_mpi(file) == fd)
            return file;
    }
    return &ompi_mpi_file_null.file;
}

int dafs_mpi_return(MPI_File file, int class, const char *function)
{
    OMPI_ERRHANDLER_RETURN(class, file, class, function);
}

bool dafs_on_one_node(MPI_Comm comm)
{
    int size = ompi_comm_size(comm);

    for (int i = 0; i < size; i++) {
        if (!OPAL_PROC_ON_LOCAL_NODE(ompi_group_peer_lookup(comm->c_local_group, i)->super.proc_flags))
            return false;
    }
    return true;
}

bool dafs_mpi_set_info(MPI_File file, MPI_Info info, int *class)
{
    if (!dafs_adio_of_mpi(file))
        return false;
    *class = dafs_mpi_return(file, romio.file_set_info(file, info), "MPI_File_set_info");
    return true;
}
