// SPDX-License-Identifier: Apache-2.0
// Worlds for the tests of remote: a broker of their own, and a forked process for each worker, which runs one function
// of the test. A worker throws a fault that it finds; the test shows it with its rank.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "spawn/face/remote.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"

// The effect of the seam on messages of one kind that reach a worker, see spawn/remote/test_hooks.hpp.
extern "C" void shmb_test_remote_trouble(shmb_remote* remote, int kind, int lose, std::int64_t delay_ns);

namespace remote_test {

namespace remote = shmbroker::remote;
using remote::Future;
using remote::Remote;
using shmbroker::Status;
using shmbroker::Timeout;
using namespace std::chrono_literals;

#define EXPECT(condition)                                                                               \
  do {                                                                                                  \
    if (!(condition))                                                                                   \
      throw std::logic_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " #condition); \
  } while (false)

#define EXPECT_THROWN(call, type) \
  do {                            \
    bool caught_it = false;       \
    try {                         \
      (void)call;                 \
    } catch (const type&) {       \
      caught_it = true;           \
    }                             \
    EXPECT(caught_it);            \
  } while (false)

inline constexpr const char* kAddress = "localhost:29500";
inline constexpr int kCreate = 2;  // the kind of a creation's message

inline std::string name_of(int rank) { return std::string(1, static_cast<char>('a' + rank)); }
inline void pause_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// What `call` throws: its text and, of shmbroker's own, its status. Nothing thrown: "".
inline std::string thrown(const std::function<void()>& call, Status* status = nullptr) {
  try {
    call();
  } catch (const shmbroker::Error& error) {
    if (status != nullptr) *status = error.status();
    return error.what();
  } catch (const std::exception& error) {
    if (status != nullptr) *status = Status::raised;
    return error.what();
  }
  return "";
}
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }
// Serves until `condition` is true, for a long time at most.
inline bool serve_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    if (!remote::serve(std::chrono::milliseconds(20))) return condition();
  }
  return false;
}

struct Words {  // between the processes of one test
  std::atomic<int> numbers[16];
};
Words& words();  // the same memory in all of them, zeroed by each World

struct World {
  explicit World(const harness::BrokerOptions& options = {});
  // Runs `body` in one process for each rank, after init; with `leave` it shuts down afterwards.
  void run(int size, const std::function<void(int rank)>& body, unsigned threads = 0, bool leave = true);
  // The same without init. Gives the exit statuses: 0 is well.
  std::vector<int> run_bare(int size, const std::function<void(int rank)>& body);
  harness::BrokerFixture broker;
};

void join(int rank, int size, unsigned threads = 0);

}  // namespace remote_test
