#include "ram_table.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "table_format.hpp"

namespace engram {

std::unique_ptr<RamTable> RamTable::load(int fd, std::uint64_t file_bytes, int& error) {
  const std::size_t bytes = file_bytes - kHeaderBytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    error = errno;
    return nullptr;
  }
  madvise(memory, bytes, MADV_HUGEPAGE);  // fewer TLB misses; the kernel may decline
  std::unique_ptr<RamTable> table(new RamTable(static_cast<std::byte*>(memory), bytes));
  constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t want = std::min(kChunkBytes, bytes - done);
    const ssize_t got = ::pread(fd, table->pages_ + done, want, static_cast<off_t>(kHeaderBytes + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      error = got < 0 ? errno : EIO;
      return nullptr;
    }
    done += static_cast<std::size_t>(got);
  }
  return table;
}

RamTable::~RamTable() { munmap(pages_, bytes_); }

const std::byte* RamTable::row(std::uint32_t local_row, std::uint32_t rows_per_page,
                               std::uint32_t row_bytes) const {
  const std::uint32_t page = local_row / rows_per_page;
  const std::size_t in_page = local_row - page * rows_per_page;
  return pages_ + std::size_t{page} * kPageBytes + in_page * row_bytes;
}

}  // namespace engram
