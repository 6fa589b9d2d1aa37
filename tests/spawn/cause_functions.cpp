// SPDX-License-Identifier: Apache-2.0
// The functions of the ranks of test_spawn_cause.cpp: one fails, the others learn of its end in some way, and fail of
// that.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "client/face/shmbroker_pool.hpp"
#include "spawn/face/remote.hpp"
#include "spawn/face/spawn.hpp"

namespace {

namespace causes {

namespace ranks = shmbroker::ranks;
using std::chrono::milliseconds;

struct SlowToGo {
  ~SlowToGo() { std::this_thread::sleep_for(milliseconds(30)); }
};

// Where the ranks of one call see that another one begins to fail. `began` is not 0 from then on.
struct Board {
  std::atomic<std::int32_t> began{0};
  std::atomic<std::int32_t> pid{0};
};

// Says that an exception is on its way: the unwinding destroys what was made last first.
class Thrown {
 public:
  explicit Thrown(Board* board) : board_(board) {}
  ~Thrown() {
    if (board_ != nullptr) board_->began = 1;
  }
  Thrown(const Thrown&) = delete;
  Thrown& operator=(const Thrown&) = delete;

 private:
  Board* board_;
};

// Fails of its own. `board` may be null.
void fall(int rank, const std::string& how, Board* board = nullptr) {
  const std::string text = "own failure of rank " + std::to_string(rank);
  if (how == "throw") {
    const Thrown thrown(board);
    throw std::domain_error(text);
  }
  if (how == "throw_slowly") {
    const SlowToGo slow;
    const Thrown thrown(board);
    throw std::domain_error(text);
  }
  if (how == "nest") {
    try {
      throw std::invalid_argument("its cause");
    } catch (const std::invalid_argument&) {
      std::throw_with_nested(std::domain_error(text));
    }
  }
  if (how == "leave") {  // its channel, before it dies
    ::close_range(3, ~0U, 0);
    std::this_thread::sleep_for(milliseconds(50));
  }
  if (how == "exit" || how == "leave") ::_exit(3);
  if (how == "exit_orderly") std::exit(3);
  const rlimit none{};
  (void)::setrlimit(RLIMIT_CORE, &none);
  ::signal(SIGABRT, SIG_DFL);
  ::raise(how == "abort" ? SIGABRT : SIGKILL);
}

// Answers the news that another rank is gone. In a catch clause.
[[noreturn]] void answer(int rank, const std::string& how) {
  const std::string text = "rank " + std::to_string(rank) + " cannot go on";
  if (how == "own") throw std::logic_error(text);
  if (how == "nest") std::throw_with_nested(std::logic_error(text));
  if (how == "exit") ::_exit(7);
  if (how == "kill") {
    ::raise(SIGKILL);
    std::abort();
  }
  throw;
}

void wait_for(int rank, int who, const std::string& how) {
  if (how == "barrier") ranks::barrier();
  if (how == "broadcast") (void)ranks::broadcast(rank, who);
  if (how == "gather") (void)ranks::all_gather(rank);
  if (how == "wait") (void)ranks::wait("never");
  if (how == "get")
    while (!ranks::get("never")) std::this_thread::sleep_for(milliseconds(1));
}

void fall_among(int rank, int who, const std::string& how, const std::string& notice, const std::string& reaction) {
  ranks::barrier({}, "begin");
  if (rank == who) return fall(rank, how);
  try {
    wait_for(rank, who, notice);
  } catch (const shmbroker::Error&) {
    answer(rank, reaction);
  }
}

// The others read from a queue of their own that the one writes to, or write to one that it reads from.
void fall_from_queues(int rank, int who, const std::string& how, const std::string& reaction, bool they_read,
                      shmbroker::Pool pool) {
  using shmbroker::Role;
  const auto open = [&](int other, bool reads) {
    return pool.open_queue("q" + std::to_string(other), reads ? Role::reader : Role::writer,
                           {.kind = shmbroker::QueueKind::mpmc});
  };
  if (rank == who) {
    std::vector<shmbroker::Queue> queues;
    for (int other = 0; other < ranks::world_size(); ++other)
      if (other != who) queues.push_back(open(other, !they_read));
    ranks::barrier({}, "open");
    // std::exit does not come back here: as a program does whose queues are global.
    static std::vector<shmbroker::Queue>& global = *new std::vector<shmbroker::Queue>(std::move(queues));
    if (how == "exit_orderly") {
      global.clear();
      std::this_thread::sleep_for(milliseconds(20));
    }
    const std::vector<shmbroker::Queue> local = std::move(global);
    return fall(rank, how);
  }
  shmbroker::Queue queue = open(rank, they_read);
  ranks::barrier({}, "open");
  try {
    shmbroker::Message message;
    for (;;)
      if (they_read) queue.receive(message, std::chrono::seconds(120));
      else queue.send("text", std::chrono::seconds(120));
  } catch (const shmbroker::Error&) {
    answer(rank, reaction);
  }
}

void fall_from_world(int rank, int who, const std::string& how, const std::string& reaction,
                     const std::string& socket) {
  namespace remote = shmbroker::remote;
  remote::InitOptions options;
  options.socket = socket;
  remote::init("w" + std::to_string(rank), rank, ranks::world_size(), options);
  ranks::barrier({}, "begin");
  if (rank == who) return fall(rank, how);
  try {
    (void)remote::rpc_sync<int>("w" + std::to_string(who), "nobody_serves", 1);
  } catch (const shmbroker::Error&) {
    answer(rank, reaction);
  }
}

Board& board_in(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) throw std::runtime_error("no board");
  return *static_cast<Board*>(memory);
}

bool dead(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string line{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::size_t close = line.rfind(')');
  return close == std::string::npos || line[close + 2] == 'Z' || line[close + 2] == 'X';
}

// Two failures that have nothing to do with each other, so far apart. The time begins when the first one has happened:
// its exception has been thrown, or the kernel says that its process is dead.
void fall_apart(int rank, int first, int second, const std::string& how_first, const std::string& how_second,
                int apart_us, const std::string& path) {
  Board& board = board_in(path);
  if (rank == first) {
    board.pid = ::getpid();
    ranks::barrier();
    if (!how_first.starts_with("throw")) board.began = 1;
    return fall(rank, how_first, &board);
  }
  ranks::barrier();
  if (rank == second) {
    while (board.began == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (!how_first.starts_with("throw"))
      while (!dead(board.pid)) std::this_thread::sleep_for(std::chrono::microseconds(20));
    std::this_thread::sleep_for(std::chrono::microseconds(apart_us));
    return fall(rank, how_second);
  }
  for (;;) ::pause();
}

SHMBROKER_SPAWN_FUNCTION("fall_among", fall_among);
SHMBROKER_SPAWN_FUNCTION("fall_from_queues", fall_from_queues);
SHMBROKER_SPAWN_FUNCTION("fall_from_world", fall_from_world);
SHMBROKER_SPAWN_FUNCTION("fall_apart", fall_apart);

}  // namespace causes

}  // namespace
