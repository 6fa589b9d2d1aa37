// SPDX-License-Identifier: Apache-2.0
// The epoll engine. Readability is level-triggered, so that a request costs no epoll_ctl: the socket stays armed
// between two requests. It is disarmed only when it is readable and no packet is wanted. Writability has to be
// edge-triggered, because a socket with one unread packet is writable all the time. epoll offers that only per
// registration. So sockets that wait for it are also in a second epoll instance, which the first one watches.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/sys_call.hpp"
#include "base/sys_process.hpp"
#include "daemon/transport/engine.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

namespace {

constexpr std::size_t kEventsPerTurn = 512;

Sys<void> control(const Fd& epoll, int operation, int fd, std::uint32_t events, void* data) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = data;
  return sys::call_void(fault::Call::epoll, [&] { return ::epoll_ctl(epoll.get(), operation, fd, &event); });
}

}  // namespace

class EpollEngine final : public Engine {
 public:
  EpollEngine(Fd readable, Fd edges) : readable_(std::move(readable)), edges_(std::move(edges)) {}

  ~EpollEngine() override {
    for (Slot* slot : all_) delete slot;
  }

  Sys<void> start() { return control(readable_, EPOLL_CTL_ADD, edges_.get(), EPOLLIN, nullptr); }

  Sys<void> watch(int fd, Waiter& waiter, Turns::Process* process) override {
    Slot* slot = take(fd);
    slot->waiter = &waiter;
    slot->process = process;
    auto added = control(readable_, EPOLL_CTL_ADD, fd, EPOLLIN, slot);
    if (!added) give_back(slot);
    else waiter.slot_ = slot;
    return added;
  }

  void unwatch(Waiter& waiter) override {
    if (waiter.slot_ == nullptr) return;
    auto* slot = static_cast<Slot*>(waiter.slot_);
    waiter.slot_ = nullptr;
    (void)control(readable_, EPOLL_CTL_DEL, slot->fd, 0, nullptr);
    give_back(slot);
  }

  Sys<void> add(int fd, Port& port, Turns::Process& process) override {
    Slot* slot = take(fd);
    slot->port = &port;
    slot->process = &process;
    slot->armed = true;
    auto added = control(readable_, EPOLL_CTL_ADD, fd, EPOLLIN, slot);
    if (!added) give_back(slot);
    else port.slot_ = slot;
    return added;
  }

  void remove(Port& port) override {
    if (port.slot_ == nullptr) return;
    auto* slot = static_cast<Slot*>(port.slot_);
    port.slot_ = nullptr;
    if (slot->edges) (void)control(edges_, EPOLL_CTL_DEL, slot->fd, 0, nullptr);
    (void)control(readable_, EPOLL_CTL_DEL, slot->fd, 0, nullptr);
    give_back(slot);
  }

  void receive(Port& port) override {
    auto* slot = static_cast<Slot*>(port.slot_);
    if (slot == nullptr) return;
    slot->asked = true;
    if (!slot->armed && !slot->starved)
      slot->armed = static_cast<bool>(control(readable_, EPOLL_CTL_MOD, slot->fd, EPOLLIN, slot));
  }

  bool waits(const Port& port) const override {
    const auto* slot = static_cast<const Slot*>(port.slot_);
    return slot != nullptr && (slot->waits() || sys::poll_readable(slot->fd, 0).value_or(false));
  }

  void await_writable(Port& port, bool on) override {
    auto* slot = static_cast<Slot*>(port.slot_);
    if (slot == nullptr || slot->edges == on) return;
    auto changed = control(edges_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, slot->fd, EPOLLOUT | EPOLLET, slot);
    slot->edges = on && changed.has_value();
  }

