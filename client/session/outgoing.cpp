// SPDX-License-Identifier: Apache-2.0
// See outgoing.hpp.
#include "client/session/outgoing.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "client/session/packet_fields.hpp"
#include "proto/wire_traits.hpp"

namespace shmb::client {
namespace {

constexpr std::size_t kFirst = 8;          // places; then twice as many
constexpr std::size_t kMostMemory = 1024;  // that a packet which is gone leaves to a later one

void set_resumed(std::span<std::byte> packet, bool resumed) {
  std::uint16_t flags = 0;
  std::byte* const at = packet.data() + offsetof(shmbw_header, flags);
  std::memcpy(&flags, at, sizeof flags);
  flags = static_cast<std::uint16_t>(resumed ? flags | SHMBW_HEADER_RESUMED : flags & ~SHMBW_HEADER_RESUMED);
  std::memcpy(at, &flags, sizeof flags);
}

bool is_answered(std::span<const std::byte> packet) {
  shmbw_header header;
  std::memcpy(&header, packet.data(), sizeof header);
  return (header.flags & SHMBW_HEADER_NO_REPLY) == 0 && wire::traits_of(header.op).no_reply != wire::NoReply::always;
}

}  // namespace

void Outgoing::keep(bool on) noexcept {
  keeps_ = on;
  while (!keeps_ && sent_ != 0) pop();
}

Outgoing::Packet& Outgoing::fill(std::span<const std::byte> packet) {
  if (count_ == ring_.size()) {
    std::vector<Packet> larger(std::max(kFirst, 2 * count_));
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move(at(i));
    ring_ = std::move(larger);
    front_ = 0;
  }
  Packet& place = at(count_);
  place.bytes.assign(packet.begin(), packet.end());
  place.fds.clear();
  place.answered = is_answered(packet);
  place.number = next_number();
  return place;
}

void Outgoing::push() noexcept {
  if (!at(count_).answered) ++one_ways_;
  ++count_;
  ++last_;
  resumed_ = false;
}

void Outgoing::pop() noexcept {
  Packet& gone = at(0);
  if (!gone.answered) --one_ways_;
  gone.fds.clear();
  if (gone.bytes.capacity() > kMostMemory) gone.bytes = {};
  ++front_;
  --count_;
  if (sent_ != 0) --sent_;
}

void Outgoing::stamp(std::span<std::byte> packet) const {
  set_tag(packet, next_number());
  set_resumed(packet, resumed_);
}

void Outgoing::add(std::span<const std::byte> packet) {
  stamp(fill(packet).bytes);
  push();
}

void Outgoing::first_was_sent() noexcept {
  most_sent_ = std::max(most_sent_, first().number);
  if (keeps_) ++sent_;
  else pop();  // none is kept before it
}

void Outgoing::was_sent(std::span<const std::byte> packet, std::span<const int> descriptors) noexcept {
  most_sent_ = next_number();
  if (keeps_ && keep_copy(packet, descriptors)) {
    push();
    ++sent_;
    return;
  }
  if (keeps_) hole_ = most_sent_;
  ++last_;
  resumed_ = false;
}

bool Outgoing::keep_copy(std::span<const std::byte> packet, std::span<const int> descriptors) noexcept {
  try {
    Packet& place = fill(packet);
    for (const int number : descriptors) {
      Fd borrowed = Fd::adopt(number);
      auto copy = borrowed.dup();
      (void)borrowed.release();
      if (!copy) break;
      place.fds.push_back(std::move(*copy));
    }
    if (place.fds.size() == descriptors.size()) return true;
    place.fds.clear();
  } catch (const std::bad_alloc&) {
    if (count_ < ring_.size()) at(count_).fds.clear();
  }
  return false;
}

void Outgoing::answered(std::uint64_t number) noexcept {
  number = std::min(number, most_sent_);
  answered_ = std::max(answered_, number);
  while (count_ != 0 && at(0).number <= number) pop();
}

std::string Outgoing::resume(std::uint64_t served) {
  if (served > most_sent_)
    return "it says that it has served packet " + std::to_string(served) + " of this session, and " +
           std::to_string(most_sent_) + " were sent";
  if (served < answered_)
    return "it says that it has served " + std::to_string(served) + " packets of this session, and it has answered " +
           std::to_string(answered_);
  if (hole_ > answered_)
    return "packet " + std::to_string(hole_) +
           " of this session could not be kept for it: memory or descriptors were short";
  sent_ = 0;
  while (count_ != 0 && at(0).number <= served && !at(0).answered) pop();
  resumed_ = count_ == 0;
  if (!resumed_) set_resumed(at(0).bytes, true);
  return {};
}

}  // namespace shmb::client
