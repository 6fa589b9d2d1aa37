// SPDX-License-Identifier: Apache-2.0
// See actor.hpp.
#include "tests/kill/actor.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace kill_tests {
namespace {

Actor* self = nullptr;  // of this process, once it is one
Step awaited{};
unsigned awaited_times = 0;
std::function<void()> awaited_action;

void die_or_stop(const Actor& actor) {
  ::kill(::getpid(), actor.stops ? SIGSTOP : SIGKILL);
  while (!actor.stops) ::pause();
}

void on_step(Step step) {
  Actor& actor = *self;
  ++actor.count[static_cast<unsigned>(step)];
  if (!actor.counting.load(std::memory_order_relaxed)) return;
  const std::uint64_t number = actor.passed.fetch_add(1, std::memory_order_relaxed) + 1;
  if (number <= kMostTraced) actor.trace[number - 1] = static_cast<std::uint16_t>(step);
  if (number == actor.target) die_or_stop(actor);
  if (awaited_times == 0 || step != awaited || --awaited_times != 0) return;
  auto action = std::move(awaited_action);
  actor.counting = false;  // what it does is not the operation
  action();
  actor.counting = true;
}

std::uint64_t mixed(std::uint64_t word) {
  word ^= word >> 31;
  word *= 0x9e3779b97f4a7c15;
  return word ^ word >> 29;
}

}  // namespace

std::string name_of(unsigned step) {
  static const char* const names[] = {
#define X(name) #name, "after " #name,
      SHMB_STEPS(X)
#undef X
  };
  return step < kSteps ? names[step] : "?";
}

SharedActor::SharedActor() {
  void* at = ::mmap(nullptr, sizeof(Actor), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  actor_ = new (at) Actor();
  clear();
}
SharedActor::~SharedActor() { ::munmap(actor_, sizeof(Actor)); }
void SharedActor::clear() const {
  Actor& actor = *actor_;
  actor.target = 0;
  actor.stops = actor.counting = actor.ready = actor.go = false;
  actor.passed = 0;
  actor.asked = actor.answered = actor.heard = 0;
  actor.count = {};
  actor.index = pool::kNone;
  actor.life = actor.sent = actor.confirmed = actor.shown = 0;
}

Self::Self(Actor& of, const std::string& socket, std::uint64_t group) : actor(of), socket_(socket), group_(group) {
  self = &of;
  of.pid = ::getpid();
  awaited_times = 0;
  step_hook = on_step;
}

void Self::join() {
  session = need(try_open(socket_), "session");
  need(session->join_group("#" + std::to_string(group_), 0, Deadline::after(0)), "group");
  pool = need(try_pool(session, "p"), "pool");
  actor.index = pool->me().index();
  actor.life = pool->me().life();
}
std::unique_ptr<Queue> Self::open(const QueueSpec& spec) { return need(Queue::open(pool, spec), "queue"); }

void Self::begin() { actor.counting = true; }
void Self::end() { actor.counting = false; }

void Self::ask(std::uint32_t number) {
  const bool counted = actor.counting.exchange(false);
  actor.asked = number;
  while (actor.answered != number) ::usleep(20);
  actor.counting = counted;
}
void Self::ask_later(std::uint32_t number) { actor.asked = number; }
void Self::wait_for_go() {
  actor.ready = true;
  while (!actor.go) ::usleep(20);
}
void Self::at(Step step, std::function<void()> action, unsigned nth) {
  awaited = step;
  awaited_action = std::move(action);
  awaited_times = nth;
}
void Self::wait_asleep(std::uint32_t participant) {
  const auto& sleep = pool->view().wait(participant).sleep;
  for (int waited = 0; sleep.load() == 0; ++waited) {
    need(waited < 500'000, "the peer sleeps at last");
    ::usleep(20);
  }
}

Slot Self::fresh_slot(std::uint64_t id, std::uint64_t length) {
  Slot slot = need(pool->acquire(length == 0 ? kSlot : length, 0), "acquire");
  fill({slot.data, slot.length}, id);
  return slot;
}
void Self::send_inline(Queue& queue, std::uint64_t id, std::int64_t wait) {
  std::array<std::byte, kInline> body;
  fill(body, id);
  ++actor.sent;
  need(queue.send(body, wait), "send");
  ++actor.confirmed;
}
void Self::send(Queue& queue, const Slot& slot, std::int64_t wait) {
  ++actor.sent;
  need(queue.send(slot, wait), "send of a slot");
  ++actor.confirmed;
}
void Self::send_slot(Queue& queue, std::uint64_t id, std::int64_t wait) {
  const Slot slot = fresh_slot(id);
  send(queue, slot, wait);
  need(pool->release(slot), "release");
}
void Self::send_parts(Queue& queue, std::span<const OutPart> parts, std::int64_t wait) {
  ++actor.sent;
  need(queue.send(parts, 7, 0, wait), "send of a list");
  ++actor.confirmed;
}
std::uint64_t Self::receive(Queue& queue, Message& message, bool keep, std::int64_t wait) {
  for (;;) {
    auto received = queue.receive(message, keep, wait);
    if (!received && received.error().status == Status::peer_gone) continue;
    need(std::move(received), "receive");
    ++actor.shown;
    const std::uint64_t id = id_of(message);
    need(id != kTorn, "the message is whole");
    return id;
  }
}

void fill(std::span<std::byte> to, std::uint64_t id) {
  for (std::size_t at = 0; at < to.size(); at += 8) {
    const std::uint64_t word = at == 0 ? id : mixed(id + at);
    std::memcpy(to.data() + at, &word, std::min<std::size_t>(8, to.size() - at));
  }
}

std::uint64_t id_in(std::span<const std::byte> from) {
  if (from.size() < 16) return kTorn;
  std::uint64_t id = 0;
  std::memcpy(&id, from.data(), 8);
  for (std::size_t at = 8; at < from.size(); at += 8) {
    const std::uint64_t word = mixed(id + at);
    if (std::memcmp(&word, from.data() + at, std::min<std::size_t>(8, from.size() - at)) != 0) return kTorn;
  }
  return id;
}

std::uint64_t id_of(const Message& message) {
  std::uint64_t id = kTorn;
  for (std::size_t i = 0; i < message.count(); ++i) {
    const auto& part = message.part(i);
    if (part.data == nullptr) return kTorn;
    const std::uint64_t of_part = id_in({part.data, part.length});
    if (i == 0) id = of_part;
    else if (of_part != part_id(id, i)) return kTorn;
  }
  return id;
}

}  // namespace kill_tests
