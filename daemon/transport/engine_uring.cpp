// SPDX-License-Identifier: Apache-2.0
// The io_uring engine. A ring pays only with SINGLE_ISSUER and DEFER_TASKRUN or COOP_TASKRUN; a plain ring is slower
// than epoll, so it is not accepted. A receive takes its buffer from a shared ring when data arrives (5.19), so ten
// thousand silent sessions cost no buffers. The records that the kernel writes to live until their last completion has
// been reaped.
#include <liburing.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "base/fault.hpp"
#include "base/mapping.hpp"
#include "base/result.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "daemon/transport/engine.hpp"
#include "daemon/transport/ring_rules.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {
namespace {

constexpr unsigned kEntries = 256;
constexpr unsigned kCompletions = 4096;
constexpr unsigned kBuffers = 128;  // a turn that needs more retries the rest in the next one
constexpr std::uint16_t kBufferGroup = 1;

// The subject of a completion, in the low bits of user_data. The other bits are the slot's address.
enum Kind : std::uint64_t { kReceive = 0, kReadable = 1, kEdge = 2, kCancel = 3, kKindMask = 3 };

}  // namespace

class UringEngine final : public Engine {
 public:
  ~UringEngine() override {
    if (ring_ready_) {
      drain();
      io_uring_queue_exit(&ring_);
    }
    for (Slot* slot : all_) delete slot;
  }

  Result<void> start(std::string& how) {
    if (int failure = fault::fails(fault::Call::io_uring_setup)) return failed(-failure, "io_uring_setup");
    constexpr unsigned kCoop = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN;
    int made = -EINVAL;
    if (!fault::pretends_before(6, 1)) {
      made = set_up(kCoop | IORING_SETUP_DEFER_TASKRUN);  // 6.1
      how = "SINGLE_ISSUER, DEFER_TASKRUN";
    }
    if (made == -EINVAL && !fault::pretends_before(6, 0)) {
      made = set_up(kCoop);  // 6.0
      how = "SINGLE_ISSUER, COOP_TASKRUN";
    }
    if (made < 0) return failed(made, "io_uring_setup with SINGLE_ISSUER and COOP_TASKRUN (Linux 6.0)");
    ring_ready_ = true;
    for (auto* all : {&aside_, &earlier_}) all->reserve(kCompletions);
    if ((ring_.features & IORING_FEAT_EXT_ARG) == 0)
      return error(Status::unsupported, "io_uring here cannot wait with a time-out");
    SHMB_TRY_VOID(provide_buffers());
    if (int made = restrict_ring(ring_); made < 0) return failed(made, "restricting io_uring (Linux 5.10)");
    if (int made = io_uring_enable_rings(&ring_); made < 0) return failed(made, "enabling io_uring");
    return {};
  }

  Sys<void> watch(int fd, Waiter& waiter, Turns::Process* process) override {
    Slot* slot = take(fd);
    slot->waiter = &waiter;
    slot->process = process;
    waiter.slot_ = slot;
    arm_readable(*slot);
    return {};
  }

  void unwatch(Waiter& waiter) override {
    if (waiter.slot_ == nullptr) return;
    auto* slot = static_cast<Slot*>(std::exchange(waiter.slot_, nullptr));
    slot->waiter = nullptr;
    retire(*slot);
  }

  Sys<void> add(int fd, Port& port, Turns::Process& process) override {
    Slot* slot = take(fd);
    slot->port = &port;
    slot->process = &process;
    slot->room = std::make_unique<sys::RoomForDescriptors>();
    port.slot_ = slot;
    return {};
  }

  void remove(Port& port) override {
    if (port.slot_ == nullptr) return;
    auto* slot = static_cast<Slot*>(std::exchange(port.slot_, nullptr));
    slot->port = nullptr;
    slot->edges = false;
    retire(*slot);
  }

