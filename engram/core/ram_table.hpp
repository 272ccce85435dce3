// A whole packed file in memory, for tests and for hosts with room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace engram {

class RamTable {
 public:
  // Reads the file's data pages through the page cache. Null with error = errno (EIO when the file is short).
  static std::unique_ptr<RamTable> load(int fd, std::uint64_t file_bytes, int& error);
  ~RamTable();
  RamTable(const RamTable&) = delete;
  RamTable& operator=(const RamTable&) = delete;

  const std::byte* row(std::uint32_t local_row, std::uint32_t rows_per_page, std::uint32_t row_bytes) const;

 private:
  RamTable(std::byte* pages, std::size_t bytes) : pages_(pages), bytes_(bytes) {}

  std::byte* pages_;
  std::size_t bytes_;
};

}  // namespace engram