  Sys<void> run_once(std::int64_t timeout) override {
    std::array<epoll_event, kEventsPerTurn> events;
    if (!starved_.empty()) {
      const std::int64_t left = std::max<std::int64_t>(starved_until_ - sys::now_monotonic(), 0);
      timeout = timeout < 0 ? left : std::min(timeout, left);
    }
    if (!turns.empty()) timeout = 0;
    // epoll_wait counts milliseconds: rounded up, so that a timer is never early and the loop never spins towards it.
    int milliseconds = timeout < 0 ? -1 : static_cast<int>((timeout + 999'999) / 1'000'000);
    at_rest();
    int count = ::epoll_wait(readable_.get(), events.data(), events_wanted(), milliseconds);
    const int failure = errno;
    at_work();
    if (count < 0) return failure == EINTR ? Sys<void>{} : sys_error(failure);
    in_turn_ = true;
    const std::size_t before = turns.waiting();
    for (int i = 0; i < count; ++i) {
      auto* slot = static_cast<Slot*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (slot == nullptr) run_edges();
      else if (slot->waiter != nullptr && slot->process == nullptr) slot->waiter->on_readable();
      else if (slot->waiter != nullptr) turns.ready(*slot->process, *slot);
      else if (slot->port != nullptr) readable(*slot, events[static_cast<std::size_t>(i)].events);
    }
    more_ = count > 0 && turns.waiting() >= before + static_cast<std::size_t>(count);
    turns.serve(kSlice);
    in_turn_ = false;
    for (Slot* slot : retired_) free_.push_back(slot);
    retired_.clear();
    if (!starved_.empty() && sys::now_monotonic() >= starved_until_) feed();
    return {};
  }

 private:
  // A socket that waits for its turn is readable all the time, so the kernel looks at it again in each call. It looks
  // at no more than it may report, one after the other in a circle. Asking for a fourth of those that wait bounds that
  // work. A new packet is then seen in the fifth call or so. Where all that a call reports is new, there may be many
  // more new ones, and the next call asks for all.
  int events_wanted() const {
    const std::size_t wanted =
        turns.empty() || more_ ? kEventsPerTurn : std::clamp<std::size_t>(turns.waiting() / 4, 16, kEventsPerTurn);
    return static_cast<int>(wanted);
  }

  struct State {
    int fd = -1;
    Waiter* waiter = nullptr;
    Port* port = nullptr;
    Turns::Process* process = nullptr;
    bool asked = false, armed = false, edges = false;
    bool starved = false;                    // in starved_, and not tried before starved_until_
    bool arrived = false, writable = false;  // what its turn is for
  };
  struct Slot final : State, Turns::Item {
    explicit Slot(EpollEngine& owner) : engine(owner) {}
    void on_turn() override { engine.turn(*this); }
    EpollEngine& engine;
  };

  // The packet stays on the socket, which stays readable. A retry at once would only make the kernel refuse again.
  // EPOLLET with no events, as below.
  void starve(Slot& slot) {
    slot.armed = false;
    slot.starved = true;
    (void)control(readable_, EPOLL_CTL_MOD, slot.fd, EPOLLET, &slot);
    if (starved_.empty()) starved_until_ = sys::now_monotonic() + kMemoryPause;
    starved_.push_back(&slot);
  }
  void feed() {
    feeding_.swap(starved_);
    for (Slot* slot : feeding_) {
      if (!std::exchange(slot->starved, false)) continue;  // it has left since
      slot->armed = static_cast<bool>(control(readable_, EPOLL_CTL_MOD, slot->fd, EPOLLIN, slot));
      if (!slot->armed) starve(*slot);
    }
    feeding_.clear();
  }

  void readable(Slot& slot, std::uint32_t events) {
    if (slot.starved) return;
    if (!slot.asked) {
      // EPOLLET with no events: the hang-up cannot be masked, and this keeps it from being reported in every turn. Only
      // once, because each EPOLL_CTL_MOD reports it again.
      if (std::exchange(slot.armed, false)) (void)control(readable_, EPOLL_CTL_MOD, slot.fd, EPOLLET, &slot);
      // The kernel has purged what was unread, so the gate has to look.
      if ((events & EPOLLHUP) != 0) ready(slot, &Slot::writable);
      return;
    }
    ready(slot, &Slot::arrived);
  }

  void ready(Slot& slot, bool State::* what) {
    slot.*what = true;
    turns.ready(*slot.process, slot);
  }

  // After each of the calls the slot may belong to another socket.
  void turn(Slot& slot) {
    if (slot.waiter != nullptr) return slot.waiter->on_readable();
    const bool arrived = std::exchange(slot.arrived, false);
    Port* const port = slot.port;
    if (std::exchange(slot.writable, false)) port->on_writable();
    if (arrived && slot.port == port && slot.asked && !slot.starved) arrive(slot);
  }

  void arrive(Slot& slot) {
    Port::Arrival arrival;
    auto received = sys::receive(slot.fd, buffer_, arrival.descriptors, false);
    if (!received && received.error().value == EAGAIN) return;
    if (!received && (received.error().value == ENOMEM || received.error().value == ENOBUFS)) return starve(slot);
    slot.asked = false;
    if (received) {
      arrival.bytes = wire::Bytes(buffer_).first(received->size);
      arrival.truncated = received->truncated;
      arrival.bad_control = received->control_truncated || received->bad_control;
    } else {
      arrival.error = received.error().value;
    }
    slot.port->on_arrival(arrival);
  }

  void run_edges() {
    std::array<epoll_event, kEventsPerTurn> events;
    int count = ::epoll_wait(edges_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      auto* slot = static_cast<Slot*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (slot->port != nullptr && slot->edges) ready(*slot, &Slot::writable);
    }
  }

  Slot* take(int fd) {
    if (free_.empty()) {
      all_.push_back(new Slot(*this));
      free_.push_back(all_.back());
      for (auto* room : {&retired_, &starved_, &feeding_}) room->reserve(all_.size());
    }
    Slot* slot = free_.back();
    free_.pop_back();
    slot->fd = fd;
    return slot;
  }

  // A slot that left during a turn may still be in that turn's events. It is used again only after them.
  void give_back(Slot* slot) {
    turns.forget(*slot);
    static_cast<State&>(*slot) = State{};
    (in_turn_ ? retired_ : free_).push_back(slot);
  }

  Fd readable_, edges_;
  std::vector<Slot*> all_, free_, retired_;
  std::vector<Slot*> starved_, feeding_;  // two vectors, so that nothing is allocated while memory is short
  std::int64_t starved_until_ = 0;
  bool in_turn_ = false;
  bool more_ = false;  // all that the last look reported was new
  std::array<std::byte, SHMBW_MAX_MESSAGE> buffer_;
};

Sys<std::unique_ptr<Engine>> make_epoll_engine() {
  SHMB_TRY(readable, sys::epoll());
  SHMB_TRY(edges, sys::epoll());
  auto engine = std::make_unique<EpollEngine>(std::move(readable), std::move(edges));
  SHMB_TRY_VOID(engine->start());
  return engine;
}

}  // namespace shmb::daemon
