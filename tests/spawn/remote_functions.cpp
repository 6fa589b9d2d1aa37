// SPDX-License-Identifier: Apache-2.0
// The functions that workers call in each other, and the processes that they run in.
#include "tests/spawn/remote_functions.hpp"

#include <cstdio>
#include <cstdlib>

#include "tests/support/shared.hpp"

namespace remote_test {

Words& words() {
  static const support::Shared<Words> shared;
  return *shared;
}

// Before any case: it is no leak of the first one.
[[maybe_unused]] static Words& made_at_start = words();

World::World(const harness::BrokerOptions& options) : broker(options) {
  for (auto& one : words().numbers) one = 0;
  ::setenv("SHMBROKER_SOCKET", broker.socket().c_str(), 1);
}

void join(int rank, int size, unsigned threads) {
  remote::InitOptions options;
  options.address = kAddress;
  options.threads = threads;
  remote::init(name_of(rank), rank, size, options);
}

std::vector<int> World::run_bare(int size, const std::function<void(int rank)>& body) {
  REQUIRE(broker.running());
  std::vector<harness::Child> children;
  for (int rank = 0; rank < size; ++rank)
    children.push_back(harness::Child::run([&body, rank] {
      try {
        body(rank);
        return 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "worker %d: %s\n", rank, error.what());
        return 1;
      }
    }));
  std::vector<int> statuses;
  for (auto& child : children) statuses.push_back(child.wait());
  return statuses;
}

void World::run(int size, const std::function<void(int rank)>& body, unsigned threads, bool leave) {
  const auto statuses = run_bare(size, [&](int rank) {
    join(rank, size, threads);
    body(rank);
    if (leave) remote::shutdown();
  });
  for (int rank = 0; rank < size; ++rank) {
    CAPTURE(rank);
    CHECK(statuses[static_cast<std::size_t>(rank)] == 0);
  }
}

