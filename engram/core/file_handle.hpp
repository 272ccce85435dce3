// RAII file descriptor, and the opening of packed files with O_DIRECT.
#pragma once

#include <string>
#include <utility>

namespace engram {

class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int fd) : fd_(fd) {}
  FileHandle(FileHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileHandle();

  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// Why a file or a store did not open. `message` is empty when error alone says it.
struct OpenFault {
  std::string path;
  std::string message;
  int error = 0;
  bool needs_allow_buffered = false;
};

// Opens for reading past the page cache. On file systems that cannot, fails with needs_allow_buffered, or
// reads through the page cache when allow_buffered is set. 0 or -errno, with `fault` filled in.
int open_direct(const std::string& path, bool allow_buffered, FileHandle& file, OpenFault& fault);

}  // namespace engram
