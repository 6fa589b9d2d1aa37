// SPDX-License-Identifier: Apache-2.0
// Bytes <-> messages, as pure functions: no I/O, no allocation, no trust. Growth follows the kernel's
// copy_struct_from_user rules: a shorter struct than ours reads as zeros, a longer one must have a zero tail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <expected>
#include <optional>
#include <span>
#include <string_view>

#include "base/status.hpp"
#include "proto/shmb_wire.h"
#include "proto/wire_fields.hpp"

namespace shmb::wire {

using Bytes = std::span<const std::byte>;

struct PacketView {
  shmbw_header header{};
  Bytes fixed;  // header.fixed bytes
  Bytes rest;   // texts, batch elements
};

// A packet whose frame is broken drops the peer; the value names what is wrong, for the log.
enum class Malformed { empty, short_header, size, fixed, fd_count, op_bits };
const char* malformed_text(Malformed);
// `direction`: requests must have op bits 14 and 15 clear; replies bit 15; events bit 14 and tag 0.
enum class Direction { request, from_broker };
std::expected<PacketView, Malformed> open_packet(Bytes packet, std::size_t fds_received, Direction direction);

// Rules 1 and 2 of PROTOCOL.md: `from` is the struct as the sender knows it. A tail or a reserved byte that is not
// zero means something that this reader does not know.
template <class T>
std::expected<T, Status> read_struct(Bytes from) {
  T out{};
  std::size_t common = from.size() < sizeof(T) ? from.size() : sizeof(T);
  if (common != 0) std::memcpy(&out, from.data(), common);
  for (std::byte tail : from.subspan(common))
    if (tail != std::byte{0}) return std::unexpected(Status::too_new);
  if (!reserved_zero(out)) return std::unexpected(Status::too_new);
  return out;
}

// Cuts texts off the variable part, in order; all must be used up exactly.
class TextReader {
 public:
  explicit TextReader(Bytes rest) : rest_(rest) {}
  std::optional<std::string_view> take(std::size_t length) {
    if (length > rest_.size()) return std::nullopt;
    std::string_view text(reinterpret_cast<const char*>(rest_.data()), length);
    rest_ = rest_.subspan(length);
    return text;
  }
  bool done() const { return rest_.empty(); }

 private:
  Bytes rest_;
};

// A batch: the fixed part is a shmbw_batch, then the elements, then their texts.
class BatchView {
 public:
  // invalid: count 0 or over the maximum, element size 0, elements beyond the end.
  static std::expected<BatchView, Status> open(const PacketView& packet);
  std::size_t count() const { return count_; }
  template <class T>
  std::expected<T, Status> element(std::size_t index) const {
    return read_struct<T>(elements_.subspan(index * element_size_, element_size_));
  }
  Bytes bytes_of(std::size_t index) const { return elements_.subspan(index * element_size_, element_size_); }
  TextReader texts() const { return TextReader(texts_); }

 private:
  std::size_t count_ = 0, element_size_ = 0;
  Bytes elements_, texts_;
};

// The records of a LIST reply: call `next`, then `text` for each text of that record, until `done`.
class RecordReader {
 public:
  RecordReader(Bytes rest, std::size_t element_size) : rest_(rest), element_size_(element_size) {}
  template <class T>
  std::expected<T, Status> next() {
    auto record = rest_.take(element_size_);
    if (!record || element_size_ == 0) return std::unexpected(Status::invalid);
    return read_struct<T>(Bytes(reinterpret_cast<const std::byte*>(record->data()), record->size()));
  }
  std::optional<std::string_view> text(std::size_t length) { return rest_.take(length); }
  bool done() const { return rest_.done(); }

 private:
  TextReader rest_;
  std::size_t element_size_;
};

// Builds one packet in a caller's buffer. Nothing is written past its end: `finish` then gives an empty span.
class Writer {
 public:
  explicit Writer(std::span<std::byte> buffer) : buffer_(buffer) {}
  // Opens a packet; the fixed part is `fixed`.
  template <class T>
  void begin(std::uint16_t op, std::uint64_t tag, Status status, const T& fixed, std::uint16_t flags = 0) {
    start(op, tag, status, sizeof(T), flags);
    put(&fixed, sizeof(T));
  }
  // An empty fixed part (ops whose reply has no body).
  void begin_empty(std::uint16_t op, std::uint64_t tag, Status status, std::uint16_t flags = 0) {
    start(op, tag, status, 0, flags);
  }
  // Opens a batch whose elements are `count` Ts; set them with `element`, texts follow with `text`.
  template <class T>
  void begin_batch(std::uint16_t op, std::uint64_t tag, std::size_t count, std::uint16_t flags = 0) {
    shmbw_batch batch{static_cast<std::uint16_t>(count), static_cast<std::uint16_t>(sizeof(T)), 0};
    begin(op, tag, Status::ok, batch, flags);
    if (count == 0 || count > SHMBW_MAX_BATCH) overflow_ = true;
    elements_ = at_;
    element_size_ = sizeof(T);
    if (!overflow_) skip(count * sizeof(T));
    element_count_ = overflow_ ? 0 : count;
  }
  // So many bytes of the packet, behind what was begun here, are in the buffer already.
  void go_on_at(std::size_t size) {
    if (size < at_ || size > buffer_.size()) overflow_ = true;
    else at_ = size;
  }
  // T must be the type that begin_batch was given.
  template <class T>
  void element(std::size_t index, const T& value) {
    if (index >= element_count_ || sizeof(T) != element_size_) {
      overflow_ = true;
      return;
    }
    std::memcpy(buffer_.data() + elements_ + index * element_size_, &value, sizeof(T));
  }
  void text(std::string_view text) { put(text.data(), text.size()); }
  template <class T>
  void append(const T& value) {
    put(&value, sizeof(T));
  }  // a record of LIST; its texts follow at once
  std::size_t room() const { return overflow_ ? 0 : buffer_.size() - at_; }
  // Fills in size and n_fds. Empty when the packet did not fit.
  Bytes finish(std::size_t n_fds);

 private:
  void start(std::uint16_t op, std::uint64_t tag, Status status, std::size_t fixed, std::uint16_t flags);
  void put(const void* data, std::size_t size);
  void skip(std::size_t size);

  std::span<std::byte> buffer_;
  std::size_t at_ = 0, elements_ = 0, element_size_ = 0, element_count_ = 0;
  bool overflow_ = false;
};

}  // namespace shmb::wire