namespace {

int add(int a, int b) { return a + b; }
std::string join_texts(const std::vector<std::string>& texts, const std::string& between) {
  std::string out;
  for (const auto& text : texts) out += (out.empty() ? "" : between) + text;
  return out;
}
int slow_add(int a, int b, int after_ms) {
  pause_ms(after_ms);
  return a + b;
}
void nothing() { ++words().numbers[15]; }
void sleeps() {  // until this process is killed
  words().numbers[1] = 1;
  for (;;) pause_ms(1000);
}
int fail_with(const std::string& kind, const std::string& text) {
  if (kind == "value") throw std::invalid_argument(text);
  if (kind == "range") throw std::out_of_range(text);
  if (kind == "own") throw OwnError(text);
  if (kind == "number") throw 7;
  throw std::runtime_error(text);
}
int unwrap(const Remote<int>& value) { return value.to_here(); }
int unwrap_two(const Remote<int>& a, const Remote<int>& b) { return a.to_here() + b.to_here(); }
int unwrap_list(const Remote<std::vector<Remote<int>>>& list) {
  int sum = 0;
  for (const auto& one : list.to_here()) sum += one.to_here();
  return sum;
}
std::vector<Remote<int>> two_of(const std::string& owner, int a, int b) {
  return {remote::remote<int>(owner, "add", a, 0), remote::remote<int>(owner, "add", b, 0)};
}
Remote<int> made_at(const std::string& owner, int a, int b) { return remote::remote<int>(owner, "add", a, b); }
Remote<int> own_value(int value) { return Remote<int>(value); }
std::vector<Remote<int>> three_here() { return {Remote<int>(1), Remote<int>(2), Remote<int>(3)}; }
int ring(const Remote<int>& value, int hops) {
  if (hops == 0) return value.to_here();
  const int next = (remote::rank() + 1) % remote::world_size();
  return remote::rpc_sync<int>(next, "ring", value, hops - 1);
}
bool is_confirmed(const Remote<int>& value) { return value.confirmed_by_owner(); }
// A call of which nobody waits for the next one.
void hop(int left) {
  ++words().numbers[0];
  if (left > 0) (void)remote::rpc_async<void>((remote::rank() + 1) % remote::world_size(), "hop", left - 1);
}
Future<int> add_later(const std::string& at, int a, int b) {
  return remote::rpc_async<int>(at, "add", a, b).then([](const Future<int>& sum) { return sum.wait() + 1; });
}
remote::Bytes doubled(const remote::Bytes& in) {
  remote::Bytes out(in.size());
  for (std::size_t i = 0; i < in.size(); ++i)
    out.data()[i] = static_cast<std::byte>(static_cast<int>(in.data()[i]) * 2);
  return out;
}
int asks_for_nothing() { return remote::rpc_sync<int>("a", "unheard_of"); }
std::string repeated(std::size_t size) { return std::string(size, 'r'); }
std::vector<Remote<int>> kept;
void keep(const Remote<int>& value) { kept.push_back(value); }
void keep_none() { kept.clear(); }
std::string dies() {
  ::raise(SIGKILL);
  return "";
}
int forks_inside() {
  const pid_t child = ::fork();
  if (child == 0) {
    Status status = Status::ok;
    const std::string text = thrown([] { (void)remote::rpc_sync<int>(0, "add", 1, 1); }, &status);
    ::_exit(status == Status::forked && has(text, "forked child") ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}
int count_words(int index) { return words().numbers[index]; }

SHMBROKER_REMOTE_FUNCTION("add", add);
SHMBROKER_REMOTE_FUNCTION("asks_for_nothing", asks_for_nothing);
SHMBROKER_REMOTE_FUNCTION("join", join_texts);
SHMBROKER_REMOTE_FUNCTION("slow_add", slow_add);
SHMBROKER_REMOTE_FUNCTION("nothing", nothing);
SHMBROKER_REMOTE_FUNCTION("sleeps", sleeps);
SHMBROKER_REMOTE_FUNCTION("fail_with", fail_with);
SHMBROKER_REMOTE_FUNCTION("unwrap", unwrap);
SHMBROKER_REMOTE_FUNCTION("unwrap_two", unwrap_two);
SHMBROKER_REMOTE_FUNCTION("unwrap_list", unwrap_list);
SHMBROKER_REMOTE_FUNCTION("two_of", two_of);
SHMBROKER_REMOTE_FUNCTION("made_at", made_at);
SHMBROKER_REMOTE_FUNCTION("own_value", own_value);
SHMBROKER_REMOTE_FUNCTION("three_here", three_here);
SHMBROKER_REMOTE_FUNCTION("ring", ring);
SHMBROKER_REMOTE_FUNCTION("is_confirmed", is_confirmed);
SHMBROKER_REMOTE_FUNCTION("hop", hop);
SHMBROKER_REMOTE_FUNCTION("add_later", add_later);
SHMBROKER_REMOTE_FUNCTION("doubled", doubled);
SHMBROKER_REMOTE_FUNCTION("repeated", repeated);
SHMBROKER_REMOTE_FUNCTION("keep", keep);
SHMBROKER_REMOTE_FUNCTION("keep_none", keep_none);
SHMBROKER_REMOTE_FUNCTION("dies", dies);
SHMBROKER_REMOTE_FUNCTION("forks_inside", forks_inside);
SHMBROKER_REMOTE_FUNCTION("count_words", count_words);
SHMBROKER_REMOTE_CLASS("Counter", Counter, int);
SHMBROKER_REMOTE_METHOD("Counter.add", &Counter::add);
SHMBROKER_REMOTE_METHOD("Counter.value", &Counter::value);
SHMBROKER_REMOTE_METHOD("Counter.hold", &Counter::hold);
SHMBROKER_REMOTE_EXCEPTION(OwnError);

}  // namespace
}  // namespace remote_test
