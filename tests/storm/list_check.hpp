// SPDX-License-Identifier: Apache-2.0
// The rules for a list that a peer wrote and read_list let through, for the mutation test and for the fuzzer. The
// list lies at the very end of what is readable, so that a sanitizer sees every step beyond it.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "client/queue/message.hpp"

namespace storm {

class ListCheck {
 public:
  static constexpr std::uint32_t kSlots = 4;
  static constexpr std::uint64_t kSlotBytes = 256;

  ListCheck() : me_(view(), 0, 1) {}

  // Lets read_list read it. Returns the fault in the result; "" if it was refused, or all lies within what it names.
  std::string operator()(std::span<const std::byte> list, std::uint64_t expected_parts) {
    using namespace shmb::client;
    accepted_ = false;
    std::vector<std::byte> exact(list.begin(), list.end());
    exact.shrink_to_fit();
    ListHeader header{};
    if (!read_list(exact, expected_parts, me_, table, header)) return "";
    accepted_ = true;
    if (header.parts == 0 ? table.size() != 1 : table.size() != header.parts || header.parts != expected_parts)
      return "another number of parts than the list says";
    for (const ListEntry& entry : table) {
      if (entry.kind() == PartKind::bytes) {
        if (entry.offset > exact.size() || entry.length > exact.size() - entry.offset) return "bytes beyond the list";
        for (std::uint64_t i = 0; i < entry.length; ++i) sum_ += static_cast<unsigned>(exact[entry.offset + i]);
      } else if (entry.kind() == PartKind::slot) {
        if (entry.number >= kSlots) return "a slot that is not there";
        if (entry.offset > kSlotBytes || entry.length > kSlotBytes - entry.offset) return "a stretch beyond its slot";
      } else if (entry.kind() != PartKind::region) {
        return "a part of no kind";
      }
    }
    return "";
  }
  bool accepted() const { return accepted_; }
  unsigned sum() const { return sum_; }

  std::vector<shmb::client::ListEntry> table;

 private:
  shmb::pool::View view() {
    shmb::pool::Shape shape;
    shape.slots = kSlots + 2;  // two without a segment
    auto area = [](std::vector<std::uint64_t>& words, std::uint64_t bytes) {
      words.resize(bytes / 8 + 16);
      auto* at = reinterpret_cast<std::byte*>(words.data());
      at += (128 - reinterpret_cast<std::uintptr_t>(at) % 128) % 128;
      return std::span(at, bytes);
    };
    const auto out = shmb::pool::lay_out(shape, 1, 1, area(directory_, shmb::pool::directory_bytes(shape)),
                                         area(control_, shmb::pool::control_bytes(shape)));
    shmb::pool::SegmentEntry& segment = out.segment(0);
    segment.slots = kSlots;
    segment.slot_size = segment.stride = kSlotBytes;
    segment.in_use.store(1);
    return out;
  }

  std::vector<std::uint64_t> directory_, control_;
  shmb::client::Participant me_;
  bool accepted_ = false;
  unsigned sum_ = 0;
};

}  // namespace storm
