// SPDX-License-Identifier: Apache-2.0
// Arguments and results of remote calls that refer to others, and bytes of a worker that no packer made.
#include <fstream>
#include <sstream>

#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

struct Nest {
  int value = 0;
  std::vector<Nest> inside{};
  SHMBROKER_FIELDS(value, inside)
};

// Whether another process may have the memory too.
bool is_shared(const void* memory) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream in(line);
    std::uintptr_t begin = 0, end = 0;
    std::string rights;
    char dash = 0;
    in >> std::hex >> begin >> dash >> end >> rights;
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    if (at >= begin && at < end) return rights.ends_with('s');
  }
  return true;
}
bool takes_shared(std::string_view text, const std::string_view& other) {
  return is_shared(text.data()) || is_shared(other.data());
}
// They give a part of an argument.
std::string_view last_half(std::string_view text) { return text.substr(text.size() / 2); }
const std::string& longer_of(const std::string& a, const std::string& b) { return a.size() > b.size() ? a : b; }
const char* literal_of() { return "literal"; }
struct Labelled {
  explicit Labelled(std::string_view text) : label(text) {}
  std::string_view text() const { return label; }
  std::string label;
};
int count_nest(const Nest& nest) {
  int count = 1;
  for (const Nest& one : nest.inside) count += count_nest(one);
  return count;
}
SHMBROKER_REMOTE_FUNCTION("takes_shared", takes_shared);
SHMBROKER_REMOTE_FUNCTION("last_half", last_half);
SHMBROKER_REMOTE_FUNCTION("longer_of", longer_of);
SHMBROKER_REMOTE_FUNCTION("literal_of", literal_of);
SHMBROKER_REMOTE_CLASS("Labelled", Labelled, std::string_view);
SHMBROKER_REMOTE_METHOD("Labelled.text", &Labelled::text);
SHMBROKER_REMOTE_FUNCTION("count_nest", count_nest);

}  // namespace

TEST_CASE("Texts that a function takes as views are its own, and those that it gives arrive whole") {
  World world;
  world.run(2, [](int rank) {
    if (rank != 0) return;
    // In the message, in a slot, in a region.
    for (const std::size_t size : {10U, 5'000U, 100'000U, 5'000'000U}) {
      const std::string text = std::string(size, 'a') + std::string(size, 'b');
      EXPECT(!remote::rpc_sync<bool>("b", "takes_shared", text, std::string_view(text)));
      EXPECT(remote::rpc_sync<std::string>("b", "last_half", std::string_view(text)) == std::string(size, 'b'));
      EXPECT(remote::rpc_sync<std::string>("b", "longer_of", text, "x") == text);
      EXPECT(remote::remote<std::string>("b", "last_half", text).to_here() == std::string(size, 'b'));
      EXPECT(remote::remote<Labelled>("b", "Labelled", text).rpc_sync<std::string>("Labelled.text") == text);
    }
    EXPECT(remote::rpc_sync<std::string>("b", "literal_of") == "literal");
  });
}

TEST_CASE("A worker refuses values that are too deep in one another, and serves on") {
  World world;
  world.run(2, [](int rank) {
    if (rank != 0) return;
    std::string hostile = "\x91";
    for (int i = 0; i < 300'000; ++i) hostile += std::string("\x92\x00\x91", 3);
    hostile += std::string("\x92\x00\x90", 3);
    const auto joined = remote::detail::world();
    const shmb_payload payload{hostile.data(), hostile.size(), nullptr, 0, nullptr, 0};
    shmb_future* raw = nullptr;
    shmb_error error;
    EXPECT(shmb_remote_call(joined->c(), 1, "count_nest", &payload, 0, SHMB_DEFAULT_TIMEOUT, &raw, &error) == SHMB_OK);
    const auto refused = remote::Future<int>::adopt(joined, raw, "the result");
    EXPECT(has(thrown([&] { (void)refused.wait(); }), "more than 512 arrays and maps in one another"));
    Nest nest;
    for (int i = 0; i < 200; ++i) {
      Nest outer;
      outer.inside.push_back(std::move(nest));
      nest = std::move(outer);
    }
    EXPECT(remote::rpc_sync<int>("b", "count_nest", nest) == 201);
  });
}

}  // namespace remote_test
