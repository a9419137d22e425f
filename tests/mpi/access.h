/* Every way of MPI to read or write at a place that the caller names, under one call. */
#ifndef ACCESS_H
#define ACCESS_H

#include "check.h"

enum access {
    AT,
    POINTER,
    IAT,
    IPOINTER,
    AT_ALL,
    ALL,
    AT_ALL_SPLIT,
    ALL_SPLIT,
    IAT_ALL,
    IALL,
    ACCESS_COUNT
};

static const char *const access_names[ACCESS_COUNT] = {
    "at", "pointer", "i_at", "i_pointer", "at_all", "all", "at_all_begin", "all_begin", "i_at_all", "i_all",
};

static inline int access_has_pointer(enum access how)
{
    return how == POINTER || how == IPOINTER || how == ALL || how == ALL_SPLIT || how == IALL;
}

static inline int access_is_collective(enum access how)
{
    return how >= AT_ALL;
}

static inline int access_write(enum access how, MPI_File fh, MPI_Offset offset, const void *memory, int count, MPI_Datatype type,
                               MPI_Status *status, MPI_Request *request)
{
    int error;
    switch (how) {
    case AT:
        return MPI_File_write_at(fh, offset, memory, count, type, status);
    case POINTER:
        return MPI_File_write(fh, memory, count, type, status);
    case IAT:
        return MPI_File_iwrite_at(fh, offset, memory, count, type, request);
    case IPOINTER:
        return MPI_File_iwrite(fh, memory, count, type, request);
    case AT_ALL:
        return MPI_File_write_at_all(fh, offset, memory, count, type, status);
    case ALL:
        return MPI_File_write_all(fh, memory, count, type, status);
    case AT_ALL_SPLIT:
        error = MPI_File_write_at_all_begin(fh, offset, memory, count, type);
        return error ? error : MPI_File_write_at_all_end(fh, memory, status);
    case ALL_SPLIT:
        error = MPI_File_write_all_begin(fh, memory, count, type);
        return error ? error : MPI_File_write_all_end(fh, memory, status);
    case IAT_ALL:
        return MPI_File_iwrite_at_all(fh, offset, memory, count, type, request);
    default:
        return MPI_File_iwrite_all(fh, memory, count, type, request);
    }
}

static inline int access_read(enum access how, MPI_File fh, MPI_Offset offset, void *memory, int count, MPI_Datatype type,
                              MPI_Status *status, MPI_Request *request)
{
    int error;
    switch (how) {
    case AT:
        return MPI_File_read_at(fh, offset, memory, count, type, status);
    case POINTER:
        return MPI_File_read(fh, memory, count, type, status);
    case IAT:
        return MPI_File_iread_at(fh, offset, memory, count, type, request);
    case IPOINTER:
        return MPI_File_iread(fh, memory, count, type, request);
    case AT_ALL:
        return MPI_File_read_at_all(fh, offset, memory, count, type, status);
    case ALL:
        return MPI_File_read_all(fh, memory, count, type, status);
    case AT_ALL_SPLIT:
        error = MPI_File_read_at_all_begin(fh, offset, memory, count, type);
        return error ? error : MPI_File_read_at_all_end(fh, memory, status);
    case ALL_SPLIT:
        error = MPI_File_read_all_begin(fh, memory, count, type);
        return error ? error : MPI_File_read_all_end(fh, memory, status);
    case IAT_ALL:
        return MPI_File_iread_at_all(fh, offset, memory, count, type, request);
    default:
        return MPI_File_iread_all(fh, memory, count, type, request);
    }
}

/* Moves data to its end. Ways with a file pointer take it from where that stands; the others from `offset`. */
static inline int access_run(enum access how, int writes, MPI_File fh, MPI_Offset offset, void *memory, int count,
                             MPI_Datatype type, MPI_Status *status)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int nonblocking = how == IAT || how == IPOINTER || how == IAT_ALL || how == IALL, error;
    if (writes)
        error = access_write(how, fh, offset, memory, count, type, status, &request);
    else
        error = access_read(how, fh, offset, memory, count, type, status, &request);
    return nonblocking && error == MPI_SUCCESS ? MPI_Wait(&request, status) : error;
}

#endif
