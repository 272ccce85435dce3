#include "uring_backend.hpp"

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace engram {

UringBackend::~UringBackend() {
  if (ring_ready_) io_uring_queue_exit(&ring_);
}

int UringBackend::start(const PageBackendSetup& setup) {
  // Made before the ring: wake() may come from any thread as soon as start() returns.
  wake_event_ = FileHandle(eventfd(0, EFD_CLOEXEC));
  if (wake_event_.fd() < 0) return -errno;
  if (const int error = set_up_ring()) return error;
  if (const int error = register_all(setup)) return error;
  arm_wake();
  return 0;
}

int UringBackend::set_up_ring() {
  // Newest first: completions run in our own thread and only when we wait (6.1), or at least without
  // interrupting us (5.19). Kernels that lack a flag answer EINVAL.
  constexpr unsigned kFlags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                 IORING_SETUP_COOP_TASKRUN, 0};
  int error = -EINVAL;
  for (const unsigned flags : kFlags) {
    io_uring_params params{};
    params.flags = flags;
    error = io_uring_queue_init_params(queue_depth_ + 2, &ring_, &params);
    if (error == -EINVAL) continue;
    if (error != 0) return error;
    ring_ready_ = true;
    // Waiting with a timeout in one call (5.11); without it liburing would spend a request on each wait.
    return (params.features & IORING_FEAT_EXT_ARG) != 0 ? 0 : -ENOSYS;
  }
  return error;
}

int UringBackend::register_all(const PageBackendSetup& setup) {
  const auto num_files = static_cast<unsigned>(setup.files.size());
  if (const int error = io_uring_register_files(&ring_, setup.files.data(), num_files)) return error;
  std::vector<iovec> vectors;
  for (std::byte* buffer : setup.buffers) vectors.push_back({buffer, setup.buffer_bytes});
  return io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size()));
}

void UringBackend::arm_wake() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  io_uring_prep_read(sqe, wake_event_.fd(), &wake_count_, sizeof(wake_count_), 0);
  io_uring_sqe_set_data(sqe, nullptr);
}

void UringBackend::queue(ReadOp& op) {
  // Never null: the ring holds queue_depth + 2 entries, and every exchange() submits all of them.
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  io_uring_prep_read_fixed(sqe, static_cast<int>(op.file), op.buffer + op.done_bytes, op.bytes - op.done_bytes,
                           op.offset + op.done_bytes, static_cast<int>(op.slot));
  io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data(sqe, &op);
}

int UringBackend::exchange(std::span<Completion> out, unsigned wait_for, std::chrono::nanoseconds timeout) {
  __kernel_timespec limit{};
  limit.tv_sec = timeout.count() / 1'000'000'000;
  limit.tv_nsec = timeout.count() % 1'000'000'000;
  io_uring_cqe* first = nullptr;
  const int result = io_uring_submit_and_wait_timeout(&ring_, &first, wait_for, &limit, nullptr);
  const bool passing =
      result >= 0 || result == -ETIME || result == -EINTR || result == -EAGAIN || result == -EBUSY;
  if (!passing) return result;
  unsigned head = 0;
  unsigned seen = 0;
  int written = 0;
  bool woken = false;
  io_uring_cqe* cqe = nullptr;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    if (static_cast<std::size_t>(written) == out.size()) break;
    ++seen;
    auto* op = static_cast<ReadOp*>(io_uring_cqe_get_data(cqe));
    if (op == nullptr) {
      woken = true;
    } else {
      out[static_cast<std::size_t>(written++)] = {op, cqe->res};
    }
  }
  io_uring_cq_advance(&ring_, seen);
  if (woken) arm_wake();
  return written;
}

void UringBackend::wake() {
  const std::uint64_t one = 1;
  // Only fails when the count would overflow, and then a wake-up is pending anyway.
  [[maybe_unused]] const auto written = ::write(wake_event_.fd(), &one, sizeof(one));
}

}  // namespace engram
