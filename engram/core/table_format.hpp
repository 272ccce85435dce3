// The packed Engram file's header and row layout (engram/table_format.py is its twin).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace engram {

static_assert(std::endian::native == std::endian::little, "packed files are read in place, little-endian");

inline constexpr char kMagic[9] = "SPKENGRM";
inline constexpr std::uint32_t kLayoutVersion = 1;
inline constexpr std::uint32_t kHeaderBytes = 4096;
inline constexpr std::uint32_t kPageBytes = 4096;
inline constexpr std::uint32_t kMaxColumns = 128;

struct PackedColumn {
  std::uint32_t column_idx;
  std::uint32_t reserved;
  std::uint64_t first_row;  // global row id
  std::uint64_t num_rows;
};

struct PackedHeader {
  char magic[8];
  std::uint32_t layout_version;
  std::uint32_t header_bytes;
  std::uint32_t layer_id;
  std::uint32_t rank;
  std::uint32_t tp;
  std::uint32_t num_columns;
  std::uint32_t weight_bytes;
  std::uint32_t scale_bytes;
  std::uint32_t rows_per_page;
  std::uint32_t page_bytes;
  std::uint64_t num_rows;
  std::uint64_t total_rows;
  std::uint64_t file_bytes;
  char source_revision[64];
  std::uint8_t table_id[32];
  std::uint8_t reserved[88];
  PackedColumn columns[kMaxColumns];
  std::uint8_t reserved_after_columns[736];
  std::uint8_t sha256[32];
};

static_assert(sizeof(PackedColumn) == 24);
static_assert(sizeof(PackedHeader) == kHeaderBytes);
static_assert(offsetof(PackedHeader, num_rows) == 48);
static_assert(offsetof(PackedHeader, source_revision) == 72);
static_assert(offsetof(PackedHeader, table_id) == 136);
static_assert(offsetof(PackedHeader, columns) == 256);
static_assert(offsetof(PackedHeader, sha256) == 4064);
static_assert(std::is_trivially_copyable_v<PackedHeader>);

// What is wrong with a header, or nothing. Checks all that the reader relies on; the checksum and the identity
// hash are Python's part (engram/table_format.py reads the very same bytes at open).
std::optional<std::string> find_header_fault(const PackedHeader& header);

}  // namespace engram
