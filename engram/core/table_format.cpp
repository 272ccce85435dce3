#include "table_format.hpp"

#include <cstring>

namespace engram {
namespace {

// Keeps every sum of two fields far from overflow.
constexpr std::uint64_t kMaxRows = std::uint64_t{1} << 48;

std::string wrong(const char* field, std::uint64_t expected, std::uint64_t seen) {
  return std::string(field) + " must be " + std::to_string(expected) + ", got " + std::to_string(seen);
}

std::optional<std::string> find_column_fault(const PackedHeader& header) {
  std::uint64_t next_row = 0;
  std::uint64_t owned_rows = 0;
  for (std::uint32_t idx = 0; idx < header.num_columns; ++idx) {
    const PackedColumn& column = header.columns[idx];
    const std::uint32_t dealt = header.rank + idx * header.tp;
    if (column.column_idx != dealt) return wrong("column_idx", dealt, column.column_idx);
    const bool sane = column.num_rows >= 1 && column.num_rows <= kMaxRows && column.first_row >= next_row &&
                      column.first_row <= kMaxRows && column.first_row + column.num_rows <= header.total_rows;
    if (!sane) return "column " + std::to_string(dealt) + " must lie after the one before it and in the table";
    next_row = column.first_row + column.num_rows;
    owned_rows += column.num_rows;
  }
  if (owned_rows != header.num_rows) return wrong("num_rows", owned_rows, header.num_rows);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_header_fault(const PackedHeader& header) {
  if (std::memcmp(header.magic, kMagic, sizeof(header.magic)) != 0) return "magic must be SPKENGRM";
  if (header.layout_version != kLayoutVersion)
    return wrong("layout_version", kLayoutVersion, header.layout_version);
  if (header.header_bytes != kHeaderBytes) return wrong("header_bytes", kHeaderBytes, header.header_bytes);
  if (header.page_bytes != kPageBytes) return wrong("page_bytes", kPageBytes, header.page_bytes);
  if (header.tp < 1 || header.tp > kMaxColumns || header.rank >= header.tp) return "rank must be below tp";
  if (header.num_columns < 1 || header.num_columns > kMaxColumns) return "num_columns must be 1 to 128";
  const std::uint64_t row_bytes = std::uint64_t{header.weight_bytes} + header.scale_bytes;
  if (header.weight_bytes < 1 || row_bytes > kPageBytes) return "a row must be 1 to 4096 bytes long";
  const std::uint64_t rows_per_page = kPageBytes / row_bytes;
  if (header.rows_per_page != rows_per_page) return wrong("rows_per_page", rows_per_page, header.rows_per_page);
  if (header.total_rows < 1 || header.total_rows > kMaxRows) return "total_rows must be 1 to 2^48";
  if (auto fault = find_column_fault(header)) return fault;
  const std::uint64_t pages = (header.num_rows + rows_per_page - 1) / rows_per_page;
  const std::uint64_t file_bytes = kHeaderBytes + pages * kPageBytes;
  if (header.file_bytes != file_bytes) return wrong("file_bytes", file_bytes, header.file_bytes);
  return std::nullopt;
}

}  // namespace engram
