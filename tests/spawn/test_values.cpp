// SPDX-License-Identifier: Apache-2.0
// Values lose no member, keep no view and cost no more than a bound: classes that derive from containers, views, values
// deep in one another, and bytes that no packer made.
#include <doctest/doctest.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "spawn/face/remote.hpp"

namespace values {

using shmbroker::detail::Codec;
using shmbroker::detail::kDeepest;
using shmbroker::detail::Malformed;
using shmbroker::detail::Packer;
using shmbroker::detail::Reader;
using shmbroker::detail::TypeError;

template <class T>
std::string packed(const T& value) {
  Packer packer;
  Codec<T>::pack(packer, value, {});
  return packer.take();
}
template <class T>
T unpacked(std::string_view bytes) {
  Reader in(bytes);
  return Codec<T>::unpack(in);
}
template <class T>
std::string theirs(const T& value) {
  msgpack::sbuffer out;
  msgpack::pack(out, value);
  return {out.data(), out.size()};
}
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
    return "not refused";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

struct Series : std::vector<double> {
  int rate = 0;
  MSGPACK_DEFINE(MSGPACK_BASE(std::vector<double>), rate)
};
struct Batch : std::vector<int> {
  int id = 0;
  SHMBROKER_FIELDS(id)
};
struct Labelled : Batch {
  std::string label{};
  MSGPACK_DEFINE(id, label)
};
// It looks like a container, and has more than elements.
struct Ring {
  using value_type = int;
  std::vector<int> held{};
  int capacity = 0;
  auto begin() const { return held.begin(); }
  auto end() const { return held.end(); }
  void push_back(int one) { held.push_back(one); }
};
struct Plain : std::vector<int> {};

struct Tree {
  int v = 0;
  std::vector<Tree> kids{};
  SHMBROKER_FIELDS(v, kids)
};
struct OtherTree {
  int v = 0;
  std::vector<OtherTree> kids{};
  MSGPACK_DEFINE(v, kids)
};
struct Chain {
  std::unique_ptr<Chain> next{};
  SHMBROKER_FIELDS(next)
};
struct Shape {
  virtual ~Shape() = default;
  int sides = 0;
  SHMBROKER_FIELDS(sides)
};
struct Circle : Shape {
  int radius = 0;
};
struct Arrays {
  char name[8] = "";
  std::array<int, 2> pair{};
  std::map<std::string, std::vector<int>> many{};
  std::shared_ptr<int> one{};
  friend bool operator==(const Arrays& a, const Arrays& b) {
    return std::string(a.name) == b.name && a.pair == b.pair && a.many == b.many && *a.one == *b.one;
  }
  MSGPACK_DEFINE_MAP(name, pair, many, one)
};

}  // namespace values

template <>
inline constexpr bool shmbroker::travels_as_container<values::Plain> = true;

namespace msgpack {
MSGPACK_API_VERSION_NAMESPACE(MSGPACK_DEFAULT_API_NS) {
  namespace adaptor {
  template <>
  struct pack<values::Ring> {
    template <class Stream>
    packer<Stream>& operator()(packer<Stream>& out, const values::Ring& ring) const {
      out.pack_array(2);
      out.pack(ring.held);
      return out.pack(ring.capacity);
    }
  };
  template <>
  struct convert<values::Ring> {
    const msgpack::object& operator()(const msgpack::object& object, values::Ring& ring) const {
      if (object.type != msgpack::type::ARRAY || object.via.array.size != 2) throw msgpack::type_error();
      object.via.array.ptr[0].convert(ring.held);
      object.via.array.ptr[1].convert(ring.capacity);
      return object;
    }
  };
  }  // namespace adaptor
}
}  // namespace msgpack

