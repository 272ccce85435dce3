// Row ids of random tables against the plain remainder, from several threads at once over one hasher.
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "hash.hpp"

using namespace engram;

namespace {

using Random = std::mt19937_64;

HashConfig random_config(Random& random) {
  HashConfig config;
  const int vocabulary = 4 + static_cast<int>(random() % 50);
  for (int i = 0; i < vocabulary; ++i) config.class_ids.push_back(static_cast<std::int32_t>(random() % vocabulary));
  config.window_tokens = 2 + static_cast<int>(random() % 7);
  config.num_layers = 1 + static_cast<int>(random() % 3);
  const int heads = 1 + static_cast<int>(random() % 4);
  for (int order = 1; order < config.window_tokens; ++order) {
    for (int head = 0; head < heads; ++head) config.orders.push_back(order);
  }
  const std::uint64_t limit = 0x7fffffffffffffffULL / static_cast<std::uint64_t>(vocabulary);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int s = 0; s < config.window_tokens; ++s) config.multipliers.push_back(static_cast<std::int64_t>(random() % limit));
    for (std::size_t column = 0; column < config.orders.size(); ++column) {
      // Any divisor from 2 up must reduce exactly, powers of two and their neighbours too.
      const std::uint64_t size = random() % 3 == 0 ? (1ULL << (1 + random() % 60)) + random() % 3
                                                   : 2 + random() % (1ULL << (1 + random() % 60));
      config.primes.push_back(static_cast<std::int64_t>(size));
      config.offsets.push_back(static_cast<std::int64_t>(random() % (1ULL << 60)));
    }
  }
  config.pad_class = config.class_ids[0];
  config.image_token_id = random() % 2 ? 3 : -1;
  config.image_base_id = 1000;
  return config;
}

bool is_image(const HashConfig& config, std::int64_t token) {
  return config.image_token_id >= 0 && (token == config.image_token_id || token >= config.image_base_id);
}

// Rows of the token at `position` of a whole sequence.
void check_rows(const HashConfig& config, const std::vector<std::int64_t>& sequence, std::size_t position,
                const std::int64_t* rows) {
  for (int layer = 0; layer < config.num_layers; ++layer) {
    std::uint64_t mixed = 0;
    bool blocked = false;
    std::size_t column = 0;
    for (int s = 0; s < config.window_tokens; ++s) {
      blocked = blocked || static_cast<std::size_t>(s) > position || is_image(config, sequence[position - s]);
      const std::int64_t token_class = blocked ? config.pad_class : config.class_ids[sequence[position - s]];
      mixed ^= static_cast<std::uint64_t>(token_class * config.multipliers[layer * config.window_tokens + s]);
      for (; column < config.orders.size() && config.orders[column] == s; ++column) {
        const std::size_t at = layer * config.orders.size() + column;
        const auto bucket = static_cast<std::int64_t>(mixed % static_cast<std::uint64_t>(config.primes[at]));
        CHECK(*rows++ == bucket + config.offsets[at]);
      }
    }
  }
}

void check_sequence(const HashConfig& config, const RowHasher& hasher, Random& random) {
  std::vector<std::int64_t> sequence(1 + random() % 30);
  for (auto& token : sequence) {
    token = static_cast<std::int64_t>(random() % config.class_ids.size());
    if (config.image_token_id >= 0 && random() % 6 == 0) token = static_cast<std::int64_t>(1000 + random() % 9);
  }
  const std::size_t start = random() % sequence.size();
  const std::size_t lookback = static_cast<std::size_t>(config.window_tokens) - 1;
  std::vector<std::int64_t> history(lookback, 1LL << 50);  // what lies before the sequence must not be looked at
  for (std::size_t i = 0; i < lookback && i < start; ++i) history[lookback - 1 - i] = sequence[start - 1 - i];
  const std::vector<std::int64_t> tokens(sequence.begin() + static_cast<std::ptrdiff_t>(start), sequence.end());
  const std::vector<std::int64_t> lengths{static_cast<std::int64_t>(tokens.size())};
  const std::vector<std::int64_t> starts{static_cast<std::int64_t>(start)};
  const std::size_t stride = config.num_layers * config.orders.size();
  std::vector<std::int64_t> out(tokens.size() * stride);
  CHECK(hasher.hash_runs({tokens, lengths, starts, history}, out.data()) == -1);
  for (std::size_t i = 0; i < tokens.size(); ++i) check_rows(config, sequence, start + i, out.data() + i * stride);

  std::vector<std::int64_t> bad = tokens;
  bad.back() = -1;
  CHECK(hasher.hash_runs({bad, lengths, starts, history}, out.data()) ==
        static_cast<std::int64_t>(bad.size()) - 1);
}

template <typename Change>
void check_refused(HashConfig config, Change change) {
  change(config);
  bool refused = false;
  try {
    const RowHasher hasher(config);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace

int main() {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const HashConfig config = random_config(random);
    const RowHasher hasher(config);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&config, &hasher, seed = random()] {
        Random own(seed);
        for (int i = 0; i < 5; ++i) check_sequence(config, hasher, own);
      });
    }
    for (auto& thread : threads) thread.join();
  }
  const HashConfig config = random_config(random);
  check_refused(config, [](HashConfig& c) { c.multipliers.back() = 0x7fffffffffffffffLL; c.class_ids[0] = 3; });
  check_refused(config, [](HashConfig& c) { c.multipliers.pop_back(); });
  check_refused(config, [](HashConfig& c) { c.primes.back() = 1; });
  check_refused(config, [](HashConfig& c) { c.offsets.back() = -1; });
  check_refused(config, [](HashConfig& c) { c.orders.front() = c.window_tokens; });
  check_refused(config, [](HashConfig& c) { c.class_ids.clear(); });
  check_refused(config, [](HashConfig& c) { c.window_tokens = kMaxWindowTokens + 1; });
  return 0;
}
