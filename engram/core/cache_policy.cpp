#include "cache_policy.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "set_cache.hpp"

namespace engram {
namespace {

class StorePolicy final : public CachePolicy {
 public:
  StorePolicy(RowShape shape, std::uint64_t bytes) : CachePolicy(shape), cache_(shape, bytes) {}

 private:
  std::uint32_t read_group(const RowKey* keys, std::size_t count, RowPlanes out) override {
    return cache_.read_group(keys, count, out, 0);
  }
  void keep(RowKey key, const std::byte* row, std::uint32_t asked) override { cache_.admit(key, row, asked); }

  RowCache cache_;
};

class SetPolicy final : public CachePolicy {
 public:
  SetPolicy(RowShape shape, std::uint64_t bytes) : CachePolicy(shape), cache_(shape, bytes) {}

 private:
  std::uint32_t read_group(const RowKey* keys, std::size_t count, RowPlanes out) override {
    std::uint32_t missed = 0;
    for (std::size_t idx = 0; idx < count; ++idx)
      missed |= std::uint32_t{!cache_.read(keys[idx], out, idx)} << idx;
    return missed;
  }
  void keep(RowKey key, const std::byte* row, std::uint32_t) override { cache_.keep(key, row); }

  SetCache cache_;
};

// Plain LRU: a hash table with chains and a doubly linked list, no locks.
class LruPolicy final : public CachePolicy {
 public:
  static constexpr std::uint32_t kOverheadBytes = 20;  // key, chain, list links, bucket

  LruPolicy(RowShape shape, std::uint64_t bytes)
      : CachePolicy(shape),
        num_slots_(static_cast<std::uint32_t>(bytes / (shape.row_bytes() + kOverheadBytes))),
        buckets_(num_slots_, kNone),
        slots_(num_slots_ + 1),
        rows_(std::size_t{num_slots_} * shape.row_bytes()) {
    slots_[num_slots_] = {0, kNone, num_slots_, num_slots_};
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Slot {
    RowKey key;
    std::uint32_t chain;
    std::uint32_t older;
    std::uint32_t newer;
  };

  std::uint32_t& bucket_of(RowKey key) { return buckets_[(hash_key(key) & 0xFFFFFFFF) * num_slots_ >> 32]; }

  void unlink(std::uint32_t slot) {
    slots_[slots_[slot].older].newer = slots_[slot].newer;
    slots_[slots_[slot].newer].older = slots_[slot].older;
  }

  // The slot past the last is the list's anchor: its `older` is the newest row, its `newer` the oldest.
  void link_newest(std::uint32_t slot) {
    Slot& anchor = slots_[num_slots_];
    slots_[slot].older = anchor.older;
    slots_[slot].newer = num_slots_;
    slots_[anchor.older].newer = slot;
    anchor.older = slot;
  }

  std::uint32_t read_group(const RowKey* keys, std::size_t count, RowPlanes out) override {
    std::uint32_t missed = 0;
    for (std::size_t idx = 0; idx < count; ++idx) {
      std::uint32_t slot = num_slots_ == 0 ? kNone : bucket_of(keys[idx]);
      while (slot != kNone && slots_[slot].key != keys[idx]) slot = slots_[slot].chain;
      missed |= std::uint32_t{slot == kNone} << idx;
      if (slot == kNone) continue;
      copy_row(shape_, &rows_[std::size_t{slot} * shape_.row_bytes()], out, idx);
      unlink(slot);
      link_newest(slot);
    }
    return missed;
  }

  void keep(RowKey key, const std::byte* row, std::uint32_t) override {
    if (num_slots_ == 0) return;
    std::uint32_t slot = num_used_;
    if (num_used_ < num_slots_) {
      ++num_used_;
    } else {
      slot = slots_[num_slots_].newer;
      unlink(slot);
      std::uint32_t* link = &bucket_of(slots_[slot].key);
      while (*link != slot) link = &slots_[*link].chain;
      *link = slots_[slot].chain;
    }
    std::uint32_t& bucket = bucket_of(key);
    slots_[slot].key = key;
    slots_[slot].chain = bucket;
    bucket = slot;
    link_newest(slot);
    std::memcpy(&rows_[std::size_t{slot} * shape_.row_bytes()], row, shape_.row_bytes());
  }

  std::uint32_t num_slots_;
  std::uint32_t num_used_ = 0;
  std::vector<std::uint32_t> buckets_;
  std::vector<Slot> slots_;
  std::vector<std::byte> rows_;
};

}  // namespace

std::unique_ptr<CachePolicy> CachePolicy::make(std::string_view name, RowShape shape, std::uint64_t bytes) {
  if (name == "s3fifo") return std::make_unique<StorePolicy>(shape, bytes);
  if (name == "lru") return std::make_unique<LruPolicy>(shape, bytes);
  if (name == "set16") return std::make_unique<SetPolicy>(shape, bytes);
  return nullptr;
}

CachePolicy::Count CachePolicy::step(std::span<const std::int64_t> ids) {
  weight_.resize(RowCache::kGroup * shape_.weight_bytes);
  scale_.resize(RowCache::kGroup * shape_.scale_bytes);
  missed_.clear();
  std::array<RowKey, RowCache::kGroup> keys;
  for (std::size_t first = 0; first < ids.size(); first += RowCache::kGroup) {
    const std::size_t count = std::min(RowCache::kGroup, ids.size() - first);
    for (std::size_t idx = 0; idx < count; ++idx) keys[idx] = static_cast<RowKey>(ids[first + idx]);
    std::uint32_t absent = read_group(keys.data(), count, {weight_.data(), scale_.data()});
    for (; absent != 0; absent &= absent - 1)
      missed_.push_back(keys[static_cast<std::size_t>(std::countr_zero(absent))]);
  }
  Count result{.hits = ids.size() - missed_.size()};
  std::ranges::sort(missed_);
  for (auto first = missed_.begin(); first != missed_.end(); ++result.missed_unique) {
    const auto next = std::find_if(first, missed_.end(), [&](RowKey key) { return key != *first; });
    keep(*first, row_.data(), static_cast<std::uint32_t>(next - first));
    first = next;
  }
  return result;
}

}  // namespace engram
