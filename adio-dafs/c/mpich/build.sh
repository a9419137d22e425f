#!/bin/sh
# Compiles the ADIO driver for an MPICH with visible symbols: sh build.sh MPICH_SOURCE MPICH_PREFIX LIBADIO_DAFS
set -eu
[ $# = 3 ] || { echo "usage: $0 MPICH_SOURCE MPICH_PREFIX LIBADIO_DAFS" >&2; exit 2; }
source=$1 lib=$2/lib glue=$(dirname "$0")/..

if ! nm -D --defined-only "$lib/libmpi.so" | grep -q ' ADIO_ResolveFileType$'; then
    echo "$lib/libmpi.so hides ROMIO's symbols: configure MPICH with --disable-visibility" >&2
    exit 1
fi
compile() {
    target=$1
    shift
    "${CC:-cc}" -std=c11 -D_GNU_SOURCE -O2 -g -fPIC -shared -fvisibility=hidden -Wall -Wextra -DDAFS_MPICH -I"$glue/../include" -I"$glue" \
        -isystem "$source/src/mpi/romio/adio/include" -isystem "$source/src/mpi/romio/include" -isystem "$source/src/mpl/include" \
        -isystem "$source/src/include" "$@" -L"$lib" -Wl,--no-undefined -Wl,-rpath,'$ORIGIN' -o "$lib/$target"
}
cp "$3" "$lib/libadio_dafs.so"
compile libdafs_adio.so "$glue"/mpich/*.c "$glue"/common/*.c \
    "$glue"/romio/comm.c "$glue"/romio/file.c "$glue"/romio/info.c "$glue"/romio/layout.c "$glue"/romio/names.c \
    "$glue"/romio/shared_pointer.c "$glue"/romio/transfer.c \
    -ladio_dafs -lmpi -Wl,-z,nodelete
compile libdafs_romio.so "$glue"/romio/preload.c -ldl
