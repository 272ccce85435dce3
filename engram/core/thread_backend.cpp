#include "thread_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace engram {

ThreadBackend::~ThreadBackend() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int ThreadBackend::start(const PageBackendSetup& setup) {
  files_.assign(setup.files.begin(), setup.files.end());
  try {
    for (std::uint32_t idx = 0; idx < num_threads_; ++idx) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    return -error.code().value();
  }
  return 0;
}

void ThreadBackend::queue(ReadOp& op) { batch_.push_back(&op); }

int ThreadBackend::exchange(std::span<Completion> out, unsigned wait_for, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  waiting_.insert(waiting_.end(), batch_.begin(), batch_.end());
  if (batch_.size() == 1) {
    work_ready_.notify_one();
  } else if (!batch_.empty()) {
    work_ready_.notify_all();
  }
  batch_.clear();
  done_ready_.wait_for(lock, timeout, [&] { return woken_ || done_.size() >= wait_for; });
  woken_ = false;
  const std::size_t count = std::min(out.size(), done_.size());
  std::copy_n(done_.begin(), count, out.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
  return static_cast<int>(count);
}

void ThreadBackend::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  done_ready_.notify_one();
}

void ThreadBackend::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_ready_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    ReadOp* op = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    const ssize_t got = ::pread(files_[op->file], op->buffer + op->done_bytes, op->bytes - op->done_bytes,
                                static_cast<off_t>(op->offset + op->done_bytes));
    const auto result = static_cast<std::int32_t>(got >= 0 ? got : -errno);
    lock.lock();
    done_.push_back({op, result});
    done_ready_.notify_one();
  }
}

}  // namespace engram
