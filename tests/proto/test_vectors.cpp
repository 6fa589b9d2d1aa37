// SPDX-License-Identifier: Apache-2.0
// The promise to every client already built: each golden vector, also those of past releases, decodes to what it
// always meant, and what the codec writes is byte for byte what it always wrote.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/proto/any_message.hpp"
#include "tests/proto/hex.hpp"

namespace {

using namespace shmb;
using namespace shmb::wire;
using json = nlohmann::json;

struct Vector {
  std::string name;
  json all;
  std::vector<std::byte> bytes;
  Direction direction;
  std::uint32_t table = SHMBW_TABLE_UIDS;
  std::size_t n_fds;
};

std::vector<Vector> vectors() {
  const std::map<std::string, std::uint32_t> tables{{"regions", SHMBW_TABLE_REGIONS},
                                                    {"groups", SHMBW_TABLE_GROUPS},
                                                    {"sessions", SHMBW_TABLE_SESSIONS},
                                                    {"leases", SHMBW_TABLE_LEASES},
                                                    {"tickets", SHMBW_TABLE_TICKETS},
                                                    {"uids", SHMBW_TABLE_UIDS},
                                                    {"pools", SHMBW_TABLE_POOLS},
                                                    {"queues", SHMBW_TABLE_QUEUES},
                                                    {"participants", SHMBW_TABLE_PARTICIPANTS},
                                                    {"gpu_regions", SHMBW_TABLE_GPU_REGIONS}};
  std::vector<Vector> out;
  for (const auto& entry : std::filesystem::directory_iterator(SHMB_VECTORS)) {
    if (entry.path().extension() != ".json") continue;
    Vector vector;
    vector.all = json::parse(std::ifstream(entry.path()));
    vector.name = vector.all.at("name");
    vector.bytes = test::from_hex(vector.all.at("hex").get<std::string>());
    vector.direction = vector.all.at("direction") == "request" ? Direction::request : Direction::from_broker;
    if (vector.all.contains("table")) vector.table = tables.at(vector.all["table"]);
    vector.n_fds = vector.all.at("fds").size();
    out.push_back(std::move(vector));
  }
  return out;
}

test::Decoded decoded(const Vector& vector) {
  return test::decode(vector.bytes, vector.n_fds, vector.direction, vector.table);
}

json as_json(const test::Decoded& decoded) { return json::parse(test::to_json(decoded).dump()); }

// What a struct of another size changes in the decoded form: the sizes themselves.
json without_sizes(json decoded) {
  decoded["header"].erase("size");
  decoded["header"].erase("fixed");
  decoded["fixed"].erase("element_size");
  return decoded;
}

TEST_CASE("every golden vector decodes to what it means") {
  auto all = vectors();
  CHECK(all.size() >= 295);
  for (const Vector& vector : all) {
    CAPTURE(vector.name);
    CHECK(as_json(decoded(vector)) == vector.all["decoded"]);
  }
}

TEST_CASE("every golden message, written again, is the same bytes; of another size, the same message") {
  int same = 0, grown = 0;
  for (const Vector& vector : vectors()) {
    auto message = decoded(vector);
    if (!std::holds_alternative<test::Message>(message)) continue;
    CAPTURE(vector.name);
    std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
    Bytes written = test::encode(std::get<test::Message>(message), buffer);
    REQUIRE_FALSE(written.empty());
    if (std::ranges::equal(written, vector.bytes)) {
      ++same;
      continue;
    }
    ++grown;
    CHECK((vector.name.ends_with("-minimal") || vector.name.ends_with("-future") || vector.name == "error-bare" ||
           vector.name == "list-empty-page"));
    auto again = test::decode(written, vector.n_fds, vector.direction, vector.table);
    CHECK(without_sizes(as_json(again)) == without_sizes(as_json(message)));
  }
  CHECK(same >= 80);
  CHECK(grown >= 70);
}

TEST_CASE("there is a valid, minimal, maximal, short, tail and future vector for every message") {
  std::set<std::string> names;
  for (const Vector& vector : vectors()) names.insert(vector.name);
  auto check = [&](const std::string& prefix) {
    for (const char* variant : {"valid", "minimal", "maximal", "short", "tail", "future"}) {
      CAPTURE(prefix);
      CAPTURE(variant);
      CHECK(names.contains(prefix + "-" + variant));
    }
  };
#define X(op, name, batch) check(#name "-request");
  SHMBW_REQUESTS(X)
#undef X
#define X(op, name, batch) \
  if (op != SHMBW_OP_LIST) check(#name "-reply");
  SHMBW_REPLIES(X)
#undef X
#define X(op, name, batch) check(#name "-event");
  SHMBW_EVENTS(X)
#undef X
  for (const char* table :
       {"regions", "groups", "sessions", "leases", "tickets", "uids", "pools", "queues", "participants", "gpu_regions"})
    check(std::string("list-") + table);
}

TEST_CASE("a vector cut at any length, with and without a size that admits it, is read without a step outside") {
  long messages = 0, refused = 0, malformed = 0;
  for (const Vector& vector : vectors()) {
    if (vector.bytes.size() > 800 || vector.name.starts_with("frame-")) continue;
    for (std::size_t length = 0; length <= vector.bytes.size() + 8; ++length) {
      // Exactly as long as it says, so that the address sanitizer sees any byte read beyond it.
      std::vector<std::byte> cut(vector.bytes.begin(), vector.bytes.begin() + std::min(length, vector.bytes.size()));
      cut.resize(length);
      cut.shrink_to_fit();
      for (bool admitted : {false, true}) {
        const auto size = static_cast<std::uint32_t>(length);
        if (admitted && length >= 4) std::memcpy(cut.data(), &size, sizeof size);
        auto read = test::decode(cut, vector.n_fds, vector.direction, vector.table);
        messages += std::holds_alternative<test::Message>(read);
        refused += std::holds_alternative<Status>(read);
        malformed += std::holds_alternative<Malformed>(read);
        if (!admitted && length != vector.bytes.size()) {
          CAPTURE(vector.name);
          CAPTURE(length);
          CHECK(std::holds_alternative<Malformed>(read));
        }
      }
    }
  }
  MESSAGE("cut vectors: " << messages << " messages, " << refused << " refused, " << malformed << " malformed");
  CHECK(messages > 1000);
  CHECK(refused > 1000);
  CHECK(malformed > 10'000);
}

}  // namespace
