// SPDX-License-Identifier: Apache-2.0
// The other side of the scenarios: what the processes do that a test starts. Queue "to" leads to them, "from" back.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/face/shmbroker_pool.hpp"
#include "spawn/face/spawn.hpp"
#include "tests/conformance/tensor.hpp"

namespace conformance {
namespace {

using shmbroker::Pool;
using shmbroker::Queue;
using shmbroker::rank_session;
using shmbroker::Role;

Queue reader_of(const Pool& pool, const char* name) {
  return pool.open_queue(name, Role::reader, {.kind = shmbroker::QueueKind::mpmc});
}
Queue writer_of(const Pool& pool, const char* name) {
  return pool.open_queue(name, Role::writer, {.kind = shmbroker::QueueKind::mpmc});
}
void wait_for_word(const Queue& queue) {
  shmbroker::Message word;
  queue.receive(word, std::chrono::seconds(120));
}
[[noreturn]] void stay_there() {
  for (;;) ::pause();
}

// The test program's own handlers (doctest's) must not run in its copies.
[[maybe_unused]] const int at_fork = ::pthread_atfork(nullptr, nullptr, [] {
  for (const int signal : {SIGTERM, SIGINT, SIGABRT, SIGSEGV, SIGFPE, SIGILL}) ::signal(signal, SIG_DFL);
});

std::string strategy_of(int) { return shmbroker::sharing_strategy(); }

void fill_with_four(int, Pool pool) {
  const Queue in = reader_of(pool, "to"), out = writer_of(pool, "from");
  Received received = get(in);
  received.tensors.at(0).fill(4);
  out.send("event");
}

void send_ones_twice(int, Pool pool) {
  const Queue in = reader_of(pool, "to"), out = writer_of(pool, "from");
  Tensor ones = Tensor::zeros(Type::float64, {5, 5});
  ones.fill(1);
  put({rank_session(), pool}, out, {ones});
  put({rank_session(), pool}, out, {ones});
  Tensor twos = Tensor::zeros(Type::float64, {5, 5});
  twos.fill(2);
  put({rank_session(), pool}, out, {twos, twos});
  wait_for_word(in);
}

// Until there is no more to do, which may be so when it comes.
void map_plus_one(int, Pool pool) try {
  const Queue in = reader_of(pool, "to"), out = writer_of(pool, "from");
  for (;;) {
    const Received job = get(in);
    Tensor input = job.tensors.at(0), result = Tensor::zeros(input.type, input.shape);
    input.fill(4);
    result.fill(4);
    result.add(1);
    put({rank_session(), pool}, out, {result}, job.type);
  }
} catch (const shmbroker::Error& error) {
  if (error.status() != shmbroker::Status::closed) throw;
}

void add_three(int, shmbroker::Region region) {
  for (double& value : region.as_span<double>()) value += 3;
}

std::uint64_t length_of(int, shmbroker::Region region) {
  if (!region.mapped()) throw std::runtime_error("the region is not mapped");
  return region.size();
}

void echo(int, Pool pool, int count) {
  const Queue in = reader_of(pool, "to"), out = writer_of(pool, "from");
  for (int i = 0; i < count; ++i) put({rank_session(), pool}, out, get(in).tensors);
}

std::string name_thread(int, const std::string& name) {
  (void)rank_session();  // the library leaves names alone
  ::pthread_setname_np(::pthread_self(), name.c_str());
  shmbroker::rank_session().create(4096).release();
  char seen[16] = {};
  ::prctl(PR_GET_NAME, seen);
  return seen;
}

void send_and_end(int, Pool pool, int number, bool killed) {
  const Queue out = writer_of(pool, "from");
  Tensor tensor = Tensor::zeros(Type::float64, {100, 100});
  tensor.fill(number);
  put({rank_session(), pool}, out, {tensor}, static_cast<std::uint64_t>(number));
  if (killed) ::raise(SIGKILL);
}

void never_read(int, Pool pool) {
  const Queue line = pool.open_queue("line", Role::reader, {.kind = shmbroker::QueueKind::spsc});
  writer_of(pool, "from").send("ready");
  stay_there();
}

void hold(int, Pool pool, int count) {
  const Queue in = reader_of(pool, "to"), out = writer_of(pool, "from");
  std::vector<Tensor> held;
  for (int i = 0; i < count; ++i) held.push_back(get(in).tensors.at(0));
  out.send("ready");
  stay_there();
}

void own(int, Pool pool, int count, int sent) {
  const Queue out = writer_of(pool, "from");
  std::vector<Tensor> owned;
  for (int i = 0; i < count; ++i) {
    owned.push_back(Tensor::zeros(Type::float64, {1 << 17}));
    owned.back().fill(i);
    owned.back().storage->share(rank_session(), shmbroker::GroupId{pool.info().group});
  }
  for (int i = 0; i < sent; ++i) put({rank_session(), pool}, out, {owned[static_cast<std::size_t>(i)]});
  stay_there();
}

// So many live tensors, made by rank 0 and held by rank 1 as well, each with as few descriptors as its limit says.
// Gives how many handles of the rank keep one.
int hold_with_limit(int rank, Pool pool, int count, int limit) {
  const rlimit few{static_cast<rlim_t>(limit), static_cast<rlim_t>(limit)};
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0) throw std::runtime_error("setrlimit");
  const Queue queue = rank == 0 ? writer_of(pool, "to") : reader_of(pool, "to");
  std::vector<Tensor> held;
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    if (rank == 0) {
      held.push_back(Tensor::zeros(Type::int64, {2}));
      held.back().fill(i);
      put({rank_session(), pool}, queue, {held.back()});
    } else {
      held.push_back(get(queue).tensors.at(0));
    }
    kept += held.back().storage->region()->info().descriptor_kept != 0;
  }
  shmbroker::ranks::barrier();
  for (int i = 0; i < count; ++i)
    if (!held[static_cast<std::size_t>(i)].all(i)) throw std::runtime_error("tensor " + std::to_string(i));
  shmbroker::ranks::barrier();
  return kept;
}

