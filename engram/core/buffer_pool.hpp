// Page-aligned read buffers, one per read in flight; registered with the kernel by the io_uring backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace engram {

class BufferPool {
 public:
  // Throws std::bad_alloc.
  BufferPool(std::uint32_t num_buffers, std::uint32_t buffer_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  std::span<std::byte* const> buffers() const { return buffers_; }
  std::uint32_t buffer_bytes() const { return buffer_bytes_; }

 private:
  std::size_t mapped_bytes_;
  std::uint32_t buffer_bytes_;
  std::byte* memory_;
  std::vector<std::byte*> buffers_;
};

}  // namespace engram
