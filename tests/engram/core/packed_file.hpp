// A packed file in a temporary folder whose rows tell their own ids.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "check.hpp"
#include "row_shape.hpp"
#include "table_format.hpp"

class TempFolder {
 public:
  TempFolder() {
    const char* base = std::getenv("TMPDIR");
    std::string name = std::string(base != nullptr ? base : "/tmp") + "/engram-core-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline constexpr engram::RowShape kTestShape{24, 8};

// Fills a row of kTestShape: the table's number and the global row id, repeated.
inline void make_row(std::uint32_t table, std::int64_t id, std::byte* row) {
  for (std::uint32_t offset = 0; offset < kTestShape.row_bytes(); offset += 8) {
    const std::uint64_t word =
        static_cast<std::uint64_t>(id) * 16 + table + std::uint64_t{offset} * 0x0101000000000000ULL;
    std::memcpy(row + offset, &word, sizeof(word));
  }
}

inline engram::PackedHeader make_header(std::uint32_t rank, std::uint32_t tp,
                                        const std::vector<std::uint64_t>& sizes) {
  engram::PackedHeader header{};
  std::memcpy(header.magic, engram::kMagic, sizeof(header.magic));
  header.layout_version = engram::kLayoutVersion;
  header.header_bytes = engram::kHeaderBytes;
  header.page_bytes = engram::kPageBytes;
  header.layer_id = 1;
  header.rank = rank;
  header.tp = tp;
  header.weight_bytes = kTestShape.weight_bytes;
  header.scale_bytes = kTestShape.scale_bytes;
  header.rows_per_page = engram::kPageBytes / kTestShape.row_bytes();
  for (std::uint32_t column = 0; column < sizes.size(); ++column) {
    if (column % tp == rank) {
      header.columns[header.num_columns++] = {column, 0, header.total_rows, sizes[column]};
      header.num_rows += sizes[column];
    }
    header.total_rows += sizes[column];
  }
  const std::uint64_t pages = (header.num_rows + header.rows_per_page - 1) / header.rows_per_page;
  header.file_bytes = engram::kHeaderBytes + pages * engram::kPageBytes;
  return header;
}

inline std::vector<std::int64_t> owned_ids(const engram::PackedHeader& header) {
  std::vector<std::int64_t> ids;
  for (std::uint32_t idx = 0; idx < header.num_columns; ++idx)
    for (std::uint64_t row = 0; row < header.columns[idx].num_rows; ++row)
      ids.push_back(static_cast<std::int64_t>(header.columns[idx].first_row + row));
  return ids;
}

inline void write_packed_file(const std::string& path, std::uint32_t table,
                              const engram::PackedHeader& header) {
  std::vector<std::byte> bytes(header.file_bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::uint64_t local = 0;
  for (const std::int64_t id : owned_ids(header)) {
    const std::uint64_t page = local / header.rows_per_page;
    const std::uint64_t in_page = local % header.rows_per_page;
    make_row(
        table, id,
        bytes.data() + engram::kHeaderBytes + page * engram::kPageBytes + in_page * kTestShape.row_bytes());
    ++local;
  }
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  CHECK(file.good());
}

// The caller's memory for `count` rows, poisoned.
struct TestPlanes {
  explicit TestPlanes(std::size_t count)
      : weight(count * kTestShape.weight_bytes, std::byte{0xAA}),
        scale(count * kTestShape.scale_bytes, std::byte{0xAA}) {}

  engram::RowPlanes out() { return {weight.data(), scale.data()}; }

  bool holds(std::size_t idx, std::uint32_t table, std::int64_t id) const {
    std::byte row[kTestShape.weight_bytes + kTestShape.scale_bytes];
    make_row(table, id, row);
    return std::memcmp(&weight[idx * kTestShape.weight_bytes], row, kTestShape.weight_bytes) == 0 &&
           std::memcmp(&scale[idx * kTestShape.scale_bytes], row + kTestShape.weight_bytes,
                       kTestShape.scale_bytes) == 0;
  }

  std::vector<std::byte> weight;
  std::vector<std::byte> scale;
};
