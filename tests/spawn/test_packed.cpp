// SPDX-License-Identifier: Apache-2.0
// Values as bytes of msgpack: the same bytes as msgpack-cxx writes, read back whatever of the two wrote them, and
// nothing read beyond what is there.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <complex>
#include <deque>
#include <forward_list>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "spawn/face/spawn_msgpack.hpp"

namespace packed {

using shmbroker::detail::Codec;
using shmbroker::detail::Foreign;
using shmbroker::detail::Malformed;
using shmbroker::detail::Packer;
using shmbroker::detail::Reader;
using shmbroker::detail::TypeError;

template <class T>
std::string ours(const T& value) {
  Packer packer;
  Codec<T>::pack(packer, value, {});
  return packer.take();
}
template <class T>
std::string theirs(const T& value) {
  msgpack::sbuffer out;
  msgpack::pack(out, value);
  return {out.data(), out.size()};
}
template <class T>
T unpacked(const std::string& bytes) {
  REQUIRE(Reader::is_value(bytes));
  Reader in(bytes);
  T value = Codec<T>::unpack(in);
  CHECK(in.done());
  return value;
}
template <class T>
void check(const T& value) {
  const std::string bytes = ours(value);
  CHECK(bytes == theirs(value));
  CHECK(unpacked<T>(bytes) == value);
  // Every beginning is refused, and nothing beyond it is read.
  for (std::size_t size = 0; size < std::min<std::size_t>(bytes.size(), 300); ++size) {
    const std::vector<char> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_FALSE(Reader::is_value({part.data(), part.size()}));
    Reader in(part.data(), part.size());
    CHECK_THROWS_AS((void)Codec<T>::unpack(in), Malformed);
  }
}
template <class T>
void check_all(std::initializer_list<T> values) {
  for (const T& value : values) check(value);
}
template <class To, class From>
bool refused(const From& value) {
  const std::string bytes = ours(value);
  Reader in(bytes);
  try {
    (void)Codec<To>::unpack(in);
    return false;
  } catch (const TypeError&) {
    return true;
  }
}

enum class Colour : std::uint8_t { red = 1, blue = 200 };

struct Point {
  int x = 0;
  std::string name{};
  std::vector<double> weights{};
  friend bool operator==(const Point&, const Point&) = default;
  SHMBROKER_FIELDS(x, name, weights)
};
struct Empty {
  SHMBROKER_FIELDS()
};
struct Outside {  // of msgpack-cxx, with one of ours inside
  int x = 0;
  std::string name{};
  std::vector<double> weights{};
  Point point{};
  friend bool operator==(const Outside&, const Outside&) = default;
  MSGPACK_DEFINE(x, name, weights, point)
};

TEST_CASE("numbers are the bytes of msgpack-cxx, and come back") {
  check_all<bool>({true, false});
  check_all<int>({0, 1, 127, 128, 255, 256, 65535, 65536, -1, -32, -33, -128, -129, -32768, -32769,
                  std::numeric_limits<int>::min(), std::numeric_limits<int>::max()});
  check_all<std::uint64_t>({0, 0xffffffff, 0x100000000, std::numeric_limits<std::uint64_t>::max()});
  check_all<std::int64_t>({std::numeric_limits<std::int64_t>::min(), -0x80000001LL, -0x80000000LL,
                           std::numeric_limits<std::int64_t>::max()});
  check_all<signed char>({-128, 127});
  check_all<char>({'a', '\0'});
  check_all<double>({0.0, 1.0, 1.5, -2.0, -2.5, 1e300, 1e15, 18446744073709551616.0, -9223372036854775808.0,
                     std::numeric_limits<double>::infinity()});
  check_all<float>({0.0F, 1.0F, 1.5F, -2.0F, 1e30F, std::numeric_limits<float>::infinity()});
  CHECK(std::signbit(unpacked<double>(ours(-0.0))));
  CHECK(std::isnan(unpacked<double>(ours(std::nan("")))));
  CHECK(unpacked<int>(ours(3.0)) == 3);
  CHECK(unpacked<double>(ours(-3)) == -3.0);
  CHECK(unpacked<Colour>(ours(Colour::blue)) == Colour::blue);
}

TEST_CASE("texts, containers and classes are the bytes of msgpack-cxx, and come back") {
  for (const std::size_t size : {0, 1, 31, 32, 255, 256, 65535, 65536}) {
    check(std::string(size, 'x'));
    check(std::vector<char>(size, 'x'));
    check(std::vector<unsigned char>(size, 'x'));
    check(std::vector<int>(size % 1000, 7));
  }
  check(std::vector<int>(70000, 7));
  check(std::vector<bool>{true, false, true});
  check(std::vector<signed char>{-1, 1});
  check(std::vector<std::string>{"a", "", "b"});
  check(std::vector<std::vector<std::pair<int, std::string>>>{{{1, "a"}}, {}, {{2, "b"}, {3, "c"}}});
  check(std::deque<int>{1, 2});
  check(std::list<std::string>{"a", "b"});
  check(std::forward_list<int>{1, 2, 3});
  check(std::set<int>{3, 1, 2});
  check(std::multiset<int>{1, 1});
  check(std::unordered_set<int>{4});
  check(std::map<std::string, std::vector<int>>{{"a", {1}}, {"b", {}}});
  check(std::multimap<int, int>{{1, 2}, {1, 3}});
  check(std::unordered_map<std::string, int>{{"a", 1}});
  check(std::array<int, 3>{1, 2, 3});
  check(std::array<char, 4>{'a', 'b', 'c', 'd'});
  check(std::tuple<int, std::string, double>{1, "a", 0.5});
  check(std::tuple<>{});
  check(std::pair<int, bool>{1, true});
  check(std::optional<int>{});
  check(std::optional<int>{5});
  check(std::wstring(L"wide"));
  CHECK(ours(std::make_shared<int>(5)) == theirs(std::make_shared<int>(5)));
  CHECK(*unpacked<std::shared_ptr<int>>(ours(5)) == 5);
  CHECK(*unpacked<std::unique_ptr<std::string>>(ours(std::string("a"))) == "a");
  CHECK(unpacked<std::unique_ptr<int>>(ours(std::optional<int>())) == nullptr);
  std::map<int, int> many;
  for (int i = 0; i < 70000; ++i) many[i] = i;
  CHECK(ours(many) == theirs(many));
  CHECK(unpacked<std::map<int, int>>(ours(many)) == many);
}

TEST_CASE("classes of the library, of the program and of msgpack-cxx travel, also in one another") {
  const Point point{3, "p", {0.5, 2}};
  CHECK(ours(point) == theirs(std::tuple<int, std::string, std::vector<double>>{3, "p", {0.5, 2}}));
  CHECK(unpacked<Point>(ours(point)) == point);
  CHECK(unpacked<std::vector<Point>>(ours(std::vector<Point>{point, {}})) == std::vector<Point>{point, {}});
  (void)unpacked<Empty>(ours(Empty{}));
  const Outside outside{1, "o", {1.5}, point};
  check(outside);
  check(std::vector<Outside>{outside, outside});
  check(std::complex<double>(1.5, -2));
  // More members than there are, and fewer.
  Point some{7, "kept", {}};
  const std::string bytes = ours(std::tuple<int>{9});
  Reader in(bytes);
  some.unpack_value(in);
  CHECK(some == Point{9, "kept", {}});
  CHECK(unpacked<Point>(ours(std::tuple<int, std::string, std::vector<double>, int>{9, "a", {}, 4})) ==
        Point{9, "a", {}});
  const shmbroker::QueueAddress address{5, "q", 2};
  CHECK(ours(address) == theirs(std::tuple<int, std::string, int>{5, "q", 2}));
}

TEST_CASE("a value of another type, or one that does not fit, is refused") {
  CHECK(refused<signed char>(128));
  CHECK(refused<unsigned>(-1));
  CHECK(refused<std::int64_t>(std::numeric_limits<std::uint64_t>::max()));
  CHECK(refused<int>(1.5));
  CHECK(refused<int>(true));
  CHECK(refused<bool>(1));
  CHECK(refused<std::string>(1));
  CHECK(refused<std::vector<int>>(std::string("a")));
  CHECK(refused<std::vector<int>>(std::map<int, int>{}));
  CHECK(refused<std::map<int, int>>(std::vector<int>{}));
  CHECK(refused<std::pair<int, int>>(std::vector<int>{1}));
  CHECK(refused<std::tuple<int, int>>(std::vector<int>{1, 2, 3}));
  CHECK(refused<std::array<int, 2>>(std::vector<int>{1, 2, 3}));
  CHECK(refused<std::array<char, 2>>(std::string("abc")));
  CHECK(refused<Point>(5));
  CHECK(refused<Outside>(5));
  CHECK(refused<Outside>(std::tuple<int, int>{1, 2}));
  CHECK(refused<shmbroker::Ticket>(5));
}

TEST_CASE("a number that a float or a double would change into another one is refused") {
  CHECK(refused<float>(1e300));
  CHECK(refused<float>(-1e39));
  CHECK(unpacked<float>(ours(double{std::numeric_limits<float>::max()})) == std::numeric_limits<float>::max());
  CHECK(unpacked<float>(ours(0.1)) == 0.1F);
  CHECK(std::isinf(unpacked<float>(ours(std::numeric_limits<double>::infinity()))));
  CHECK(std::isnan(unpacked<float>(ours(std::nan("")))));
  CHECK(refused<double>((std::int64_t{1} << 53) + 1));
  CHECK(refused<double>(-(std::int64_t{1} << 53) - 1));
  CHECK(refused<double>(std::numeric_limits<std::uint64_t>::max()));
  CHECK(refused<float>((std::int64_t{1} << 53) + 1));
  CHECK(unpacked<double>(ours(std::int64_t{1} << 53)) == 9007199254740992.0);
  CHECK(unpacked<double>(ours(std::numeric_limits<std::int64_t>::min())) == -9223372036854775808.0);
  const auto said = [](const std::string& bytes, auto type) -> std::string {
    try {
      (void)shmbroker::detail::unpack_result<decltype(type)>(0, bytes.data(), bytes.size());
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return {};
  };
  CHECK(said(ours(1e300), 0.0F).find("expected float, found float 1e+300, which does not fit: -3.40282e+38") !=
        std::string::npos);
  CHECK(said(ours((std::int64_t{1} << 53) + 1), 0.0).find("integer 9007199254740993, which does not fit") !=
        std::string::npos);
}

struct Large {
  std::array<char, 800'000> bytes{};
  int number = 0;
  SHMBROKER_FIELDS(number)
};

TEST_CASE("a short message makes no values that take much memory, and a sentence says the limit") {
  const auto refusal = [](const auto& read) -> std::string {
    try {
      read();
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return {};
  };
  std::string hostile("\xdd\x00\x10\x00\x00", 5);
  hostile += std::string(1 << 20, '\x90');
  CHECK(refusal([&] { (void)unpacked<std::vector<Large>>(hostile); }).find("64 MiB and 256 bytes") !=
        std::string::npos);
  CHECK(refusal([&] { (void)unpacked<std::list<Large>>(hostile); }).find("64 MiB and 256 bytes") != std::string::npos);
  CHECK(refusal([&] { (void)unpacked<std::vector<std::unique_ptr<Large>>>(hostile); }).find("64 MiB") !=
        std::string::npos);
  CHECK(unpacked<std::list<Large>>("\x92\x90\x90").size() == 2);
  CHECK(unpacked<std::vector<int>>(ours(std::vector<int>(1'000'000, 1))).size() == 1'000'000);
}

TEST_CASE("lengths without bytes behind them and endless nesting are refused, and no memory is taken for them") {
  for (const char* bytes : {"\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\xdb\xff\xff\xff\xff",
                            "\xc6\xff\xff\xff\xff", "\xc9\xff\xff\xff\xff", "\xc1"}) {
    CHECK_FALSE(Reader::is_value(bytes));
    Reader in(bytes);
    CHECK_THROWS_AS((void)Codec<std::vector<int>>::unpack(in), std::exception);
  }
  const std::string deep(shmbroker::detail::kDeepest, '\x91');
  CHECK_FALSE(Reader::is_value(deep));
  CHECK(Reader::is_value(deep + "\xc0"));
  CHECK_THROWS_AS((void)Reader::is_value('\x91' + deep + "\xc0"), std::invalid_argument);
  CHECK_THROWS_AS((void)Reader::is_value(std::string(1'000'000, '\x91')), std::invalid_argument);
  CHECK_FALSE(Reader::is_value(std::string_view()));
  CHECK_FALSE(Reader::is_value("\x01\x02"));
}

}  // namespace packed
