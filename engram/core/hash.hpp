// Token ids -> row ids, bit-exact with the arithmetic the model was trained with. Knows nothing of Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace engram {

constexpr int kMaxWindowTokens = 8;

struct HashConfig {
  std::vector<std::int32_t> class_ids;    // [vocabulary]
  std::vector<std::int64_t> multipliers;  // [layers][window_tokens]
  std::vector<std::int32_t> orders;       // [columns], 1 = 2-gram; ascending
  std::vector<std::int64_t> primes;       // [layers][columns]
  std::vector<std::int64_t> offsets;      // [layers][columns], added to the bucket
  int num_layers = 0;
  int window_tokens = 0;
  std::int32_t pad_class = 0;        // class of a position without a token
  std::int64_t image_token_id = -1;  // -1: the model has no images
  std::int64_t image_base_id = 0;    // ids from here on stand for images; used with image_token_id only
};

// One batch of runs: run r holds lengths[r] consecutive tokens of one sequence, the first at
// start_positions[r], preceded by history[r][window_tokens - 1], oldest first.
struct Runs {
  std::span<const std::int64_t> tokens;
  std::span<const std::int64_t> lengths;
  std::span<const std::int64_t> start_positions;
  std::span<const std::int64_t> history;
};

class RowHasher {
 public:
  // Throws std::invalid_argument for tables that do not fit together or could overflow int64.
  explicit RowHasher(HashConfig config);

  int num_layers() const { return config_.num_layers; }
  int num_columns() const { return num_columns_; }
  int window_tokens() const { return config_.window_tokens; }

  // out: [tokens][layers][columns]. Tokens past the last run are graph padding and hash as empty windows.
  // Returns -1, or the index of the first token whose window holds an id outside the vocabulary.
  std::int64_t hash_runs(const Runs& runs, std::int64_t* out) const;

  // windows: [num_windows][window_tokens], the s-th predecessor in column s; blocked: same shape, 1 = no token.
  std::int64_t hash_windows(std::span<const std::int64_t> windows, std::span<const std::uint8_t> blocked,
                            std::int64_t* out) const;

 private:
  // value % prime by one multiplication: exact for values below 2^63 (Granlund and Montgomery, 1994).
  struct Bucket {
    std::uint64_t magic;
    std::int64_t prime;
    std::int64_t offset;
    std::uint32_t shift;
  };

  void hash_classes(const std::int32_t* classes, std::int64_t* out) const;

  HashConfig config_;
  int num_columns_ = 0;
  std::vector<int> order_ends_;  // [window_tokens]: columns of order <= i end here
  std::vector<Bucket> buckets_;  // [layers][columns]
};

}  // namespace engram
