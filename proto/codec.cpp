// SPDX-License-Identifier: Apache-2.0
// The frame of a packet, checked before anything in it is looked at. A frame that passes here cannot make any later
// reader step outside the bytes that arrived. The reader of the message checks the contents.
#include "proto/codec.hpp"

#include <algorithm>

#include "base/result.hpp"
#include "proto/shmb_status.h"

namespace shmb::wire {

// base may not include proto, so base/status.hpp repeats the list; here the two are held together.
#define X(name, value, text) static_assert(static_cast<int>(Status::name) == (value), #name);
SHMB_STATUS_TABLE(X)
#undef X
#define X(name, value, text) , value
static_assert(static_cast<int>(kLastStatus) == std::max({0 SHMB_STATUS_TABLE(X)}),
              "base/status.hpp has a status that the table does not have");
#undef X

const char* malformed_text(Malformed malformed) {
  switch (malformed) {
    case Malformed::empty:
      return "empty packet";
    case Malformed::short_header:
      return "packet shorter than the 24-byte header";
    case Malformed::size:
      return "header.size is not the number of bytes received";
    case Malformed::fixed:
      return "header.fixed reaches beyond the packet";
    case Malformed::fd_count:
      return "header.n_fds is not the number of descriptors received";
    case Malformed::op_bits:
      return "op bits 14 and 15 or the tag do not fit the direction";
  }
  return "malformed packet";
}

std::expected<PacketView, Malformed> open_packet(Bytes packet, std::size_t fds_received, Direction direction) {
  if (packet.empty()) return std::unexpected(Malformed::empty);
  PacketView view;
  if (packet.size() < sizeof view.header) return std::unexpected(Malformed::short_header);
  std::memcpy(&view.header, packet.data(), sizeof view.header);
  const shmbw_header& header = view.header;
  if (header.size != packet.size()) return std::unexpected(Malformed::size);
  if (header.fixed > packet.size() - sizeof header) return std::unexpected(Malformed::fixed);
  if (header.n_fds != fds_received) return std::unexpected(Malformed::fd_count);

  const int kind = header.op & (SHMBW_REPLY | SHMBW_EVENT);
  const bool fits =
      direction == Direction::request ? kind == 0 : kind == SHMBW_REPLY || (kind == SHMBW_EVENT && header.tag == 0);
  if (!fits) return std::unexpected(Malformed::op_bits);

  Bytes body = packet.subspan(sizeof header);
  view.fixed = body.first(header.fixed);
  view.rest = body.subspan(header.fixed);
  return view;
}

std::expected<BatchView, Status> BatchView::open(const PacketView& packet) {
  SHMB_TRY(batch, read_struct<shmbw_batch>(packet.fixed));
  if (batch.count == 0 || batch.count > SHMBW_MAX_BATCH || batch.element_size == 0)
    return std::unexpected(Status::invalid);
  // Both factors are 16 bits wide, the product is taken in size_t: it cannot wrap.
  const std::size_t bytes = std::size_t{batch.count} * batch.element_size;
  if (bytes > packet.rest.size()) return std::unexpected(Status::invalid);
  BatchView view;
  view.count_ = batch.count;
  view.element_size_ = batch.element_size;
  view.elements_ = packet.rest.first(bytes);
  view.texts_ = packet.rest.subspan(bytes);
  return view;
}

void Writer::start(std::uint16_t op, std::uint64_t tag, Status status, std::size_t fixed, std::uint16_t flags) {
  at_ = elements_ = element_size_ = element_count_ = 0;
  overflow_ = false;
  shmbw_header header{};
  header.op = op;
  header.flags = flags;
  header.tag = tag;
  header.status = static_cast<std::int32_t>(status);
  header.fixed = static_cast<std::uint16_t>(fixed);
  put(&header, sizeof header);
}

void Writer::put(const void* data, std::size_t size) {
  if (overflow_ || size > buffer_.size() - at_) {
    overflow_ = true;
    return;
  }
  if (size != 0) std::memcpy(buffer_.data() + at_, data, size);
  at_ += size;
}

void Writer::skip(std::size_t size) {
  if (overflow_ || size > buffer_.size() - at_) {
    overflow_ = true;
    return;
  }
  std::fill_n(buffer_.begin() + static_cast<std::ptrdiff_t>(at_), size, std::byte{0});
  at_ += size;
}

Bytes Writer::finish(std::size_t n_fds) {
  if (overflow_ || at_ < sizeof(shmbw_header) || at_ > SHMBW_MAX_MESSAGE || n_fds > SHMBW_MAX_BATCH) return {};
  const auto size = static_cast<std::uint32_t>(at_);
  const auto count = static_cast<std::uint16_t>(n_fds);
  std::memcpy(buffer_.data() + offsetof(shmbw_header, size), &size, sizeof size);
  std::memcpy(buffer_.data() + offsetof(shmbw_header, n_fds), &count, sizeof count);
  return Bytes(buffer_.data(), at_);
}

}  // namespace shmb::wire
