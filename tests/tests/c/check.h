/* What the programs of these tests check with. */
#ifndef CHECK_H
#define CHECK_H

#include <dafs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: errno %d, %s\n", __FILE__, __LINE__, #condition, errno, dafs_error()); \
            exit(1); \
        } \
    } while (0)

/* The call fails with this errno, and says why. */
#define FAILS(call, number) \
    do { \
        errno = 0; \
        long long got_ = (long long)(call); \
        if (got_ != -1 || errno != (number) || dafs_error()[0] == 0) { \
            fprintf(stderr, "%s:%d: %s is %lld, errno %d, %s\n", __FILE__, __LINE__, #call, got_, errno, dafs_error()); \
            exit(1); \
        } \
    } while (0)

#endif