  void receive(Port& port) override {
    auto* slot = static_cast<Slot*>(port.slot_);
    if (slot == nullptr || slot->receiving || slot->starved) return;
    slot->receiving = true;
    slot->failing = fault::fails(fault::Call::receive);
    ++slot->pending;
    slot->part = {nullptr, SHMBW_MAX_MESSAGE};
    slot->header = {};
    slot->header.msg_iov = &slot->part;
    slot->header.msg_iovlen = 1;
    io_uring_sqe* sqe = next();
    if (slot->failing != 0) {
      io_uring_prep_nop(sqe);  // in its place: it completes as a receive does
      return mark(sqe, slot, kReceive);
    }
    sys::make_room(slot->header, *slot->room);
    io_uring_prep_recvmsg(sqe, slot->fd, &slot->header, MSG_CMSG_CLOEXEC);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = kBufferGroup;
    // Not POLL_FIRST: with many clients the next request is often there already, and POLL_FIRST measured 5 % slower.
    mark(sqe, slot, kReceive);
  }

  bool waits(const Port& port) const override {
    const auto* slot = static_cast<const Slot*>(port.slot_);
    return slot != nullptr && (slot->waits() || sys::poll_readable(slot->fd, 0).value_or(false));
  }

  void await_writable(Port& port, bool on) override {
    auto* slot = static_cast<Slot*>(port.slot_);
    if (slot == nullptr || slot->edges == on) return;
    slot->edges = on;
    if (on) arm_edges(*slot);
    else if (slot->edge_armed) cancel(*slot, kEdge);
  }

  Sys<void> run_once(std::int64_t timeout) override {
    if (!starved_.empty()) {
      const std::int64_t left = starved_until_ - sys::now_monotonic();
      if (left <= 0) feed();
      else timeout = timeout < 0 ? left : std::min(timeout, left);
    }
    if (!aside_.empty() || !turns.empty()) timeout = 0;
    __kernel_timespec limit{timeout / 1'000'000'000, timeout % 1'000'000'000};
    io_uring_cqe* first = nullptr;
    int waited = -fault::fails(fault::Call::io_uring_enter);
    at_rest();
    if (waited == 0)
      waited = io_uring_submit_and_wait_timeout(&ring_, &first, 1, timeout < 0 ? nullptr : &limit, nullptr);
    at_work();
    // The kernel is short of memory (EAGAIN, ENOMEM) or of completion slots (EBUSY). Entries that could not be
    // submitted stay queued and go with the next turn, after the present completions have made room.
    bool passing = waited == -ETIME || waited == -EINTR || waited == -EBUSY || waited == -EAGAIN || waited == -ENOMEM;
    if (waited < 0 && !passing) return sys_error(-waited);
    in_turn_ = true;
    // Takes only what is there now: what handlers cause waits until timers have had their turn. Earlier completions go
    // first.
    earlier_.swap(aside_);
    unsigned left = io_uring_cq_ready(&ring_);
    for (const Completion& done : earlier_) complete(done);
    earlier_.clear();
    for (Completion done; left > 0 && aside_.empty() && take(done); --left) complete(done);
    turns.serve(kSlice);
    in_turn_ = false;
    for (Slot* slot : retired_) free_.push_back(slot);
    retired_.clear();
    return {};
  }

 private:
  struct Completion {
    std::uint64_t user_data = 0;
    std::int32_t res = 0;
    std::uint32_t flags = 0;
  };
  struct State {
    int fd = -1;
    Waiter* waiter = nullptr;
    Port* port = nullptr;
    Turns::Process* process = nullptr;
    bool arrived = false, readable = false, writable = false;  // what its turn is for
    Completion arrival;                                        // of the packet; it keeps its buffer until its turn
    unsigned pending = 0;                                      // completions still to come that name this slot
    bool receiving = false, polling = false, edges = false, edge_armed = false, leaving = false;
    bool starved = false;  // in starved_
    int failing = 0;       // an errno from the seam, instead of the receive's
    msghdr header{};
    iovec part{};
    std::unique_ptr<sys::RoomForDescriptors> room;  // of a port
  };
  struct Slot final : State, Turns::Item {
    explicit Slot(UringEngine& owner) : engine(owner) {}
    void on_turn() override { engine.turn(*this); }
    UringEngine& engine;
  };

