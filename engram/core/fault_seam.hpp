// The seam at the system call, where tests make reads fail. Production stores have none.
#pragma once

#include <cstdint>
#include <limits>

namespace engram {

class FaultSeam {
 public:
  // As a result: the read never completes until the store closes.
  static constexpr std::int32_t kHang = std::numeric_limits<std::int32_t>::min();

  virtual ~FaultSeam() = default;

  // May replace the result of a read (bytes, or -errno). Called on the owner thread only.
  virtual std::int32_t on_result(std::uint32_t file, std::uint64_t offset, std::uint32_t bytes,
                                 std::int32_t result) = 0;
};

}  // namespace engram
