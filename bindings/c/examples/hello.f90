! Fortran 2018, by iso_c_binding: writes an array to a file on a dafs server, and reads it back.
!
!     gfortran -std=f2018 hello.f90 $(pkg-config --libs dafs) -o hello_f90
!     ./hello_f90 dafs+tcp://127.0.0.1:12049 scratch
module dafs
    use, intrinsic :: iso_c_binding
    implicit none
    ! Numbers of Linux; other constants are in dafs.h and fcntl.h.
    integer(c_int), parameter :: o_rdwr = 2, o_creat = 64, o_trunc = 512

    interface
        function dafs_connect(url, options) bind(c) result(session)
            import :: c_char, c_int64_t, c_ptr
            character(kind=c_char), intent(in) :: url(*)
            type(c_ptr), value :: options
            integer(c_int64_t) :: session
        end function
        function dafs_mount(session, name) bind(c) result(root)
            import :: c_char, c_int64_t
            integer(c_int64_t), value :: session
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int64_t) :: root
        end function
        function dafs_openat(dir, path, flags, mode) bind(c) result(file)
            import :: c_char, c_int, c_int32_t, c_int64_t
            integer(c_int64_t), value :: dir
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int), value :: flags
            integer(c_int32_t), value :: mode
            integer(c_int64_t) :: file
        end function
        function dafs_pwrite(file, memory, bytes, offset) bind(c) result(written)
            import :: c_int64_t, c_ptr, c_size_t
            integer(c_int64_t), value :: file, offset
            type(c_ptr), value :: memory
            integer(c_size_t), value :: bytes
            integer(c_int64_t) :: written
        end function
        function dafs_pread(file, memory, bytes, offset) bind(c) result(found)
            import :: c_int64_t, c_ptr, c_size_t
            integer(c_int64_t), value :: file, offset
            type(c_ptr), value :: memory
            integer(c_size_t), value :: bytes
            integer(c_int64_t) :: found
        end function
        function dafs_fsync(file) bind(c) result(outcome)
            import :: c_int, c_int64_t
            integer(c_int64_t), value :: file
            integer(c_int) :: outcome
        end function
        function dafs_close(handle) bind(c) result(outcome)
            import :: c_int, c_int64_t
            integer(c_int64_t), value :: handle
            integer(c_int) :: outcome
        end function
        function dafs_disconnect(session) bind(c) result(outcome)
            import :: c_int, c_int64_t
            integer(c_int64_t), value :: session
            integer(c_int) :: outcome
        end function
        function dafs_error() bind(c) result(words)
            import :: c_ptr
            type(c_ptr) :: words
        end function
        function strlen(words) bind(c) result(length)
            import :: c_ptr, c_size_t
            type(c_ptr), value :: words
            integer(c_size_t) :: length
        end function
    end interface

contains

    subroutine check(value, what)
        integer(c_int64_t), intent(in) :: value
        character(*), intent(in) :: what
        character(kind=c_char), pointer :: words(:)
        if (value >= 0) return
        call c_f_pointer(dafs_error(), words, [strlen(dafs_error())])
        print *, 'cannot ', what, ': ', words
        error stop
    end subroutine
end module

program hello
    use dafs
    implicit none
    real(c_double), target :: written(1000), found(1000)
    character(4096) :: url, name
    integer(c_int64_t) :: session, root, file
    integer :: i

    if (command_argument_count() /= 2) error stop 'usage: hello_f90 URL EXPORT'
    call get_command_argument(1, url)
    call get_command_argument(2, name)
    session = dafs_connect(trim(url)//c_null_char, c_null_ptr)
    call check(session, 'connect')
    root = dafs_mount(session, trim(name)//c_null_char)
    call check(root, 'mount')
    file = dafs_openat(root, 'hello.bin'//c_null_char, ior(o_rdwr, ior(o_creat, o_trunc)), int(o'666', c_int32_t))
    call check(file, 'open hello.bin')

    written = [(sqrt(real(i, c_double)), i = 1, size(written))]
    call check(dafs_pwrite(file, c_loc(written), c_sizeof(written), 0_c_int64_t), 'write')
    call check(int(dafs_fsync(file), c_int64_t), 'make it durable')
    call check(dafs_pread(file, c_loc(found), c_sizeof(found), 0_c_int64_t), 'read')
    print '(i0, a, l1)', size(found), ' numbers, the same: ', all(abs(found - written) <= 0)

    call check(int(dafs_close(file), c_int64_t), 'close')
    call check(int(dafs_close(root), c_int64_t), 'close')
    call check(int(dafs_disconnect(session), c_int64_t), 'disconnect')
end program
