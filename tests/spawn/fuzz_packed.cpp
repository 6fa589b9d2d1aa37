// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes, read as values of several types. Built only with -Dfuzz=true and clang:
//
//   CXX=clang++-19 CC=clang-19 meson setup build-fuzz -Dfuzz=true && ninja -C build-fuzz tests/spawn/fuzz_packed
//   build-fuzz/tests/spawn/fuzz_packed -max_total_time=120
//
// Bytes that the reader takes for a value are one for msgpack-cxx. An unpacked value comes back the same when packed.
#include <cstdio>
#include <cstdlib>
#include <forward_list>
#include <map>
#include <memory>
#include <set>

#include "spawn/face/spawn_msgpack.hpp"

namespace {

using shmbroker::detail::Codec;
using shmbroker::detail::Packer;
using shmbroker::detail::Reader;

enum class Colour : std::uint8_t { red = 1 };
struct Tree {
  int v = 0;
  std::vector<Tree> kids{};
  SHMBROKER_FIELDS(v, kids)
};
struct OtherTree {  // alternately of msgpack-cxx and of the library
  std::string v{};
  std::map<int, OtherTree> kids{};
  Tree tree{};
  MSGPACK_DEFINE(v, kids, tree)
};
struct Series : std::vector<double> {
  int rate = 0;
  MSGPACK_DEFINE_MAP(MSGPACK_NVP("all", MSGPACK_BASE(std::vector<double>)), rate)
};
struct Chain {
  std::shared_ptr<Chain> next{};
  std::optional<Colour> colour{};
  SHMBROKER_FIELDS(next, colour)
};

[[noreturn]] void fail(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::abort();
}

template <class T>
std::string packed(const T& value) {
  Packer packer;
  Codec<T>::pack(packer, value, {});
  return packer.take();
}
// Nothing: refused.
template <class T>
std::optional<T> unpacked(std::string_view bytes, bool whole) {
  Reader in(bytes);
  try {
    T value = Codec<T>::unpack(in);
    if (whole && !in.done()) fail("a value did not take all of its bytes");
    return value;
  } catch (const shmbroker::detail::TypeError&) {
  } catch (const std::invalid_argument&) {  // malformed, or too deep
  }
  return std::nullopt;
}
template <class T>
void check(std::string_view bytes, bool whole) {
  const std::optional<T> value = unpacked<T>(bytes, whole);
  if (!value) return;
  const std::string once = packed(*value);
  if (!Reader::is_value(once)) fail("what was packed is no value");
  const std::optional<T> again = unpacked<T>(once, true);
  if (!again) fail("what was packed is refused");
  if (packed(*again) != once) fail("what was packed comes back as another value");
}
template <class... T>
void check_one(std::size_t which, std::string_view bytes, bool whole) {
  std::size_t at = 0;
  ((at++ == which % sizeof...(T) ? check<T>(bytes, whole) : void()), ...);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  bool whole = false;
  try {
    whole = Reader::is_value(bytes);
  } catch (const std::invalid_argument&) {  // too deep
  }
  if (whole) {
    std::size_t end = 0;
    try {
      (void)msgpack::unpack(bytes.data(), bytes.size(), end);
    } catch (const std::exception&) {
      fail("msgpack-cxx cannot read a value");
    }
    if (end != bytes.size()) fail("msgpack-cxx reads a shorter value");
  }
  check_one<bool, int, std::uint64_t, signed char, double, float, std::string, std::vector<char>, std::vector<int>,
            std::map<std::string, std::vector<double>>, std::tuple<int, std::string, bool>, std::array<short, 2>,
            std::array<char, 3>, std::set<std::string>, std::forward_list<bool>, std::pair<Colour, std::optional<int>>,
            std::vector<std::shared_ptr<std::string>>, std::multimap<int, int>, Tree, OtherTree, Series, Chain,
            std::vector<shmbroker::RankFailure>, shmbroker::QueueAddress, shmbroker::Ticket>(data[0], bytes, whole);
  return 0;
}