namespace values {

TEST_CASE("a class that derives from a container, or looks like one, arrives with all its members") {
  Series series;
  series.assign({0.5, 2});
  series.rate = 44100;
  CHECK(packed(series) == theirs(series));
  const auto got = unpacked<Series>(packed(series));
  CHECK(got == series);
  CHECK(got.rate == 44100);
  CHECK(unpacked<std::vector<Series>>(packed(std::vector<Series>{series})).at(0).rate == 44100);
  Ring ring;
  ring.held = {1, 2};
  ring.capacity = 7;
  CHECK(unpacked<Ring>(packed(ring)).capacity == 7);
  CHECK(unpacked<Ring>(packed(ring)).held == ring.held);
  Labelled labelled;
  labelled.id = 3, labelled.label = "l";
  CHECK(unpacked<Labelled>(packed(labelled)).label == "l");
  CHECK(unpacked<Labelled>(packed(labelled)).id == 3);
  Plain plain;
  plain.assign({4, 5});
  CHECK(unpacked<Plain>(packed(plain)) == plain);
  CHECK(unpacked<shmbroker::Text>(packed(shmbroker::Text("text"))) == "text");
}

TEST_CASE("members of a class of msgpack-cxx are packed as msgpack-cxx packs them") {
  const Arrays arrays{"name", {1, 2}, {{"a", {3}}, {"b", {}}}, std::make_shared<int>(4)};
  CHECK(packed(arrays) == theirs(arrays));
  CHECK(unpacked<Arrays>(packed(arrays)) == arrays);
}

TEST_CASE("a text that is given as a view arrives as a text of its own") {
  namespace ranks = shmbroker::ranks;
  static_assert(std::is_same_v<decltype(ranks::broadcast(std::string_view("x"))), std::string>);
  static_assert(std::is_same_v<decltype(ranks::broadcast("x")), std::string>);
  static_assert(std::is_same_v<decltype(ranks::broadcast(5)), int>);
  static_assert(std::is_same_v<decltype(ranks::all_gather(std::string_view("x"))), std::vector<std::string>>);
  static_assert(std::is_same_v<shmbroker::detail::Kept<const std::string_view&>, std::string>);
  CHECK(packed(std::string_view("x")) == packed(std::string("x")));
  CHECK(packed(std::vector<std::string_view>{"x", "y"}) == packed(std::vector<std::string>{"x", "y"}));
  CHECK(packed<const char*>("x") == packed(std::string("x")));
}

template <class T>
T nested(int levels) {
  T tree;
  for (int i = 0; i < levels; ++i) {
    T above;
    above.kids.push_back(std::move(tree));
    tree = std::move(above);
  }
  return tree;
}
template <class T>
void check_depth() {
  // A tree is one array, and its kids are another one.
  const T fits = nested<T>(kDeepest / 2 - 1);
  const std::string bytes = packed(fits);
  CHECK(Reader::is_value(bytes));
  T at = unpacked<T>(bytes);
  int levels = 0;
  while (!at.kids.empty()) {
    T kid = std::move(at.kids[0]);
    at = std::move(kid);
    ++levels;
  }
  CHECK(levels == kDeepest / 2 - 1);
  // The sender says so, and so does the reader of what another program sent.
  const T deep = nested<T>(kDeepest / 2);
  CHECK(refusal([&] { (void)packed(deep); }).find("more than 512 arrays and maps in one another") != std::string::npos);
  for (const std::size_t times : {kDeepest / 2, 4'000'000}) {
    std::string hostile;
    for (std::size_t i = 0; i < times; ++i) hostile += std::string("\x92\x00\x91", 3);
    hostile += std::string("\x92\x00\x90", 3);
    const auto says = "more than 512 arrays and maps in one another";
    CHECK(refusal([&] { (void)Reader::is_value(hostile); }).find(says) != std::string::npos);
    CHECK(refusal([&] { (void)unpacked<T>(hostile); }).find(says) != std::string::npos);
    CHECK(refusal([&] { (void)shmbroker::detail::unpack_result<T>(0, hostile.data(), hostile.size()); }).find(says) !=
          std::string::npos);
  }
}

TEST_CASE("values too deep in one another are refused where they are sent and where they arrive") {
  check_depth<Tree>();
  check_depth<OtherTree>();
  Chain chain;
  Chain* last = &chain;
  for (int i = 0; i < kDeepest; ++i) last = (last->next = std::make_unique<Chain>()).get();
  CHECK(refusal([&] { (void)packed(chain); }).find("512") != std::string::npos);
  const std::string hostile(1'000'000, '\x91');
  CHECK(refusal([&] { (void)unpacked<Chain>(hostile); }).find("512") != std::string::npos);
  // The list of arguments is one of the arrays.
  CHECK(refusal([&] { (void)shmbroker::detail::pack_all({}, nested<Tree>(kDeepest / 2 - 1)); }).find("512") !=
        std::string::npos);
  (void)shmbroker::detail::pack_all({}, nested<Tree>(kDeepest / 2 - 2));
}

TEST_CASE("many arrays beside one another are not deep") {
  const std::vector<std::vector<int>> flat(10'000, std::vector<int>{1});
  CHECK(unpacked<std::vector<std::vector<int>>>(packed(flat)) == flat);
  CHECK(Reader::is_value(packed(flat)));
  const std::map<int, std::map<int, int>> maps{{1, {{2, 3}}}, {4, {}}};
  CHECK(Reader::is_value(packed(maps)));
  CHECK(unpacked<std::map<int, std::map<int, int>>>(packed(maps)) == maps);
}

TEST_CASE("an array of a fixed length takes that many elements and no fewer") {
  CHECK_THROWS_AS((void)(unpacked<std::array<int, 3>>(packed(std::vector<int>{1, 2}))), TypeError);
  CHECK_THROWS_AS((void)(unpacked<std::array<char, 3>>(packed(std::string("ab")))), TypeError);
  CHECK_THROWS_AS((void)(unpacked<std::vector<std::array<int, 1'000'000>>>("\x91\x90")), TypeError);
  CHECK(unpacked<std::array<int, 2>>(packed(std::vector<int>{1, 2})) == std::array<int, 2>{1, 2});
}

struct Freeing {
  void operator()(int* one) const noexcept { std::free(one); }
};
enum Unfixed { kFirst, kSecond };
enum Fixed : short { kThird = 3 };

TEST_CASE("only pointers that delete are allocated, and only enumerations of a fixed type are read") {
  using shmbroker::detail::PointerLike;
  static_assert(PointerLike<std::unique_ptr<int>> && PointerLike<std::shared_ptr<const std::string>>);
  static_assert(!PointerLike<std::unique_ptr<int, Freeing>>);
  static_assert(!PointerLike<std::unique_ptr<int[]>> && !PointerLike<std::shared_ptr<int[]>>);
  static_assert(!PointerLike<std::unique_ptr<int, std::function<void(int*)>>>);
  static_assert(shmbroker::detail::FixedEnum<Fixed> && !shmbroker::detail::FixedEnum<Unfixed>);
  CHECK(packed(kSecond) == packed(1));
  CHECK(unpacked<Fixed>(packed(3)) == kThird);
}

TEST_CASE("a pointer to an object of a derived class is refused, because that class's members would be lost") {
  const std::shared_ptr<Shape> plain = std::make_shared<Shape>(), circle = std::make_shared<Circle>();
  CHECK(unpacked<std::shared_ptr<Shape>>(packed(plain))->sides == 0);
  const std::string said = refusal([&] { (void)packed(circle); });
  CHECK(said.find("values::Circle") != std::string::npos);
  CHECK(said.find("would be lost") != std::string::npos);
}

TEST_CASE("bytes that a peer changes between two looks are refused, and take no memory for what they say") {
  // As is_value saw them, and as they are then.
  std::string bytes = packed(std::vector<OtherTree>(3));
  REQUIRE(Reader::is_value(bytes));
  bytes.replace(0, 1, "\xdd\xff\xff\xff\xff");
  CHECK_THROWS_AS((void)unpacked<OtherTree>(bytes), Malformed);
  CHECK_THROWS_AS((void)unpacked<std::vector<OtherTree>>(bytes), Malformed);
}

}  // namespace values