  static std::unexpected<Error> failed(int result, const std::string& what) {
    return error(Status::unsupported, what + ": " + errno_text(-result));
  }

  int set_up(unsigned flags) {
    io_uring_params parameters{};
    parameters.flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_R_DISABLED;
    parameters.cq_entries = kCompletions;
    return io_uring_queue_init_params(kEntries, &ring_, &parameters);
  }

  Result<void> provide_buffers() {
    auto ring = Mapping::anonymous(kBuffers * sizeof(io_uring_buf));
    auto memory = Mapping::anonymous(std::size_t{kBuffers} * SHMBW_MAX_MESSAGE);
    if (!ring || !memory) return error(Status::no_memory, "no memory for io_uring's receive buffers");
    buffer_ring_memory_ = std::move(*ring);
    buffer_memory_ = std::move(*memory);
    buffers_ = reinterpret_cast<io_uring_buf_ring*>(buffer_ring_memory_.data());
    io_uring_buf_reg registration{};
    registration.ring_addr = reinterpret_cast<std::uint64_t>(buffers_);
    registration.ring_entries = kBuffers;
    registration.bgid = kBufferGroup;
    if (int made = io_uring_register_buf_ring(&ring_, &registration, 0); made < 0)
      return failed(made, "registering io_uring's receive buffers (Linux 5.19)");
    io_uring_buf_ring_init(buffers_);
    for (unsigned i = 0; i < kBuffers; ++i) put_back(static_cast<std::uint16_t>(i));
    return {};
  }

  std::byte* buffer(std::uint16_t id) { return buffer_memory_.data() + std::size_t{id} * SHMBW_MAX_MESSAGE; }

  void put_back(std::uint16_t id) {
    io_uring_buf_ring_add(buffers_, buffer(id), SHMBW_MAX_MESSAGE, id, io_uring_buf_ring_mask(kBuffers), 0);
    io_uring_buf_ring_advance(buffers_, 1);
  }

