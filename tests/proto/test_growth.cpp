// SPDX-License-Identifier: Apache-2.0
// The rules of growth of PROTOCOL.md, for every struct of the wire: 1 what is missing is zero, 2 what is unknown must
// be zero, 3 what is reserved must be zero.
#include <doctest/doctest.h>

#include <vector>

#include "proto/codec.hpp"
#include "tests/proto/any_message.hpp"

namespace {

using namespace shmb;
using namespace shmb::wire;
using namespace shmb::wire::test;

// Each field set to bytes that differ from zero and from each other, reserved ones zero.
template <class T>
T filled() {
  T value{};
  int next = 1;
  auto fill = [&](auto&& self, auto& into) -> void {
    visit_fields(into, [&](const char* name, auto& field) {
      using Field = std::remove_reference_t<decltype(field)>;
      if (std::string_view(name).starts_with("reserved")) return;
      if constexpr (std::is_class_v<Field>) self(self, field);
      else std::memset(&field, next = next % 200 + 1, sizeof field);
    });
  };
  fill(fill, value);
  return value;
}

template <class T>
void check_growth(const char* name) {
  CAPTURE(name);
  const T value = filled<T>();
  std::vector<std::byte> raw(sizeof(T) + 64);
  std::memcpy(raw.data(), &value, sizeof value);

  for (std::size_t size = 0; size <= sizeof(T); ++size) {
    T expected{};
    if (size != 0) std::memcpy(&expected, &value, size);
    auto read = read_struct<T>(Bytes(raw).first(size));
    REQUIRE(read);
    CHECK(std::memcmp(&*read, &expected, sizeof expected) == 0);
  }
  for (std::size_t size = sizeof(T); size <= raw.size(); ++size) {
    auto read = read_struct<T>(Bytes(raw).first(size));
    REQUIRE(read);
    CHECK(std::memcmp(&*read, &value, sizeof value) == 0);
  }
  for (std::size_t at = sizeof(T); at < raw.size(); ++at) {
    raw[at] = std::byte{0x80};
    CHECK(failed(read_struct<T>(Bytes(raw).first(at + 1)), Status::too_new));
    CHECK(failed(read_struct<T>(raw), Status::too_new));
    CHECK(read_struct<T>(Bytes(raw).first(at)));  // not part of the struct: not looked at
    raw[at] = std::byte{0};
  }
}

// Flips one bit of every byte: only reserved bytes may be refused, and every one of them is.
template <class T>
std::size_t reserved_bytes() {
  std::size_t refused = 0;
  for (std::size_t at = 0; at < sizeof(T); ++at) {
    T value{};
    reinterpret_cast<unsigned char*>(&value)[at] = 4;
    auto read = read_struct<T>(Bytes(reinterpret_cast<const std::byte*>(&value), sizeof value));
    if (!read) {
      CHECK(failed(read, Status::too_new));
      ++refused;
    }
  }
  return refused;
}

template <class T>
std::size_t named_reserved(T value = {}) {
  std::size_t bytes = 0;
  visit_fields(value, [&](const char* name, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (std::is_class_v<Field>) bytes += named_reserved(field);
    else if (std::string_view(name).starts_with("reserved")) bytes += sizeof field;
  });
  return bytes;
}

template <class T>
std::size_t named_bytes(T value = {}) {
  std::size_t bytes = 0;
  visit_fields(value, [&](const char*, auto& field) { bytes += sizeof field; });
  return bytes;
}

template <class F>
void each_struct(F&& f) {
  f.template operator()<shmbw_header>("header");
  f.template operator()<shmbw_region_ref>("region_ref");
  f.template operator()<shmbw_batch>("batch");
  f.template operator()<shmbw_outcome>("outcome");
  f.template operator()<shmbw_refusal>("refusal");
#define X(op, name, batch) f.template operator()<shmbw_##name>(#name);
  SHMBW_REQUESTS(X)
  SHMBW_RECORDS(X)
#undef X
#define X(op, name, batch) f.template operator()<shmbw_##name##_reply>(#name "_reply");
  SHMBW_REPLIES(X)
#undef X
#define X(op, name, batch) f.template operator()<shmbw_##name##_event>(#name "_event");
  SHMBW_EVENTS(X)
#undef X
}

TEST_CASE("rules 1 and 2: a shorter struct reads as zeros, a longer one must have a zero tail") {
  int structs = 0;
  each_struct([&]<class T>(const char* name) {
    check_growth<T>(name);
    ++structs;
  });
  CHECK(structs >= 47);
}

TEST_CASE("rule 3: exactly the reserved bytes of a struct must be zero") {
  each_struct([]<class T>(const char* name) {
    CAPTURE(name);
    CHECK(reserved_bytes<T>() == named_reserved<T>());
  });
}

TEST_CASE("the compiler adds no padding: every byte of every struct has a name") {
  each_struct([]<class T>(const char* name) {
    CAPTURE(name);
    CHECK(named_bytes<T>() == sizeof(T));
  });
}

TEST_CASE("an empty struct of an older sender reads as zeros even without an address") {
  auto read = read_struct<shmbw_hello>(Bytes());
  REQUIRE(read);
  CHECK(read->version_max == 0);
}

}  // namespace
