#include "buffer_pool.hpp"

#include <sys/mman.h>

#include <new>

namespace engram {

BufferPool::BufferPool(std::uint32_t num_buffers, std::uint32_t buffer_bytes)
    : mapped_bytes_(std::size_t{num_buffers} * buffer_bytes), buffer_bytes_(buffer_bytes) {
  // mmap rather than malloc: a read that the kernel still runs after a hung device made us give up keeps its
  // own reference to these pages, so unmapping is safe where freeing to a heap would not be.
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
  for (std::uint32_t idx = 0; idx < num_buffers; ++idx)
    buffers_.push_back(memory_ + std::size_t{idx} * buffer_bytes);
}

BufferPool::~BufferPool() { munmap(memory_, mapped_bytes_); }

}  // namespace engram
