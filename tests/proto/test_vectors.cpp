// SPDX-License-Identifier: Apache-2.0
// The promise to every client already built. Each golden vector, also of a past release, decodes to what it always
// meant, and the codec writes it byte for byte as it always did. read_vectors.py sends the frames of older, newer and
// faulty senders through the same codec.
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
                                                    {"worlds", SHMBW_TABLE_WORLDS},
                                                    {"workers", SHMBW_TABLE_WORKERS},
                                                    {"references", SHMBW_TABLE_REFERENCES},
                                                    {"gpu_regions", SHMBW_TABLE_GPU_REGIONS},
                                                    {"reports", SHMBW_TABLE_REPORTS},
                                                    {"refusals", SHMBW_TABLE_REFUSALS}};
  std::vector<Vector> out;
  for (const auto& entry : std::filesystem::directory_iterator(SHMB_VECTORS)) {
    if (entry.path().extension() != ".jsonl") continue;
    std::ifstream lines(entry.path());
    for (std::string line; std::getline(lines, line);) {
      Vector vector;
      vector.all = json::parse(line);
      vector.name = vector.all.at("name");
      vector.bytes = test::from_hex(vector.all.at("hex").get<std::string>());
      vector.direction = vector.all.at("direction") == "request" ? Direction::request : Direction::from_broker;
      if (vector.all.contains("table")) vector.table = tables.at(vector.all["table"]);
      vector.n_fds = vector.all.at("fds").size();
      out.push_back(std::move(vector));
    }
  }
  return out;
}

test::Decoded decoded(const Vector& vector) {
  return test::decode(vector.bytes, vector.n_fds, vector.direction, vector.table);
}

json as_json(const test::Decoded& decoded) { return json::parse(test::to_json(decoded).dump()); }

// The effect of a struct of another size on the decoded form: the sizes themselves.
json without_sizes(json decoded) {
  decoded["header"].erase("size");
  decoded["header"].erase("fixed");
  decoded["fixed"].erase("element_size");
  return decoded;
}

bool is_zero(const json& value) {
  if (value.is_object()) return std::ranges::all_of(value, is_zero);
  return value.is_string() ? value.get<std::string>().find_first_not_of('0') == std::string::npos : value == 0;
}

// A vector does not name the fields that its struct got later: they are zero.
bool means(const json& said, const json& meant) {
  if (!said.is_object() || !meant.is_object()) {
    if (!said.is_array() || !meant.is_array()) return said == meant;
    return std::ranges::equal(said, meant, means);
  }
  for (const auto& [name, value] : said.items())
    if (meant.contains(name) ? !means(value, meant[name]) : !is_zero(value)) return false;
  return std::ranges::all_of(meant.items(), [&](const auto& item) { return said.contains(item.key()); });
}

TEST_CASE("every golden vector decodes to what it means") {
  auto all = vectors();
  CHECK(all.size() >= 128);
  for (const Vector& vector : all) {
    const json said = as_json(decoded(vector));
    CAPTURE(vector.name);
    CAPTURE(said.dump());
    CAPTURE(vector.all["decoded"].dump());
    CHECK(means(said, vector.all["decoded"]));
  }
}

TEST_CASE("a field that a vector does not name may only be zero") {
  const json meant = json::parse(R"({"fields": {"id": 3, "at": [{"x": 1}]}})");
  auto with = [&](const char* field, const json& value) {
    json said = meant;
    said["fields"][field] = value;
    return means(said, meant);
  };
  CHECK(means(meant, meant));
  CHECK(with("added", 0));
  CHECK(with("added", "0000"));
  CHECK(with("added", json::parse(R"({"id": 0})")));
  CHECK_FALSE(with("added", 1));
  CHECK_FALSE(with("added", "0001"));
  CHECK_FALSE(with("id", 4));
  CHECK_FALSE(with("at", json::array()));
  CHECK_FALSE(with("at", json::parse(R"([{"x": 2}])")));
  CHECK_FALSE(means(json::object(), meant));
}

TEST_CASE("every golden message is written again as the same bytes, or longer if its struct has grown") {
  for (const Vector& vector : vectors()) {
    CAPTURE(vector.name);
    auto message = decoded(vector);
    REQUIRE(std::holds_alternative<test::Message>(message));
    std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
    Bytes written = test::encode(std::get<test::Message>(message), buffer);
    REQUIRE_FALSE(written.empty());
    if (std::ranges::equal(written, vector.bytes)) continue;
    CHECK(written.size() > vector.bytes.size());
    auto again = test::decode(written, vector.n_fds, vector.direction, vector.table);
    CHECK(without_sizes(as_json(again)) == without_sizes(as_json(message)));
  }
}

TEST_CASE("there is a golden vector for every request, reply, event and record, with structs as long as today's") {
  std::set<std::string> known;
  for (const Vector& vector : vectors()) {
    const auto message = std::get<test::Message>(decoded(vector));
    std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
    if (!std::ranges::equal(test::encode(message, buffer), vector.bytes)) continue;
    known.insert(std::string(message.name) + "-" + message.kind);
    if (message.is_list && !message.parts.empty()) known.insert(message.parts[0].shape->name);
  }
#define X(op, name, batch) CHECK_MESSAGE(known.contains(#name "-request"), #name);
  SHMBW_REQUESTS(X)
#undef X
#define X(op, name, batch) CHECK_MESSAGE(known.contains(#name "-reply"), #name);
  SHMBW_REPLIES(X)
#undef X
#define X(op, name, batch) CHECK_MESSAGE(known.contains(#name "-event"), #name);
  SHMBW_EVENTS(X)
#undef X
#define X(op, name, batch) CHECK_MESSAGE(known.contains(#name), #name);
  SHMBW_RECORDS(X)
#undef X
}

TEST_CASE("a vector cut at any length, with and without a size that admits it, is read without a step outside") {
  long messages = 0, refused = 0, malformed = 0;
  for (const Vector& vector : vectors()) {
    if (vector.bytes.size() > 800) continue;
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
  CHECK(messages > 500);
  CHECK(refused > 1000);
  CHECK(malformed > 10'000);
}

}  // namespace
