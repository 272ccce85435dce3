// Reads through io_uring with registered files and buffers.
#pragma once

#include <liburing.h>

#include <cstdint>

#include "file_handle.hpp"
#include "page_backend.hpp"

namespace engram {

class UringBackend final : public PageBackend {
 public:
  explicit UringBackend(std::uint32_t queue_depth) : queue_depth_(queue_depth) {}
  ~UringBackend() override;

  int start(const PageBackendSetup& setup) override;
  void queue(ReadOp& op) override;
  int exchange(std::span<Completion> out, unsigned wait_for, std::chrono::nanoseconds timeout) override;
  void wake() override;

 private:
  int set_up_ring();
  int register_all(const PageBackendSetup& setup);
  void arm_wake();

  std::uint32_t queue_depth_;
  io_uring ring_{};
  bool ring_ready_ = false;
  FileHandle wake_event_;
  std::uint64_t wake_count_ = 0;  // the eventfd read's target
};

}  // namespace engram
