// C++17: handles that close themselves, and errors that are exceptions. The class is for copying.
//
//     c++ -std=c++17 raii.cc $(pkg-config --cflags --libs dafs) -o raii
//     ./raii dafs+tcp://127.0.0.1:12049 scratch
#include <dafs.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace dafs {

template <typename T> T checked(T value) {
    if (value == T(-1)) throw std::system_error(errno, std::generic_category(), dafs_error());
    return value;
}

template <int (*Close)(int64_t)> class Handle {
public:
    explicit Handle(int64_t handle) : handle_(checked(handle)) {}
    Handle(Handle &&other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
    Handle &operator=(Handle &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Handle() {
        if (handle_ > 0) Close(handle_);
    }
    operator int64_t() const { return handle_; }

private:
    int64_t handle_;
};

using Session = Handle<dafs_disconnect>;
using Open = Handle<dafs_close>;

} // namespace dafs

int main(int argc, char **argv) try {
    if (argc != 3) {
        std::fprintf(stderr, "usage: raii URL EXPORT\n");
        return 2;
    }
    dafs::Session session(dafs_connect(argv[1], nullptr));
    dafs::Open root(dafs_mount(session, argv[2]));
    dafs::Open file(dafs_openat(root, "raii.txt", O_RDWR | O_CREAT | O_TRUNC, 0666));
    constexpr std::string_view text = "Hello from C++.\n";
    dafs::checked(dafs_pwrite(file, text.data(), text.size(), 0));
    dafs::checked(dafs_fsync(file));
    std::string read(64, '\0');
    read.resize(static_cast<size_t>(dafs::checked(dafs_pread(file, read.data(), read.size(), 0))));
    std::fputs(read.c_str(), stdout);
    try {
        dafs::Open(dafs_openat(root, "missing.txt", O_RDONLY, 0));
    } catch (const std::system_error &error) {
        std::printf("%s: %s\n", error.code() == std::errc::no_such_file_or_directory ? "as expected" : "unexpected", error.what());
    }
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "raii: %s\n", error.what());
    return 1;
}
