// One lock's part of the row cache: rows by key, S3-FIFO eviction, and rows staged by the look-ahead.
//
// S3-FIFO (Yang et al., SOSP 2023): new rows enter a small queue (a tenth of the room); only rows asked for
// again move to the main queue, so a prefill sweep washes through the small queue and leaves the rest alone.
// Keys evicted from the small queue are remembered (ghosts); a row that comes back enters the main queue.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "row_shape.hpp"
#include "window_ledger.hpp"

namespace engram {

using RowKey = std::uint32_t;  // table base + local row; below 2^32 - 1

inline std::uint64_t hash_key(RowKey key) {
  std::uint64_t hash = key * 0x9E3779B97F4A7C15ULL;
  hash ^= hash >> 32;
  hash *= 0xD6E8FEB86659FD93ULL;
  return hash ^ (hash >> 32);
}

class CacheShard {
 public:
  // Bytes that one slot costs besides its row: slot record, index entry at 3/4 load, ghost key.
  static constexpr double kOverheadBytes = 12 + 8 / 0.75 + 4 * 16.0 / 15;

  // `rows` has num_slots * stride_bytes bytes and belongs to the caller.
  void init(RowShape shape, std::size_t stride_bytes, std::uint32_t num_slots, std::byte* rows,
            WindowLedger* ledger);

  // Copies the row to out[out_idx] if it is here. A staged row becomes an ordinary cached row.
  bool read(RowKey key, std::uint64_t hash, RowPlanes out, std::size_t out_idx);
  bool contains(RowKey key, std::uint64_t hash);

  // A row that a request had to read from the file, and how often the request asked for it.
  void admit(RowKey key, std::uint64_t hash, const std::byte* row, std::uint32_t asked);

  // A row read ahead. False when it is here already, its window is closed, or all slots hold staged rows.
  bool stage(RowKey key, std::uint64_t hash, const std::byte* row, WindowId window);

  // Drops the staged rows of closed windows.
  void drop_closed();

  // Hints for read(): the index line, then the row itself. Lock-free; a stale answer only costs time.
  void prefetch_index(std::uint64_t hash) const { __builtin_prefetch(&index_[home(hash)]); }
  void prefetch_row(RowKey key, std::uint64_t hash) const;

  std::uint32_t num_rows();

 private:
  enum State : std::uint32_t { kFree = 0, kSmall = 1, kMain = 2, kStaged = 3 };

  struct Slot {
    RowKey key;
    std::uint32_t next;  // queue link, or position in staged_
    std::uint32_t freq : 2;
    std::uint32_t state : 2;
    std::uint32_t window : 28;
  };

  struct Queue {
    std::uint32_t head = 0;
    std::uint32_t tail = 0;
    std::uint32_t count = 0;
  };

  std::uint32_t home(std::uint64_t hash) const {
    return static_cast<std::uint32_t>(
        (static_cast<std::uint64_t>(static_cast<std::uint32_t>(hash)) * index_size_) >> 32);
  }
  std::byte* row_of(std::uint32_t slot) const { return rows_ + slot * stride_bytes_; }
  std::optional<std::uint32_t> find(RowKey key, std::uint64_t hash) const;
  void index_insert(RowKey key, std::uint64_t hash, std::uint32_t slot);
  void index_erase(RowKey key);
  void store_entry(std::uint32_t position, std::uint64_t entry);
  void push(Queue& queue, std::uint32_t slot, State state);
  std::uint32_t pop(Queue& queue);
  std::optional<std::uint32_t> take_slot();
  std::optional<std::uint32_t> evict();
  void fill(std::uint32_t slot, RowKey key, std::uint64_t hash, const std::byte* row);
  void consume(std::uint32_t slot, std::uint64_t hash);
  void unstage(std::uint32_t slot);
  void enqueue_new(std::uint32_t slot, std::uint64_t hash);
  std::uint32_t* ghost_bucket(std::uint64_t hash);
  void ghost_add(RowKey key);
  bool ghost_take(RowKey key, std::uint64_t hash);

  std::mutex mutex_;
  RowShape shape_;
  std::size_t stride_bytes_ = 0;
  std::byte* rows_ = nullptr;
  WindowLedger* ledger_ = nullptr;
  std::uint32_t index_size_ = 0;
  std::vector<std::uint64_t> index_;  // (slot + 1) << 32 | key; 0 = empty; linear probing
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> staged_;
  std::vector<std::uint32_t> ghosts_;  // buckets of 15 keys + 1 and a cursor
  std::uint32_t num_ghost_buckets_ = 0;
  std::uint32_t free_head_ = 0;  // linked through Slot::next; num_slots = none
  Queue small_;
  Queue main_;
};

}  // namespace engram
