// SPDX-License-Identifier: Apache-2.0
// Every request of the protocol in every length and with every byte changed, against a live broker with a bystander.
// Every packet is answered, or costs its sender the connection if and only if the frame is broken; the bystander
// notices nothing, and afterwards books and descriptors are what they were.
// In the usual run each byte takes a few telling values and long lengths go in steps, and what is behind the header is
// changed on one engine of the two, in turn: engines carry bytes and know none of them. With --all everything is on
// both, each byte takes every value and each length is tried.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "proto/wire_fields.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/bystander.hpp"
#include "tests/wire/stage.hpp"

namespace wire_test {
namespace {

std::vector<std::uint8_t> values_for(std::byte original) {
  auto now = std::to_integer<std::uint8_t>(original);
  std::set<std::uint8_t> values;
  if (thorough())
    for (int value = 0; value < 256; ++value) values.insert(static_cast<std::uint8_t>(value));
  else if (harness::kSlowdown == 1)
    for (int value : {0, 1, 2, 4, 0x10, 0x7f, 0x80, 0xff, now - 1, now + 1, now ^ 0x80})
      values.insert(static_cast<std::uint8_t>(value));
  else
    for (int value : {0, 0x7f, 0xff, now + 1}) values.insert(static_cast<std::uint8_t>(value));
  values.erase(now);
  return {values.begin(), values.end()};
}

std::vector<std::size_t> lengths_around(std::size_t valid) {
  std::vector<std::size_t> lengths;
  for (std::size_t length = 0; length <= SHMBW_MAX_MESSAGE + 8; ++length) {
    bool telling = length <= valid + 8 || (harness::kSlowdown == 1 && length <= 256) ||
                   length + 8 >= SHMBW_MAX_MESSAGE || length % (harness::kSlowdown * 2111) == 0;
    if (thorough() || telling) lengths.push_back(length);
  }
  return lengths;
}

// In private mode attacker and bystander have one uid, and a uid may end its groups and put regions into them: those
// changes would harm the bystander lawfully.
bool aims_at(std::uint64_t group, const Packet& packet) {
  shmbw_header header = header_of(packet);
  std::size_t step = 0;
  if (header.op == SHMBW_OP_CREATE) step = sizeof(shmbw_create);
  else if (header.op == SHMBW_OP_GPU_PUBLISH) step = sizeof(shmbw_gpu_publish);
  else if (header.op != SHMBW_OP_GROUP_END && header.op != SHMBW_OP_GROUP_LIMIT && header.op != SHMBW_OP_POOL_CREATE &&
           header.op != SHMBW_OP_GPU_TIMELINE)
    return false;
  std::size_t at = sizeof header + (step ? sizeof(shmbw_batch) : 0);
  for (; at + sizeof group <= packet.size(); at += step) {
    if (std::memcmp(packet.data() + at, &group, sizeof group) == 0) return true;
    if (step == 0) return false;
  }
  return false;
}

enum class Lie { none, size, size_and_fixed };  // what of the header is made to fit a new length

void set_length(Packet& packet, std::size_t length, Lie lie) {
  packet.resize(length);
  shmbw_header header = header_of(packet);
  if (lie != Lie::none) header.size = static_cast<std::uint32_t>(length);
  if (lie == Lie::size_and_fixed)
    header.fixed = static_cast<std::uint16_t>(length < 24 ? 0 : std::min<std::size_t>(length - 24, 0xffff));
  if (length > 0) set_header(packet, header);
}

// Numbers of 2, 4 and 8 bytes at their ends, wherever one may stand. The frame's own are in the lengths' sweep.
void attack_numbers(Duel& duel, std::size_t size, auto&& harmless) {
  constexpr std::uint64_t kEnds[] = {0, UINT64_MAX, INT64_MAX, std::uint64_t{1} << 63, UINT64_MAX - 1};
  for (std::size_t width : {2, 4, 8}) {
    for (std::size_t at = 8; at + width <= size && !duel.failed(); at += width) {
      for (std::uint64_t end : kEnds) {
        // The upper bytes, so that a narrow number gets its own largest and smallest.
        std::byte bytes[8];
        std::memcpy(bytes, &end, sizeof bytes);
        if (end == UINT64_MAX - 1) std::rotate(bytes, bytes + width, bytes + 8);
        duel.play([&](Packet& packet, const Stage&) {
          if (at + width > packet.size()) return false;
          std::memcpy(packet.data() + at, bytes + 8 - width, width);
          return harmless(packet);
        });
        if (duel.failed()) duel.wrong += "; " + std::to_string(width) + " bytes at " + std::to_string(at);
        if (duel.failed()) return;
      }
    }
  }
}

void attack(Duel& duel, const Bystander& bystander, bool same_uid, bool whole) {
  std::size_t size = 0;
  std::uint16_t op = 0;
  REQUIRE(duel.play([&](const Packet& packet, const Stage&) {
    size = packet.size();
    op = header_of(packet).op;
    return true;
  }) != Duel::End::none);
  // A pool that another request turns into is held by its maker's process, which is this one and goes on.
  auto harmless = [&](const Packet& packet) {
    const bool by_accident = op != SHMBW_OP_POOL_CREATE && packet.size() >= sizeof(shmbw_header) &&
                             header_of(packet).op == SHMBW_OP_POOL_CREATE;
    return !by_accident && (!same_uid || !aims_at(bystander.group(), packet));
  };
  const std::size_t changed = whole ? size : std::min(size, sizeof(shmbw_header));
  for (std::size_t at = 0; at < changed && !duel.failed(); ++at) {
    std::byte original{};
    duel.play([&](const Packet& packet, const Stage&) { return original = packet[at], false; });
    for (std::uint8_t value : values_for(original)) {
      duel.play([&](Packet& packet, const Stage&) {
        if (packet[at] == std::byte{value}) return false;
        packet[at] = std::byte{value};
        return harmless(packet);
      });
      if (duel.failed()) duel.wrong += "; byte " + std::to_string(at) + " = " + std::to_string(value);
      if (duel.failed()) break;
    }
  }
  if (!same_uid && !thorough()) return;  // of another uid it is the identities that matter
  if (whole) attack_numbers(duel, size, harmless);
  for (Lie lie : {Lie::none, Lie::size, Lie::size_and_fixed}) {
    for (std::size_t length : lengths_around(size)) {
      if (duel.failed()) break;
      // A length that nobody declared is a broken frame, long or short: near the valid one is enough.
      if (lie == Lie::none && length > size + 8 && length < SHMBW_MAX_MESSAGE) continue;
      duel.play([&](Packet& packet, const Stage&) {
        set_length(packet, length, lie);
        return harmless(packet);
      });
      if (duel.failed())
        duel.wrong += "; length " + std::to_string(length) + ", lie " + std::to_string(static_cast<int>(lie));
    }
  }
}

// `engine`: its number among those that take turns; of `engines`.
void attack_all(BrokerFixture& broker, const std::vector<Valid>& all, std::optional<uid_t> other_uid,
                std::size_t engine = 0, std::size_t engines = 1) {
  REQUIRE_MESSAGE(broker.running(), broker.log());
  Bystander bystander(broker.socket(), other_uid);
  REQUIRE(bystander.goes_on());
  REQUIRE(bystander.pause());
  const Books before = books_of(broker);
  REQUIRE(before.answered);
  REQUIRE(before.regions == 1);
  REQUIRE(before.leases == 2);
  const std::size_t descriptors = descriptors_at_rest(broker);
  bystander.resume();

  long cases = 0, drops = 0, answers = 0, refusals = 0;
  std::size_t turn = 0;
  for (const Valid& valid : all) {
    CAPTURE(valid.name);
    {
      Duel duel(broker, valid);
      attack(duel, bystander, !other_uid, thorough() || turn++ % engines == engine);
      CHECK_MESSAGE(duel.wrong == "", valid.name);
      cases += duel.cases, drops += duel.drops, answers += duel.answers, refusals += duel.refusals;
      // A valid request that never succeeds would make its whole sweep worthless. In system mode only the socket of
      // administrators gives the books.
      const bool refused = other_uid && valid.name == "BOOKS";
      if (!refused && valid.name != "READY" && valid.name != "RELEASE without a reply" &&
          valid.name != "LANE_FINISHED" && valid.name != "REF_RELEASE without a reply")
        CHECK(duel.answers > 0);
      CHECK(duel.drops > 0);
    }
    end_groups(broker, bystander.group());
    CHECK(bystander.wrong() == "");
    CHECK(bystander.goes_on());
    REQUIRE(broker.running());
  }
  MESSAGE(cases << " packets: " << answers << " answered, " << refusals << " refused with a sentence, " << drops
                << " dropped; the bystander made " << bystander.rounds() << " rounds");
  REQUIRE(bystander.pause());
  CHECK(settled(broker, before, descriptors) == "");
  bystander.resume();
  CHECK(bystander.goes_on());
}

}  // namespace

TEST_CASE("each request of the protocol has a valid packet in some stage") {
  std::set<std::uint16_t> tried;
  const Stage empty;
  for (const auto* list : {&all_valid(), &all_valid_of_pools(), &all_valid_of_worlds(), &all_valid_of_gpu()})
    for (const Valid& valid : *list) tried.insert(header_of(valid.make(empty, 1)).op);
#define X(op, name, is_batch) CHECK_MESSAGE(tried.contains(op), #name);
  SHMBW_REQUESTS(X)
#undef X
}

TEST_CASE("every length and every changed byte of every request is answered or dropped, and no other client notices") {
  const auto engines = harness::engines();
  for (std::size_t number = 0; number < engines.size(); ++number) {
    SUBCASE(engines[number].c_str()) {
      BrokerOptions options;
      options.engine = engines[number];
      options.arguments = {"--log-level", "error"};
      // Nobody revokes those that the attacker makes: they have to end by themselves, soon.
      options.config = "[limits]\nticket_max = \"2s\"\nticket_default = \"2s\"\nuid_groups = 100000\n";
      BrokerFixture broker(options);
      attack_all(broker, all_valid(), {}, number, engines.size());
    }
  }
}

TEST_CASE("every length and every changed byte of the requests of pools and queues is answered or dropped") {
  const auto engines = harness::engines();
  for (std::size_t number = 0; number < engines.size(); ++number) {
    SUBCASE(engines[number].c_str()) {
      BrokerOptions options;
      options.engine = engines[number];
      // All sessions here are of one process that lives on. Before 6.5 there is no pidfd without /proc's word, and a
      // place in a pool ends with its socket.
      options.kernel = "6.1";
      options.arguments = {"--log-level", "error"};
      options.config = "[limits]\nuid_groups = 100000\n";
      BrokerFixture broker(options);
      attack_all(broker, all_valid_of_pools(), {}, number, engines.size());
    }
  }
}

TEST_CASE("every length and every changed byte of the requests of worlds and references is answered or dropped") {
  const auto engines = harness::engines();
  for (std::size_t number = 0; number < engines.size(); ++number) {
    SUBCASE(engines[number].c_str()) {
      BrokerOptions options;
      options.engine = engines[number];
      options.arguments = {"--log-level", "error"};
      options.config = "[limits]\nuid_groups = 100000\n";
      BrokerFixture broker(options);
      attack_all(broker, all_valid_of_worlds(), {}, number, engines.size());
    }
  }
}

TEST_CASE("every length and every changed byte of the requests of GPU memory is answered or dropped") {
  const auto engines = harness::engines();
  for (std::size_t number = 0; number < engines.size(); ++number) {
    SUBCASE(engines[number].c_str()) {
      harness::TempDir gpus;
      make_gpu_files(gpus.path());
      BrokerOptions options;
      options.engine = engines[number];
      options.seam = "gpu=" + gpus.path();
      options.kernel = "6.1";  // as for pools: what is held ends with the socket
      options.arguments = {"--log-level", "error"};
      options.config = "[limits]\nuid_groups = 100000\n";
      BrokerFixture broker(options);
      attack_all(broker, all_valid_of_gpu(), {}, number, engines.size());
    }
  }
}

TEST_CASE("a bystander of another uid in system mode is out of reach even for well-aimed changes") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root, to be two users");
  BrokerOptions options;
  options.system = true;
  // The other engine is the usual run's part; this one is about who the peers are.
  options.engine = thorough() ? harness::engines().back() : harness::engines().front();
  options.arguments = {"--log-level", "error"};
  options.config = "[limits]\nticket_max = \"2s\"\nticket_default = \"2s\"\nuid_groups = 100000\n";
  BrokerFixture broker(options);
  attack_all(broker, all_valid(), uid_t{23456});
}

}  // namespace wire_test
