// Counts the rows that look-ahead windows hold or are about to read, against one budget. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace engram {

using WindowId = std::uint32_t;

class WindowLedger {
 public:
  static constexpr WindowId kWindows = 4096;

  // Takes a free window for num_rows rows. Only the planner opens windows.
  std::optional<WindowId> open(std::uint32_t num_rows) {
    for (WindowId tried = 0; tried < kWindows; ++tried) {
      next_ = (next_ + 1) % kWindows;
      Window& window = windows_[next_];
      if (window.in_use.load(std::memory_order_acquire)) continue;
      window.rows.store(num_rows, std::memory_order_relaxed);
      window.closed.store(false, std::memory_order_relaxed);
      window.in_use.store(true, std::memory_order_relaxed);
      total_rows_.fetch_add(num_rows, std::memory_order_relaxed);
      return next_;
    }
    return std::nullopt;
  }

  // Rows of the window that were consumed, dropped or never read: they no longer count.
  void settle(WindowId id, std::uint32_t num_rows) {
    windows_[id].rows.fetch_sub(num_rows, std::memory_order_acq_rel);
    total_rows_.fetch_sub(num_rows, std::memory_order_relaxed);
  }

  // From now on nothing may be staged for it.
  void close(WindowId id) { windows_[id].closed.store(true, std::memory_order_release); }
  bool closed(WindowId id) const { return windows_[id].closed.load(std::memory_order_acquire); }

  // The caller knows that no row of it is left and that no read for it is under way.
  void retire(WindowId id) { windows_[id].in_use.store(false, std::memory_order_release); }

  std::uint32_t rows(WindowId id) const { return windows_[id].rows.load(std::memory_order_acquire); }
  std::uint64_t total_rows() const { return total_rows_.load(std::memory_order_relaxed); }

 private:
  struct Window {
    std::atomic<std::uint32_t> rows{0};
    std::atomic<bool> closed{false};
    std::atomic<bool> in_use{false};
  };

  std::array<Window, kWindows> windows_;
  std::atomic<std::uint64_t> total_rows_{0};
  WindowId next_ = 0;
};

}  // namespace engram
