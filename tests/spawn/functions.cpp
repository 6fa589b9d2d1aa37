// SPDX-License-Identifier: Apache-2.0
// The functions of the tests' ranks: registered in the helper program, which ranks are executed from, and in the test
// program itself, which they are forked from.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "client/face/shmbroker_pool.hpp"
#include "spawn/face/spawn_msgpack.hpp"

namespace shmb::test {

// Seen in a dynamic symbol table, and left as written.
#ifdef __clang__
#define SHMB_TEST_SEEN __attribute__((visibility("default"), noinline))
#else
#define SHMB_TEST_SEEN __attribute__((visibility("default"), noipa))
#endif
SHMB_TEST_SEEN int function_that_throws(int depth) {
  if (depth < 0) return 0;
  throw std::range_error("at depth " + std::to_string(depth));
}
SHMB_TEST_SEEN int function_that_calls_what_throws(int depth) {
  if (depth > 0) return 1 + function_that_calls_what_throws(depth - 1);
  try {
    return function_that_throws(-1) + function_that_throws(depth);
  } catch (const std::bad_alloc&) {  // not this one
    return 0;
  }
}

}  // namespace shmb::test

namespace {

namespace ranks = shmbroker::ranks;

void pause_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

void nothing(int) {}
int twice(int rank, int number, const std::string& text) { return number * 2 + rank + static_cast<int>(text.size()); }

// who: the one that acts, -1: all.
void raise_error(int rank, int who, int after_ms, int others_ms) {
  if (who >= 0 && rank != who) return pause_ms(others_ms);
  pause_ms(after_ms);
  throw std::domain_error("legitimate exception from process " + std::to_string(rank));
}
// Rank 1 first: the others wait until it has left, however late it was.
void raise_apart(int rank, int apart_ms) {
  if (rank != 1) {
    try {
      ranks::barrier();
    } catch (const shmbroker::Error&) {
      pause_ms(apart_ms);
    }
  }
  throw std::domain_error("from " + std::to_string(rank));
}
std::string raise_long(int, int size) {
  if (size < 0) {
    pause_ms(-size);
    return std::string(10'000, 'x');
  }
  pause_ms(size == 30'000 ? 300 : 0);
  throw std::runtime_error("begin" + std::string(static_cast<std::size_t>(size), 'x') + "end");
}
// Rank 1, when rank 0 has ended well, however late that is.
void raise_last(int rank) {
  if (rank == 0) return;
  try {
    ranks::barrier();
  } catch (const shmbroker::Error&) {
    throw std::domain_error("after the others");
  }
}
// Rank 1 ends well some time after rank 0 has died.
void outlive(int rank, int others_ms) {
  (void)!::write(std::atoi(std::getenv("SHMB_TEST_READY")), "r", 1);
  while (rank == 0) ::pause();
  try {
    ranks::barrier();
  } catch (const shmbroker::Error&) {
    pause_ms(others_ms);
  }
}
void say_late(int) {
  pause_ms(100);
  (void)!::write(std::atoi(std::getenv("SHMB_TEST_READY")), "r", 1);
}
void wait_for_file(int, const std::string& path) {
  while (::access(path.c_str(), F_OK) != 0) pause_ms(5);
}
void give_bare(int) {
  if (shmb_rank_finish("\xc1", 1, nullptr) == SHMB_OK) ::_exit(0);
}
int never_throws(int rank) noexcept { return rank + 7; }
// Its name, and those that it gives, are parts of longer texts.
std::string name_parts(int rank, std::string_view text) {
  constexpr std::string_view kAll = "key other 12 three";
  const std::string_view key = kAll.substr(0, 3), first = kAll.substr(4, 5), second = kAll.substr(13);
  ranks::barrier({}, key);
  if (rank == 0) ranks::set(key, first);
  if (ranks::wait(key) != first) return "wait";
  ranks::barrier({}, key);
  const auto views = ranks::all_gather(kAll.substr(rank == 0 ? 0 : 4, 3), {}, key);
  if (ranks::broadcast(rank == 0 ? first : second, 0, {}, key) != first ||
      views != std::vector<std::string>{"key", "oth"})
    return "views";
  if (ranks::broadcast(rank, 0, {}, key) != 0 || ranks::all_gather(rank, {}, key) != std::vector{0, 1}) return "gather";
  if (rank == 0 && ranks::compare_exchange(key, first, second) != second) return "compare_exchange";
  ranks::barrier({}, key);
  if (ranks::get(key) != second) return "get";
  if (rank == 0 && ranks::add(kAll.substr(4, 1), 5) != 5) return "add";
  ranks::barrier({}, key);
  if (rank == 0 && !ranks::erase(key)) return "erase";
  return std::string(text);
}
const bool parts_are_named =
    shmbroker::register_function(std::string_view("name_parts and more").substr(0, 10), name_parts);
void print_lines(int rank, int lines) {
  for (int i = 0; i < lines; ++i) std::printf("line of %d %s\n", rank, std::string(89, 'x').c_str());
}
void broadcast_bare(int rank) {
  if (rank == 0) {
    void* data = nullptr;
    std::uint64_t length = 0;
    if (shmb_rank_broadcast("", 0, "5", 1, 0, &data, &length, nullptr) != SHMB_OK)
      throw std::runtime_error("broadcast");
    return shmb_bytes_free(data);
  }
  try {
    (void)ranks::broadcast(7, 0);
  } catch (const std::invalid_argument&) {
    return;
  }
  throw std::runtime_error("bare bytes were taken for a value");
}
void leave_late(int) {
  static int descriptor = -1;
  ::signal(SIGTERM, [](int) {
    pause_ms(100);
    ::_exit(5);
  });
  if (const char* text = std::getenv("SHMB_TEST_READY")) descriptor = std::atoi(text);
  (void)!::write(descriptor, "r", 1);
  for (;;) ::pause();
}
// While two threads ask all the time.
void fork_while_asking(int) {
  std::atomic<bool> go_on = true;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (go_on) ranks::add("key", 1);
    });
  int good = 0;
  for (int i = 0; i < 100; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // it hangs
      try {
        (void)ranks::get("key");
      } catch (const shmbroker::Error& error) {
        ::_exit(error.status() == shmbroker::Status::forked ? 0 : 1);
      }
      ::_exit(2);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    good += status == 0;
    if (status != 0) break;
  }
  go_on = false;
  for (auto& thread : threads) thread.join();
  if (good != 100) throw std::runtime_error("a forked child was not told");
}
struct NotDerived {};
void raise_nested(int, int depth) {
  if (depth == 0) throw std::invalid_argument("the root");
  try {
    raise_nested(0, depth - 1);
  } catch (...) {
    if (depth == 3) std::throw_with_nested(NotDerived());
    std::throw_with_nested(std::range_error("at level " + std::to_string(depth)));
  }
}
int take_small(int, std::int8_t small, unsigned positive) { return small + static_cast<int>(positive); }
long long give_large(int) { return 3'000'000'000; }
void raise_at(int, const std::vector<int>& numbers) { (void)numbers.at(7); }
void raise_int(int) { throw 7; }
void raise_below(int, int depth) { shmb::test::function_that_calls_what_throws(depth); }
void signal_self(int rank, int who, int signal) {
  if (rank != who) return pause_ms(60'000);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}
void exit_with(int rank, int who, int code, int others_ms) {
  if (rank != who) return pause_ms(others_ms);
  ::_exit(code);
}
// With a dump where the system makes one: it is told as the kernel tells it.
void dump_core(int) {
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  rlimit now{};
  ::getrlimit(RLIMIT_CORE, &now);
  now.rlim_cur = now.rlim_max;
  if (::setrlimit(RLIMIT_CORE, &all) != 0) ::setrlimit(RLIMIT_CORE, &now);
  ::signal(SIGABRT, SIG_DFL);
  ::raise(SIGABRT);
}
void other_of_the_same_name(int) {}
void close_everything(int, int code) {
  ::close_range(3, ~0U, 0);
  if (code >= 0) ::_exit(code);
}
void stay(int, bool stubborn, bool daemons) {
  if (stubborn)
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  if (daemons && ::fork() == 0) {
    ::setsid();
    if (::fork() != 0) ::_exit(0);
    for (;;) ::pause();
  }
  if (const char* descriptor = std::getenv("SHMB_TEST_READY")) (void)!::write(std::atoi(descriptor), "r", 1);
  for (;;) ::pause();
}
// An argument that rank 0 alone gets past.
struct Barred {
  void msgpack_unpack(const msgpack::object&) {
    while (shmbroker::ranks::rank() != 0) pause_ms(1000);
  }
};
void stay_with_regions(int, const shmbroker::Region&, const Barred&, const shmbroker::Region&) {
  if (const char* descriptor = std::getenv("SHMB_TEST_READY")) (void)!::write(std::atoi(descriptor), "r", 1);
  for (;;) ::pause();
}
void start_a_broker(int, bool fail) {
  const auto session = shmbroker::Session::connect();
  if (fail) throw std::runtime_error("after the broker was there");
}
void spin(int) {
  if (const char* descriptor = std::getenv("SHMB_TEST_READY")) (void)!::write(std::atoi(descriptor), "r", 1);
  for (volatile bool go_on = true; go_on;) {
  }
}
void nested(int, const std::string& program) {
  shmbroker::SpawnOptions options;
  options.nprocs = 2;
  options.join = false;
  options.no_group = true;
  options.program = program, options.command = {program};
  auto context = shmbroker::spawn("stay", options, true, true);
  ::signal(SIGTERM, SIG_DFL);
  for (;;) ::pause();
}

// Makes and drops regions, beside a daemon of its own.
void work_for_ever(int rank, shmbroker::Region region) {
  if (const pid_t child = ::fork(); child == 0) {
    ::setsid();
    if (::fork() != 0) ::_exit(0);
    for (;;) ::pause();
  } else {
    (void)::waitpid(child, nullptr, 0);
  }
  for (;;) {
    auto own = shmbroker::rank_session().create(65536);
    own.as_span<int>()[0] = ++region.as_span<int>()[static_cast<std::size_t>(rank)];
    pause_ms(1);
  }
}

void count_region(int rank, shmbroker::Region region) {
  region.as_span<int>()[static_cast<std::size_t>(rank)] = rank + 1;
}
int read_region(int rank, shmbroker::ReadOnlyRegion region) { return region.as_span<const int>()[0] + rank; }
int read_ticket(int, shmbroker::Ticket ticket) {
  return shmbroker::rank_session().attach(ticket).as_span<const int>()[0];
}
void send_rank(int rank, shmbroker::Pool pool, const shmbroker::QueueAddress& queue) {
  auto out =
      pool.open_queue(queue.name, shmbroker::Role::writer, {.kind = shmbroker::QueueKind::as_is, .open_only = true});
  out.send(std::to_string(rank));
}
shmbroker::Pool give_pool_back(int, shmbroker::Pool pool) { return pool; }
// Queues themselves: the rank has the end that its parent has not.
void send_to_parent(int rank, shmbroker::Queue queue) { queue.send(std::to_string(rank)); }
std::string receive_from_parent(int, const shmbroker::Queue& queue) {
  shmbroker::Message message;
  queue.receive(message, std::chrono::seconds(60));
  return std::string(message.text());
}
shmbroker::Region give_region(int rank, int bytes) {
  auto region = shmbroker::rank_session().create(static_cast<std::size_t>(bytes));
  region.as_span<int>()[0] = rank + 1;
  return region;
}
shmbroker::ReadOnlyRegion give_published(int rank, int bytes) { return give_region(rank, bytes).publish(); }
// The region of rank 0 is there, and it has ended, before rank 1 says so, which never ends.
shmbroker::Region give_while_one_stays(int rank) {
  if (rank == 0) return give_region(rank, 4096);
  try {
    ranks::barrier();
  } catch (const shmbroker::Error&) {
    (void)!::write(std::atoi(std::getenv("SHMB_TEST_READY")), "r", 1);
  }
  for (;;) ::pause();
}
std::string environment(int, const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

std::vector<int> meet(int rank) {
  ranks::barrier();
  const auto text = ranks::broadcast<std::string>(rank == 1 ? "from one" : "ignored", 1);
  if (text != "from one") throw std::runtime_error("broadcast gave " + text);
  if (ranks::get("absent")) throw std::runtime_error("a key that nobody set is there");
  ranks::add("sum", rank);
  if (rank == 0) ranks::set("key", "value");
  if (ranks::wait("key") != "value") throw std::runtime_error("wait");
  ranks::barrier();
  if (ranks::add("sum", 0) != ranks::world_size() * (ranks::world_size() - 1) / 2) throw std::runtime_error("sum");
  const std::string winner = ranks::compare_exchange("leader", "", std::to_string(rank));
  if (winner != ranks::wait("leader")) throw std::runtime_error("two leaders");
  ranks::barrier({}, "end");
  if (rank == 0 && (!ranks::erase("key") || ranks::erase("key"))) throw std::runtime_error("erase");
  return ranks::all_gather(rank * 10);
}
int meet_region(int rank) {
  auto region = shmbroker::rank_session().create(4096);
  region.as_span<int>()[0] = rank == 0 ? 99 : 1;
  const auto mine = rank == 0 ? region.ticket(shmbroker::Rights::read, 3) : shmbroker::Ticket();
  const auto ticket = ranks::broadcast(mine, 0);
  const int seen = shmbroker::rank_session().attach(ticket).as_span<const int>()[0];
  ranks::barrier();
  return seen;
}
std::string take_bytes(int, int bytes) {
  auto region = shmbroker::rank_session().try_create(static_cast<std::size_t>(bytes));
  return region ? "" : region.error().what();
}
// Regions themselves: each rank attaches what the others have, and ends as soon as it may.
int share_regions(int rank) {
  const int count = ranks::world_size();
  auto own = shmbroker::rank_session().create(4096, {.many_writers = true});
  own.as_span<int>()[0] = rank + 1;
  int sum = 0;
  for (const auto& one : ranks::all_gather(own)) sum += one.as_span<int>()[0];
  auto common = ranks::broadcast(rank == 1 ? std::move(own) : shmbroker::Region(nullptr), 1);
  common.as_span<int>()[static_cast<std::size_t>(rank) + 1] = 1;
  ranks::barrier();
  for (int i = 1; i <= count; ++i) sum += common.as_span<int>()[static_cast<std::size_t>(i)];
  const auto published = rank == 0 ? shmbroker::rank_session().create(4096) : shmbroker::Region(nullptr);
  return sum + static_cast<int>(ranks::broadcast(published).size());
}
// Rank 0 lends a region, and rank 1 never takes it.
void lend_in_vain(int rank) {
  const char* const descriptor = std::getenv("SHMB_TEST_READY");
  if (rank == 0) (void)ranks::broadcast(shmbroker::rank_session().create(4096));
  void* data = nullptr;
  std::uint64_t length = 0;
  if (shmb_rank_broadcast("", 0, nullptr, 0, 0, &data, &length, nullptr) != SHMB_OK) throw std::runtime_error("gone");
  (void)!::write(std::atoi(descriptor), "r", 1);
  for (;;) ::pause();
}
void meet_from_threads(int) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 20; ++i) {
        ranks::barrier({}, "t" + std::to_string(t));
        ranks::add("all", 1);
      }
    });
  for (auto& thread : threads) thread.join();
  ranks::barrier();
  if (ranks::add("all", 0) != 80 * ranks::world_size()) throw std::runtime_error("calls were lost");
}
// A thread whose word to the supervisor waits behind another thread's gives up at its own deadline.
bool wait_behind_a_thread(int) {
  const pid_t supervisor = ::getppid();
  ::kill(supervisor, SIGSTOP);
  std::atomic<pid_t> writer = 0;
  std::thread large([&writer, value = std::string(1 << 20, 'x')] {  // more than the socket has room for
    writer = ::gettid();
    ranks::set("large", value);
  });
  const auto is_blocked = [&] {
    char state = 0;
    std::FILE* const file = std::fopen(("/proc/self/task/" + std::to_string(writer) + "/stat").c_str(), "re");
    if (file == nullptr) return false;
    const bool read = std::fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    std::fclose(file);
    return read && state == 'S';
  };
  while (!is_blocked()) pause_ms(1);
  bool told = false;
  try {
    (void)ranks::wait("absent", std::chrono::milliseconds(20));
  } catch (const std::exception& error) {
    told = std::string(error.what()).find("another thread's word") != std::string::npos;
  }
  ::kill(supervisor, SIGCONT);
  large.join();
  return told;
}
// Descriptors of this process by which it could watch or signal another one.
int pidfds_of(int, int pid) {
  int count = 0;
  const std::string wanted = "Pid:\t" + std::to_string(pid) + "\n";
  for (int fd = 0; fd < 1024; ++fd) {
    std::FILE* const file = std::fopen(("/proc/self/fdinfo/" + std::to_string(fd)).c_str(), "re");
    if (file == nullptr) continue;
    for (char line[128]; std::fgets(line, sizeof line, file) != nullptr;) count += line == wanted;
    std::fclose(file);
  }
  return count;
}
// The others wait for one that dies or ends; gives what they were told.
std::string wait_for_gone(int rank, int gone, bool dies, const std::string& how) {
  if (rank == gone) {
    if (dies) ::raise(SIGKILL);
    return "";
  }
  try {
    if (how == "barrier") ranks::barrier();
    if (how == "gather") (void)ranks::all_gather(rank);
    if (how == "broadcast") (void)ranks::broadcast(rank, gone);
    if (how == "wait") (void)ranks::wait("never");
  } catch (const shmbroker::Error& error) {
    if (error.status() == shmbroker::Status::peer_gone) return error.what();
    throw;
  }
  return "it was not told";
}
// Rank 0 comes too early to everything, and gives up; what it gave up does not count.
std::string come_too_early(int rank) {
  constexpr auto kSoon = std::chrono::milliseconds(20);
  std::string told;
  const auto note = [&](auto&& call) {
    try {
      call();
      told += "ok ";
    } catch (const shmbroker::Error& error) {
      told += shmb_status_name(static_cast<int>(error.status())) + std::string(" ");
    }
  };
  if (rank == 0) {
    note([&] { ranks::barrier(kSoon); });
    note([&] { (void)ranks::broadcast(1, 1, kSoon); });
    note([&] { (void)ranks::all_gather(1, kSoon); });
    ranks::set("given up", "yes");
  }
  (void)ranks::wait("given up");
  note([] { ranks::barrier(); });
  note([&] { told += std::to_string(ranks::broadcast(rank + 5, 1)) + " "; });
  note([&] { told += std::to_string(ranks::all_gather(rank + 7).at(0)) + " "; });
  return told;
}
std::string bounds(int) {
  std::string told;
  const auto note = [&](auto&& call) {
    try {
      call();
      told += "ok ";
    } catch (const shmbroker::Error& error) {
      told += shmb_status_name(static_cast<int>(error.status())) + std::string(" ");
    }
  };
  note([] { ranks::set(std::string(1024, 'k'), "v"); });
  note([] { ranks::set(std::string(1025, 'k'), "v"); });
  note([] { ranks::set("", "v"); });
  note([] { ranks::set("k", std::string(1 << 20, 'v')); });
  note([] { ranks::set("k", std::string((1 << 20) + 1, 'v')); });
  note([] {
    for (int i = 0; i < 70; ++i) ranks::set("big" + std::to_string(i), std::string(1 << 20, 'v'));
  });
  note([] { (void)ranks::add("k", 1); });
  note([] { (void)ranks::broadcast(1, 99); });
  note([] { ranks::barrier(shmbroker::Timeout::forever()); });
  note([] { (void)ranks::wait("never", std::chrono::milliseconds(20)); });
  note([] { ranks::set("k", "still there"); });
  return told;
}
// It gives the last error of lending where the supervisor takes no word any more.
int lend_beside_stopped(int) {
  constexpr std::int64_t kSoon = 50'000'000, kHour = 3'600'000'000'000;
  auto region = shmbroker::rank_session().create(4096);
  const pid_t supervisor = ::getppid();
  if (::kill(supervisor, SIGSTOP) != 0) return -1;
  std::uint8_t ticket[16];
  shmb_error error{};
  int status = SHMB_OK;
  for (int i = 0; i < 8000 && status == SHMB_OK; ++i)
    status = shmb_rank_lend(region.c(), SHMB_RIGHT_READ, 1, kHour, kSoon, ticket, nullptr, &error);
  ::kill(supervisor, SIGCONT);
  return status;
}
// The test program's own handlers (doctest's) must not run in its copies.
[[maybe_unused]] const int at_fork = ::pthread_atfork(nullptr, nullptr, [] {
  for (const int signal : {SIGTERM, SIGINT, SIGABRT, SIGSEGV, SIGFPE, SIGILL}) ::signal(signal, SIG_DFL);
});

int preloads = 0;
std::string preloaded(int) { return std::to_string(preloads) + " " + std::to_string(::getpid()); }

SHMBROKER_SPAWN_FUNCTION("nothing", nothing);
SHMBROKER_SPAWN_FUNCTION("twice", twice);
SHMBROKER_SPAWN_FUNCTION("raise_error", raise_error);
SHMBROKER_SPAWN_FUNCTION("raise_apart", raise_apart);
SHMBROKER_SPAWN_FUNCTION("raise_long", raise_long);
SHMBROKER_SPAWN_FUNCTION("raise_int", raise_int);
SHMBROKER_SPAWN_FUNCTION("raise_below", raise_below);
SHMBROKER_SPAWN_FUNCTION("raise_last", raise_last);
SHMBROKER_SPAWN_FUNCTION("outlive", outlive);
SHMBROKER_SPAWN_FUNCTION("say_late", say_late);
SHMBROKER_SPAWN_FUNCTION("wait_for_file", wait_for_file);
SHMBROKER_SPAWN_FUNCTION("give_bare", give_bare);
SHMBROKER_SPAWN_FUNCTION("never_throws", never_throws);
SHMBROKER_SPAWN_FUNCTION("lambda", [](int rank, int number) { return rank + number; });
SHMBROKER_SPAWN_FUNCTION("print_lines", print_lines);
SHMBROKER_SPAWN_FUNCTION("leave_late", leave_late);
SHMBROKER_SPAWN_FUNCTION("broadcast_bare", broadcast_bare);
SHMBROKER_SPAWN_FUNCTION("fork_while_asking", fork_while_asking);
SHMBROKER_SPAWN_FUNCTION("signal_self", signal_self);
SHMBROKER_SPAWN_FUNCTION("raise_nested", raise_nested);
SHMBROKER_SPAWN_FUNCTION("take_small", take_small);
SHMBROKER_SPAWN_FUNCTION("give_large", give_large);
SHMBROKER_SPAWN_FUNCTION("raise_at", raise_at);
SHMBROKER_SPAWN_FUNCTION("exit_with", exit_with);
SHMBROKER_SPAWN_FUNCTION("close_everything", close_everything);
SHMBROKER_SPAWN_FUNCTION("dump_core", dump_core);
SHMBROKER_SPAWN_FUNCTION("named_twice", nothing);
SHMBROKER_SPAWN_FUNCTION("named_twice", other_of_the_same_name);
SHMBROKER_SPAWN_FUNCTION("come_too_early", come_too_early);
SHMBROKER_SPAWN_FUNCTION("stay", stay);
SHMBROKER_SPAWN_FUNCTION("stay_with_regions", stay_with_regions);
SHMBROKER_SPAWN_FUNCTION("spin", spin);
SHMBROKER_SPAWN_FUNCTION("nested", nested);
SHMBROKER_SPAWN_FUNCTION("work_for_ever", work_for_ever);
SHMBROKER_SPAWN_FUNCTION("count_region", count_region);
SHMBROKER_SPAWN_FUNCTION("read_region", read_region);
SHMBROKER_SPAWN_FUNCTION("read_ticket", read_ticket);
SHMBROKER_SPAWN_FUNCTION("send_rank", send_rank);
SHMBROKER_SPAWN_FUNCTION("give_pool_back", give_pool_back);
SHMBROKER_SPAWN_FUNCTION("send_to_parent", send_to_parent);
SHMBROKER_SPAWN_FUNCTION("receive_from_parent", receive_from_parent);
SHMBROKER_SPAWN_FUNCTION("give_region", give_region);
SHMBROKER_SPAWN_FUNCTION("give_published", give_published);
SHMBROKER_SPAWN_FUNCTION("give_while_one_stays", give_while_one_stays);
SHMBROKER_SPAWN_FUNCTION("lend_beside_stopped", lend_beside_stopped);
SHMBROKER_SPAWN_FUNCTION("environment", environment);
SHMBROKER_SPAWN_FUNCTION("meet", meet);
SHMBROKER_SPAWN_FUNCTION("meet_region", meet_region);
SHMBROKER_SPAWN_FUNCTION("take_bytes", take_bytes);
SHMBROKER_SPAWN_FUNCTION("share_regions", share_regions);
SHMBROKER_SPAWN_FUNCTION("lend_in_vain", lend_in_vain);
SHMBROKER_SPAWN_FUNCTION("meet_from_threads", meet_from_threads);
SHMBROKER_SPAWN_FUNCTION("wait_for_gone", wait_for_gone);
SHMBROKER_SPAWN_FUNCTION("wait_behind_a_thread", wait_behind_a_thread);
SHMBROKER_SPAWN_FUNCTION("pidfds_of", pidfds_of);
SHMBROKER_SPAWN_FUNCTION("bounds", bounds);
SHMBROKER_SPAWN_FUNCTION("preloaded", preloaded);
SHMBROKER_SPAWN_FUNCTION("start_a_broker", start_a_broker);

}  // namespace

// The hook of the fork server.
void preload_once() { ++preloads; }
