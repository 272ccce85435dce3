// How pages reach memory: io_uring, threads, or another machine later. One owner thread drives a backend.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace engram {

using Clock = std::chrono::steady_clock;

// A read in progress. The scheduler owns it and its buffer; both stay put until it is reaped.
struct ReadOp {
  std::uint32_t slot;    // index of its registered buffer
  std::uint32_t file;    // index of its registered file
  std::uint64_t offset;  // of the whole read; page-aligned
  std::uint32_t bytes;
  std::uint32_t done_bytes;  // whole pages that have arrived
  std::byte* buffer;
};

struct Completion {
  ReadOp* op;
  std::int32_t result;  // bytes from offset + done_bytes on, or -errno
};

struct PageBackendSetup {
  std::span<const int> files;
  std::span<std::byte* const> buffers;  // one per slot, page-aligned
  std::uint32_t buffer_bytes;
};

class PageBackend {
 public:
  virtual ~PageBackend() = default;

  // Prepares all reads; called once, on the owner thread, before queue() and exchange(). 0 or -errno.
  virtual int start(const PageBackendSetup& setup) = 0;

  // Adds a read; at most one per slot is out. Neither blocks nor fails.
  virtual void queue(ReadOp& op) = 0;

  // Hands queued reads to the device, then waits for wait_for completions, wake() or the timeout.
  // Returns the number of completions written, or -errno when the backend is broken for good.
  virtual int exchange(std::span<Completion> out, unsigned wait_for, std::chrono::nanoseconds timeout) = 0;

  // Ends a running or the next exchange() early. Any thread.
  virtual void wake() = 0;
};

}  // namespace engram
