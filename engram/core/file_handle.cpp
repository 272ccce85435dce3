#include "file_handle.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "table_format.hpp"

namespace engram {
namespace {

int fail(OpenFault& fault, const std::string& path, int error, std::string message = {}) {
  fault = {path, std::move(message), error, false};
  return -error;
}

// These accept O_DIRECT on some kernels and read through memory all the same.
bool keeps_pages_in_memory(const struct statfs& fs) {
  constexpr long kOverlayfs = 0x794c7630;
  return fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC || fs.f_type == kOverlayfs;
}

bool direct_reads_too_coarse(int fd) {
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0) return false;
  if ((info.stx_mask & STATX_DIOALIGN) == 0) return false;
  return info.stx_dio_offset_align == 0 || info.stx_dio_offset_align > kPageBytes ||
         info.stx_dio_mem_align > kPageBytes;
#else
  (void)fd;
  return false;
#endif
}

// Without O_NOATIME every read looks whether to renew the file's access time: 7 % of a missed row's processor
// time. The kernel grants it to the file's owner only; for others the same reads cost that much more.
int open_to_read(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME | flags);
  return fd < 0 && errno == EPERM ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags) : fd;
}

}  // namespace

FileHandle::~FileHandle() {
  if (fd_ >= 0) ::close(fd_);
}

int open_direct(const std::string& path, bool allow_buffered, FileHandle& file, OpenFault& fault) {
  FileHandle opened(open_to_read(path, O_DIRECT));
  if (opened.fd() < 0 && errno != EINVAL) return fail(fault, path, errno);
  bool direct = opened.fd() >= 0;
  struct statfs fs {};
  if (direct && fstatfs(opened.fd(), &fs) != 0) return fail(fault, path, errno);
  direct = direct && !keeps_pages_in_memory(fs) && !direct_reads_too_coarse(opened.fd());
  if (!direct && !allow_buffered) {
    fail(fault, path, EINVAL, "the file system must support O_DIRECT reads of 4096 bytes");
    fault.needs_allow_buffered = true;
    return -EINVAL;
  }
  if (!direct) opened = FileHandle(open_to_read(path, 0));
  if (opened.fd() < 0) return fail(fault, path, errno);
  file = std::move(opened);
  return 0;
}

}  // namespace engram
