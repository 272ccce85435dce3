#include "hash.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace engram {
namespace {

__extension__ using uint128 = unsigned __int128;

void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

// Class of a token, or -1 outside the vocabulary. An image is no token: it reads as pad_class.
std::int32_t classify(const HashConfig& config, std::int64_t token, bool* image) {
  *image = config.image_token_id >= 0 && (token == config.image_token_id || token >= config.image_base_id);
  if (*image) return config.pad_class;
  if (token < 0 || token >= static_cast<std::int64_t>(config.class_ids.size())) return -1;
  return config.class_ids[static_cast<std::size_t>(token)];
}

// The classes of a token and its predecessors, newest first; pad_class where there is no token.
class Window {
 public:
  explicit Window(const HashConfig& config) : config_(config) { clear(); }

  bool push(std::int64_t token) {
    bool image = false;
    const std::int32_t next = classify(config_, token, &image);
    if (next < 0) return false;
    for (int s = config_.window_tokens - 1; s > 0; --s) classes_[s] = classes_[s - 1];
    classes_[0] = next;
    // An image hides itself and everything before it from all later tokens.
    if (image) clear();
    return true;
  }

  const std::int32_t* classes() const { return classes_; }

 private:
  void clear() { std::fill(classes_, classes_ + kMaxWindowTokens, config_.pad_class); }

  const HashConfig& config_;
  std::int32_t classes_[kMaxWindowTokens];
};

}  // namespace

RowHasher::RowHasher(HashConfig config) : config_(std::move(config)) {
  const HashConfig& c = config_;
  require(c.window_tokens >= 2 && c.window_tokens <= kMaxWindowTokens, "window_tokens must be 2 to 8");
  require(c.num_layers >= 1, "num_layers must be at least 1");
  const auto layers = static_cast<std::size_t>(c.num_layers);
  num_columns_ = static_cast<int>(c.orders.size());
  require(c.multipliers.size() == layers * c.window_tokens, "multipliers must be [layers][window_tokens]");
  require(c.primes.size() == layers * c.orders.size(), "primes must be [layers][columns]");
  require(c.offsets.size() == c.primes.size(), "offsets must be [layers][columns]");
  require(std::is_sorted(c.orders.begin(), c.orders.end()), "orders must ascend");
  require(!c.class_ids.empty(), "class_ids must not be empty");
  require(*std::min_element(c.class_ids.begin(), c.class_ids.end()) >= 0, "class_ids must not be negative");

  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::int64_t top_class =
      std::max({*std::max_element(c.class_ids.begin(), c.class_ids.end()), c.pad_class, std::int32_t{1}});
  require(c.pad_class >= 0, "pad_class must not be negative");
  for (std::int64_t multiplier : c.multipliers) {
    require(multiplier >= 0 && multiplier <= kMax / top_class, "a multiplier could overflow int64");
  }

  order_ends_.assign(c.window_tokens, 0);
  for (std::int32_t order : c.orders) {
    require(order >= 1 && order < c.window_tokens, "orders must be 1 to window_tokens - 1");
    for (int i = order; i < c.window_tokens; ++i) ++order_ends_[i];
  }

  buckets_.reserve(c.primes.size());
  for (std::size_t i = 0; i < c.primes.size(); ++i) {
    const std::int64_t prime = c.primes[i];
    // 2^62 keeps prime + offset inside int64; real columns have 2^24 rows.
    require(prime >= 2 && prime < (std::int64_t{1} << 62), "primes must be 2 or more");
    require(c.offsets[i] >= 0 && c.offsets[i] < (std::int64_t{1} << 62), "offsets must not be negative");
    const auto bits = static_cast<std::uint32_t>(std::bit_width(static_cast<std::uint64_t>(prime - 1)));
    // ceil(2^(63 + bits) / prime) fits 64 bits because prime > 2^(bits - 1).
    const uint128 magic = ((uint128{1} << (63 + bits)) + prime - 1) / prime;
    buckets_.push_back({static_cast<std::uint64_t>(magic), prime, c.offsets[i], bits - 1});
  }
}

void RowHasher::hash_classes(const std::int32_t* classes, std::int64_t* out) const {
  const int window = config_.window_tokens;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const std::int64_t* multipliers = config_.multipliers.data() + layer * window;
    const Bucket* bucket = buckets_.data() + layer * num_columns_;
    std::uint64_t rolling = static_cast<std::uint64_t>(classes[0] * multipliers[0]);
    int column = 0;
    for (int order = 1; order < window; ++order) {
      rolling ^= static_cast<std::uint64_t>(classes[order] * multipliers[order]);
      for (const int end = order_ends_[order]; column < end; ++column, ++bucket) {
        const auto high = static_cast<std::uint64_t>((uint128{rolling} * bucket->magic) >> 64);
        const auto quotient = static_cast<std::int64_t>(high >> bucket->shift);
        *out++ = static_cast<std::int64_t>(rolling) - quotient * bucket->prime + bucket->offset;
      }
    }
  }
}

std::int64_t RowHasher::hash_runs(const Runs& runs, std::int64_t* out) const {
  const std::size_t lookback = static_cast<std::size_t>(config_.window_tokens) - 1;
  const std::size_t stride = static_cast<std::size_t>(config_.num_layers) * num_columns_;
  std::size_t token_idx = 0;
  for (std::size_t run = 0; run < runs.lengths.size(); ++run) {
    if (runs.lengths[run] == 0) continue;
    Window window(config_);
    const auto known = static_cast<std::size_t>(
        std::min<std::int64_t>(runs.start_positions[run], static_cast<std::int64_t>(lookback)));
    const auto history = runs.history.subspan(run * lookback, lookback);
    for (const std::int64_t token : history.last(known)) {
      if (!window.push(token)) return static_cast<std::int64_t>(token_idx);
    }
    const std::size_t end = token_idx + static_cast<std::size_t>(runs.lengths[run]);
    for (; token_idx < end; ++token_idx) {
      if (!window.push(runs.tokens[token_idx])) return static_cast<std::int64_t>(token_idx);
      hash_classes(window.classes(), out + token_idx * stride);
    }
  }
  const Window empty(config_);
  for (; token_idx < runs.tokens.size(); ++token_idx) hash_classes(empty.classes(), out + token_idx * stride);
  return -1;
}

std::int64_t RowHasher::hash_windows(std::span<const std::int64_t> windows,
                                     std::span<const std::uint8_t> blocked, std::int64_t* out) const {
  const auto window = static_cast<std::size_t>(config_.window_tokens);
  const std::size_t stride = static_cast<std::size_t>(config_.num_layers) * num_columns_;
  std::int32_t classes[kMaxWindowTokens];
  for (std::size_t row = 0; row * window < windows.size(); ++row) {
    bool cut = false;
    for (std::size_t s = 0; s < window; ++s) {
      const bool block = blocked[row * window + s] != 0;
      bool image = false;
      std::int32_t next = config_.pad_class;
      if (!block && !cut) {
        next = classify(config_, windows[row * window + s], &image);
        if (next < 0) return static_cast<std::int64_t>(row);
      }
      // Only a model with images lets one blocked position block all older ones.
      if (config_.image_token_id >= 0) cut = cut || block || image;
      classes[s] = next;
    }
    hash_classes(classes, out + row * stride);
  }
  return -1;
}

}  // namespace engram
