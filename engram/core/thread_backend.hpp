// Reads with a pool of threads and pread, for kernels or containers without io_uring.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "page_backend.hpp"

namespace engram {

class ThreadBackend final : public PageBackend {
 public:
  explicit ThreadBackend(std::uint32_t num_threads) : num_threads_(num_threads) {}
  // Waits for reads that threads are in the middle of.
  ~ThreadBackend() override;

  int start(const PageBackendSetup& setup) override;
  void queue(ReadOp& op) override;
  int exchange(std::span<Completion> out, unsigned wait_for, std::chrono::nanoseconds timeout) override;
  void wake() override;

 private:
  void work();

  std::uint32_t num_threads_;
  std::vector<int> files_;
  std::vector<ReadOp*> batch_;  // owner thread only, between queue() and exchange()

  std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable done_ready_;
  std::deque<ReadOp*> waiting_;
  std::vector<Completion> done_;
  bool woken_ = false;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace engram
