// A scripted FaultSeam: which reads fail, how, and how often. For tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "fault_seam.hpp"

namespace engram {

class FaultScript final : public FaultSeam {
 public:
  struct Rule {
    std::int32_t result = 0;       // what the read returns instead; kHang for never
    std::uint64_t first_byte = 0;  // applies to reads that touch [first_byte, end_byte)
    std::uint64_t end_byte = ~std::uint64_t{0};
    std::uint32_t skip = 0;   // matching results to leave alone first
    std::uint32_t times = 1;  // then this many are replaced
  };

  void add(const Rule& rule) {
    const std::lock_guard lock(mutex_);
    rules_.push_back(rule);
  }

  std::uint64_t applied() const { return applied_.load(); }

  std::int32_t on_result(std::uint32_t, std::uint64_t offset, std::uint32_t bytes,
                         std::int32_t result) override {
    const std::lock_guard lock(mutex_);
    for (Rule& rule : rules_) {
      if (rule.times == 0 || offset + bytes <= rule.first_byte || offset >= rule.end_byte) continue;
      if (rule.skip > 0) {
        --rule.skip;
        continue;
      }
      --rule.times;
      applied_.fetch_add(1);
      return rule.result;
    }
    return result;
  }

 private:
  std::mutex mutex_;
  std::vector<Rule> rules_;
  std::atomic<std::uint64_t> applied_{0};
};

}  // namespace engram
