// SPDX-License-Identifier: Apache-2.0
// The decoder of lists: what the library writes reads back as it was, and what was changed anywhere is refused or still
// lies within what it names. Always the same sequence; the open-ended one is fuzz_list.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "tests/harness/sanitizer.hpp"
#include "tests/storm/list_check.hpp"

using namespace shmb::client;
using namespace storm;

TEST_CASE("a list reads back as it was written, and however it is changed it reaches beyond nothing") {
  ListCheck check;
  std::mt19937_64 dice(42);
  auto roll = [&](std::uint64_t below) { return dice() % below; };
  int accepted = 0, refused = 0;
  for (int trial = 0; trial < 3000 / harness::kSlowdown; ++trial) {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<OutPart> parts(1 + roll(12));
    bytes.reserve(parts.size());
    for (OutPart& part : parts) {
      if (roll(3) == 0) {
        part.kind = PartKind::slot;
        part.slot.index = static_cast<std::uint32_t>(roll(ListCheck::kSlots));
        part.slot.generation = static_cast<std::uint32_t>(dice());
        part.offset = roll(ListCheck::kSlotBytes + 1);
        part.length = roll(ListCheck::kSlotBytes - part.offset + 1);
      } else {
        bytes.emplace_back(roll(60));
        for (std::byte& byte : bytes.back()) byte = static_cast<std::byte>(dice());
        part.data = bytes.back().data();
        part.length = bytes.back().size();
      }
    }
    const bool alone = parts.size() == 1 && parts[0].kind == PartKind::bytes;
    const std::uint64_t expected = alone ? 0 : parts.size();
    std::vector<std::byte> list(list_bytes(parts).value());
    write_list(parts, dice(), list);
    CHECK(check(list, expected) == "");
    REQUIRE(check.accepted());
    REQUIRE(check.table.size() == parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ListEntry& entry = check.table[i];
      CHECK(entry.kind() == parts[i].kind);
      CHECK(entry.length == parts[i].length);
      if (entry.kind() == PartKind::slot) CHECK(entry.number == parts[i].slot.index);
      else CHECK(std::equal(parts[i].data, parts[i].data + parts[i].length, list.data() + entry.offset));
    }
    for (int change = 0; change < 12; ++change) {
      std::vector<std::byte> changed = list;
      for (std::uint64_t n = 1 + roll(6); n > 0; --n) {
        const std::size_t at = roll(2) == 0 ? roll(std::min<std::size_t>(changed.size(), 64)) : roll(changed.size());
        changed[at] = roll(3) == 0 ? std::byte{0xff} : static_cast<std::byte>(dice());
      }
      if (roll(3) == 0) changed.resize(roll(changed.size() + 1));
      const std::uint64_t said = roll(4) == 0 ? roll(3) == 0 ? dice() : roll(20) : expected;
      const std::string fault = check(changed, said);
      CHECK(fault == "");
      ++(check.accepted() ? accepted : refused);
    }
  }
  CHECK(accepted > 0);
  CHECK(refused > 0);
}