// As slots, which cost no descriptor anywhere.
void hold_slots(int, Pool pool, int count, int limit) {
  const rlimit few{static_cast<rlim_t>(limit), static_cast<rlim_t>(limit)};
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0) throw std::runtime_error("setrlimit");
  const Queue in = reader_of(pool, "to");
  std::vector<shmbroker::Slot> held;
  shmbroker::Message message;
  for (int i = 0; i < count; ++i) {
    in.receive_kept(message, std::chrono::seconds(60));
    held.push_back(pool.take_slot(message));
    message.done();
  }
  for (int i = 0; i < count; ++i)
    if (held[static_cast<std::size_t>(i)].as_span<int>()[0] != i) throw std::runtime_error("slot " + std::to_string(i));
}

std::uint64_t receive_view(int, Pool pool) {
  const Received received = get(reader_of(pool, "to"));
  if (!received.tensors.at(0).all(7)) throw std::runtime_error("the view's value is another");
  return received.tensors[0].storage->size();
}

bool receive_seven(int, Pool pool) {
  const Queue in = reader_of(pool, "to");
  writer_of(pool, "from").send("ready");
  return get(in).tensors.at(0).all(7);
}

SHMBROKER_SPAWN_FUNCTION("strategy_of", strategy_of);
SHMBROKER_SPAWN_FUNCTION("fill_with_four", fill_with_four);
SHMBROKER_SPAWN_FUNCTION("send_ones_twice", send_ones_twice);
SHMBROKER_SPAWN_FUNCTION("map_plus_one", map_plus_one);
SHMBROKER_SPAWN_FUNCTION("add_three", add_three);
SHMBROKER_SPAWN_FUNCTION("length_of", length_of);
SHMBROKER_SPAWN_FUNCTION("echo", echo);
SHMBROKER_SPAWN_FUNCTION("name_thread", name_thread);
SHMBROKER_SPAWN_FUNCTION("send_and_end", send_and_end);
SHMBROKER_SPAWN_FUNCTION("never_read", never_read);
SHMBROKER_SPAWN_FUNCTION("hold", hold);
SHMBROKER_SPAWN_FUNCTION("own", own);
SHMBROKER_SPAWN_FUNCTION("hold_with_limit", hold_with_limit);
SHMBROKER_SPAWN_FUNCTION("hold_slots", hold_slots);
SHMBROKER_SPAWN_FUNCTION("receive_view", receive_view);
SHMBROKER_SPAWN_FUNCTION("receive_seven", receive_seven);

}  // namespace
}  // namespace conformance