  io_uring_sqe* next() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    while (sqe == nullptr) {  // full: the kernel takes all of it at once
      submit();
      sqe = io_uring_get_sqe(&ring_);
    }
    return sqe;
  }

  // While the kernel has no memory, the engine submits only at intervals. Where completions have no room (EBUSY), those
  // that are there make some, and are handled in the next turn.
  void submit() {
    const int failure = fault::fails(fault::Call::io_uring_enter);
    const int done = failure != 0 ? -failure : io_uring_submit(&ring_);
    if (done > 0 || done == -EINTR) return;
    bool made_room = false;
    for (Completion one; take(one); made_room = true) aside_.push_back(one);
    if (done != -EBUSY || !made_room) sys::rest(kMemoryPause);
  }

  bool take(Completion& done) {
    io_uring_cqe* entry = nullptr;
    if (io_uring_peek_cqe(&ring_, &entry) != 0) return false;
    done = {entry->user_data, entry->res, entry->flags};
    io_uring_cqe_seen(&ring_, entry);
    return true;
  }

  static void mark(io_uring_sqe* sqe, Slot* slot, Kind kind) {
    io_uring_sqe_set_data64(sqe, reinterpret_cast<std::uint64_t>(slot) | kind);
  }

  // One shot, armed again after each call. That is level-triggered, because arming checks the state first.
  void arm_readable(Slot& slot) {
    slot.polling = true;
    ++slot.pending;
    io_uring_sqe* sqe = next();
    io_uring_prep_poll_add(sqe, slot.fd, POLLIN);
    mark(sqe, &slot, kReadable);
  }

  void arm_edges(Slot& slot) {
    if (slot.edge_armed) return;  // an older one is being cancelled: its completion arms the new one
    slot.edge_armed = true;
    ++slot.pending;
    io_uring_sqe* sqe = next();
    io_uring_prep_poll_multishot(sqe, slot.fd, POLLOUT);
    mark(sqe, &slot, kEdge);
  }

  void cancel(Slot& slot, Kind kind) {
    io_uring_sqe* sqe = next();
    io_uring_prep_cancel64(sqe, reinterpret_cast<std::uint64_t>(&slot) | kind, 0);
    io_uring_sqe_set_data64(sqe, kCancel);
  }

  void complete(const Completion& done) {
    auto* slot = reinterpret_cast<Slot*>(done.user_data & ~std::uint64_t{kKindMask});
    if (slot == nullptr) return;  // the result of a cancellation
    auto kind = static_cast<Kind>(done.user_data & kKindMask);
    if ((done.flags & IORING_CQE_F_MORE) == 0) --slot->pending;
    switch (kind) {
      case kReceive:
        slot->receiving = false;
        slot->arrival = done;
        if (slot->port != nullptr) ready(*slot, &Slot::arrived);
        else received(*slot, done);
        break;
      case kReadable:
        slot->polling = false;
        if (slot->process != nullptr && slot->waiter != nullptr) ready(*slot, &Slot::readable);
        else readable(*slot);
        break;
      case kEdge:
        edge(*slot, done);
        break;
      case kCancel:
        break;
    }
    if (slot->leaving && slot->pending == 0) release(*slot);
  }

  void ready(Slot& slot, bool State::* what) {
    slot.*what = true;
    turns.ready(*slot.process, slot);
  }

  // The slot may be retired after each of the calls.
  void turn(Slot& slot) {
    if (std::exchange(slot.readable, false)) readable(slot);
    if (std::exchange(slot.writable, false) && slot.port != nullptr) slot.port->on_writable();
    if (std::exchange(slot.arrived, false)) received(slot, slot.arrival);
  }

  // The shortage of memory lasts. A retry at once would only make the kernel refuse again.
  void starve(Slot& slot) {
    slot.starved = true;
    if (starved_.empty()) starved_until_ = sys::now_monotonic() + kMemoryPause;
    starved_.push_back(&slot);
  }
  void feed() {
    feeding_.swap(starved_);
    for (Slot* slot : feeding_)
      if (std::exchange(slot->starved, false) && slot->port != nullptr) receive(*slot->port);  // else it has left since
    feeding_.clear();
  }

  // Packets that wait for their turn have all buffers. The packet of this port, whose turn has come, is read from its
  // socket here.
  void receive_here(Slot& slot) {
    Port::Arrival arrival;
    const auto received = sys::receive(slot.fd, spare_, arrival.descriptors, false);
    if (!received && received.error().value == EAGAIN) return receive(*slot.port);
    if (!received && (received.error().value == ENOMEM || received.error().value == ENOBUFS)) return starve(slot);
    if (received) {
      arrival.bytes = wire::Bytes(spare_).first(received->size);
      arrival.truncated = received->truncated;
      arrival.bad_control = received->control_truncated || received->bad_control;
    } else {
      arrival.error = received.error().value;
    }
    slot.port->on_arrival(arrival);
  }

  void received(Slot& slot, const Completion& done) {
    const int result = slot.failing != 0 ? -slot.failing : done.res;
    // Also for a port that is gone: the descriptors are in the broker's table.
    std::vector<Fd> descriptors;
    bool bad_control = false;
    if (result >= 0 && slot.header.msg_control != nullptr)
      bad_control = !sys::take_descriptors(slot.header, descriptors);
    const bool has_buffer = (done.flags & IORING_CQE_F_BUFFER) != 0;
    auto id = static_cast<std::uint16_t>(done.flags >> IORING_CQE_BUFFER_SHIFT);
    if (slot.port != nullptr) {
      if (result == -ENOBUFS && slot.failing == 0) {
        receive_here(slot);
      } else if (result == -ENOBUFS || result == -ENOMEM || result == -EAGAIN) {
        starve(slot);
      } else if (result == -EINTR) {
        receive(*slot.port);
      } else {
        Port::Arrival arrival;
        if (result < 0) arrival.error = -result;
        else if (result > 0 && has_buffer) arrival.bytes = wire::Bytes(buffer(id), static_cast<std::size_t>(result));
        arrival.truncated = result >= 0 && (slot.header.msg_flags & MSG_TRUNC) != 0;
        arrival.bad_control = result >= 0 && (bad_control || (slot.header.msg_flags & MSG_CTRUNC) != 0);
        arrival.descriptors = std::move(descriptors);
        slot.port->on_arrival(arrival);
      }
    }
    if (!descriptors.empty() && discard) discard(std::move(descriptors));
    if (has_buffer) put_back(id);
  }

  void readable(Slot& slot) {
    if (slot.waiter != nullptr) slot.waiter->on_readable();
    if (slot.waiter != nullptr && !slot.polling) arm_readable(slot);
  }

  void edge(Slot& slot, const Completion& done) {
    if ((done.flags & IORING_CQE_F_MORE) == 0) {
      slot.edge_armed = false;
      if (slot.edges) arm_edges(slot);
    }
    if (slot.edges && slot.port != nullptr && done.res >= 0) ready(slot, &Slot::writable);
  }

  Slot* take(int fd) {
    if (free_.empty()) {
      all_.push_back(new Slot(*this));
      free_.push_back(all_.back());
      for (auto* room : {&retired_, &starved_, &feeding_}) room->reserve(all_.size());
    }
    Slot* slot = free_.back();
    free_.pop_back();
    static_cast<State&>(*slot) = State{};
    slot->fd = fd;
    return slot;
  }

  // The kernel may write to a slot until its last completion. So open operations are cancelled and waited for.
  void drain() {
    for (Slot* slot : all_) {
      slot->waiter = nullptr;
      slot->port = nullptr;
      slot->edges = false;
      if ((slot->pending > 0 || slot->arrived) && !slot->leaving) retire(*slot);
    }
    auto pending = [&] {
      unsigned sum = 0;
      for (Slot* slot : all_) sum += slot->pending;
      return sum;
    };
    for (int turns = 0; turns < 100 && pending() > 0; ++turns) (void)run_once(10'000'000);
  }

  // No handler may run for the slot any more, but the kernel may still write to it. It is free after the last
  // completion.
  void retire(Slot& slot) {
    slot.leaving = true;
    turns.forget(slot);
    if (std::exchange(slot.arrived, false)) received(slot, slot.arrival);  // frees its buffer, and what came with it
    if (slot.receiving) cancel(slot, kReceive);
    if (slot.polling) cancel(slot, kReadable);
    if (slot.edge_armed) cancel(slot, kEdge);
    if (slot.pending == 0) release(slot);
  }

  void release(Slot& slot) {
    if (!slot.leaving) return;
    slot.leaving = false;
    (in_turn_ ? retired_ : free_).push_back(&slot);
  }

  io_uring ring_{};
  bool ring_ready_ = false, in_turn_ = false;
  std::int64_t starved_until_ = 0;
  std::vector<Completion> aside_, earlier_;  // taken out of the ring before their turn
  Mapping buffer_ring_memory_, buffer_memory_;
  std::array<std::byte, SHMBW_MAX_MESSAGE> spare_;
  io_uring_buf_ring* buffers_ = nullptr;
  std::vector<Slot*> all_, free_, retired_;
  std::vector<Slot*> starved_, feeding_;  // two vectors, so that nothing is allocated while memory is short
};

Result<std::unique_ptr<Engine>> make_uring_engine(std::string& how) {
  auto engine = std::make_unique<UringEngine>();
  SHMB_TRY_VOID(engine->start(how));
  return engine;
}

}  // namespace shmb::daemon
